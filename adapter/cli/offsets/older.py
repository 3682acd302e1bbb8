"""Changes that an adapter no longer remembers: read from its log (the events admin.call) and from journals.

Each becomes a `Change` as `ListChanges` has it, with all of its shards. A log says who asked; a journal has rewinds and expiries,
too, and does not say who.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TextIO

from adapter.cli.output import warn
from adapter.errors import ConfigError, InvalidInputError
from adapter.rpc import offsets_pb
from adapter.runtime.version import install_extra

Change = offsets_pb.ListChangesReply.Change
Row = offsets_pb.ChangeReply.Row

_SOURCES = MEMORY, LOG, JOURNAL = "memory", "log", "journal"  # the one that says most first
_KINDS = {"ResetOffsets": "reset", "DeleteOffsets": "delete", "CloneGroup": "clone", "ImportOffsets": "import"}
_NOT_MOVED = ["flush", "heartbeat"]  # kinds of a journal's rows
_COLUMNS = ("at", "kind", "namespace", "group", "shard", "epoch", "offset", "live", "from_epoch", "from_offset")
# `log.format = "console"`: the time, the level, the event, and NAME=VALUE sorted by name.
_PLAIN = re.compile(
    r"(?P<timestamp>\S+) \[\w+ *\] admin\.call +.*? claimed=(?P<claimed>.*?) dry_run=False method=(?P<method>\w+) outcome=OK "
    r"(?:part=(?P<part>'[^']*') )?peer=(?P<peer>\S*) rows=(?P<rows>\[.*\]) who=(?P<who>.*)"
)


class Found(NamedTuple):
    """A change, where it was found, and the broker whose journal has it (empty: not from a journal)."""

    change: Change
    source: str
    broker: str = ""


def in_log(file: TextIO, namespace: str, group: str) -> Iterator[Found]:
    """The changes of a group (empty: of all) in a log. Raises InvalidInputError if it has no line.

    Lines of `log.format = "json"` and `"console"`. Others are passed over: a log of journald may have those of anybody.
    """
    change: Change | None = None
    lines = 0
    for line in file:
        lines += 1
        event = _event(line) if "admin.call" in line else None
        if event is None:
            continue
        begins = event.begins
        for row in event.rows:
            if (namespace and row.namespace != namespace) or (group and row.group != group) or row.before == row.after:
                continue
            if begins or change is None or (row.namespace, row.group) != (change.namespace, change.group):
                if change is not None:
                    yield Found(change, LOG)
                change = Change(at_ms=event.at_ms, namespace=row.namespace, group=row.group, **event.told)
                begins = False
            change.rows.append(row)
            change.shards += 1
    if change is not None:
        yield Found(change, LOG)
    if not lines:
        raise InvalidInputError("--log: is empty: `journalctl --unit offset-adapter --output cat` prints a log under systemd")


def in_journal(path: str, namespace: str, group: str) -> Iterator[Found]:
    """The changes of a group (empty: of all) in a journal, of all brokers in it. Raises ConfigError, OSError."""
    try:
        import pyarrow.compute as pc  # noqa: PLC0415 - needs the extra `journal`

        from adapter.pipeline.journal import listing, segment  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"--journal needs {error.name}, which is not installed: {install_extra('journal')}") from error
    for run in listing.Lister(listing.roots_of([path])).list().runs.values():
        changes: dict[tuple[Any, ...], Change] = {}
        for _, one in sorted(run.items()):
            table, problem = segment.read_table(one, _COLUMNS)
            if problem:
                warn(f"{one.path}: {problem}")
            wanted = ~pc.field("kind").cast("string").isin(_NOT_MOVED)
            for name, value in (("namespace", namespace), ("group", group)):
                if value:
                    wanted &= pc.field(name).cast("string") == value
            for row in table.filter(wanted).to_pylist():
                at_ms = round(row["at"].timestamp() * 1_000)
                key = at_ms, row["kind"], row["namespace"], row["group"]
                change = changes.setdefault(key, Change(**dict(zip(("at_ms", "kind", "namespace", "group"), key, strict=True))))
                change.rows.append(_moved(row))
                change.shards += 1
        yield from (Found(change, JOURNAL, one.broker) for change in changes.values())


def merged(found: Sequence[Found], since_ms: int, broker: str) -> list[Found]:
    """Each change once, the newest first: as the adapter remembers it, else from the log, which says who, else from a journal.

    The adapter `broker` remembers all of its changes since `since_ms`.
    """
    kept: list[Found] = []
    known: set[tuple[Any, ...]] = set()
    for one in sorted(found, key=lambda one: _SOURCES.index(one.source)):
        places = {*_places(one.change)}
        remembered = one.change.at_ms >= since_ms and one.broker in {"", broker}
        if one.source == MEMORY or not (remembered or known & places):
            kept.append(one)
            known |= places
    return sorted(kept, key=lambda one: one.change.at_ms, reverse=True)


def _places(change: Change) -> Iterator[tuple[Any, ...]]:
    """Where it moved its shards; a shard is moved to one place once."""
    return ((change.kind, change.namespace, change.group, row.shard, row.after.epoch, row.after.offset) for row in change.rows)


class _Event(NamedTuple):
    """A change that was executed, or a part of a large one, and whether it is the first part."""

    at_ms: int
    told: Mapping[str, Any]  # kind, who, claimed, peer
    rows: Sequence[Row]
    begins: bool


def _event(line: str) -> _Event | None:
    """None for any other line."""
    try:
        if line.startswith("{"):
            fields = json.loads(line)
            if fields["event"] != "admin.call" or fields["outcome"] != "OK" or fields["dry_run"]:
                return None
        else:
            plain = _PLAIN.match(line.rstrip("\n"))
            if plain is None:
                return None
            fields = {
                name: ast.literal_eval(text) if text and text[0] in "'\"[" else text for name, text in plain.groupdict().items()
            }
        at = datetime.fromisoformat(fields["timestamp"]).astimezone(UTC)
        told = {"kind": _KINDS[fields["method"]], **{name: fields[name] for name in ("who", "claimed", "peer")}}
        begins = (fields.get("part") or "1 of 1").startswith("1 of ")
        return _Event(round(at.timestamp() * 1_000), told, [*map(_row, fields["rows"])], begins)
    except (ArithmeticError, AttributeError, LookupError, SyntaxError, TypeError, ValueError):
        return None  # a line that was cut, or that somebody else wrote


def _row(values: Mapping[str, Any]) -> Row:
    namespace, group, shard = values["key"]
    row = Row(namespace=namespace, group=group, shard=shard, changed=True)
    for name in ("before", "after"):
        if values[name] is not None:
            getattr(row, name).CopyFrom(offsets_pb.Position(**values[name]))
    return row


def _moved(row: Mapping[str, Any]) -> Row:
    """A row of a journal. What stood before may have been deleted, which it does not say."""
    moved = Row(namespace=row["namespace"], group=row["group"], shard=row["shard"], changed=True)
    moved.after.CopyFrom(offsets_pb.Position(epoch=row["epoch"] or 0, offset=row["offset"] or 0, deleted=not row["live"]))
    if row["from_epoch"] is not None:
        moved.before.CopyFrom(offsets_pb.Position(epoch=row["from_epoch"], offset=row["from_offset"] or 0))
    return moved
