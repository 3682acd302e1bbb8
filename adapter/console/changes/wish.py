"""What a person asks for in the form of a change, as a value; and the requests to adapters that it is."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from adapter.console.access.csrf import Form
from adapter.errors import InvalidInputError
from adapter.model.names import check_name
from adapter.model.records import DEFAULT_NAMESPACE, U64_MAX, GroupKey
from adapter.rpc import offsets_pb
from adapter.runtime.times import datetime_ms

KINDS = ("reset", "delete", "clone")
TARGETS = ("offset", "time", "earliest", "latest", "current", "shift", "file")
SHARDS_MAX = 20_000  # of one change: what an adapter describes and changes in one call
PIECE = 1_000  # shards of one request
SHIFT_MAX = 2**63 - 1
_SHOWN_NAME = 60  # characters of a bad value in an error

Request: TypeAlias = offsets_pb.ResetOffsetsRequest | offsets_pb.DeleteOffsetsRequest | offsets_pb.CloneGroupRequest


class Wish(NamedTuple):
    """A change that is asked for.

    `to` and `value` are for a reset: one of TARGETS, and its number (a time in Unix milliseconds). `targets`: shard -> offset, of
    a file. `shards` are those that are named; empty: all of the group. `to_group`: for a clone, the group that gets the offsets.
    `warning`: what to say of the file.
    """

    kind: str
    group: GroupKey
    to: str = ""
    value: int = 0
    targets: Mapping[str, int] = MappingProxyType({})
    shards: Sequence[str] = ()
    create: bool = False
    to_group: str = ""
    warning: str = ""

    @property
    def changed_group(self) -> GroupKey:
        """The group whose offsets change."""
        return self.group._replace(group=self.to_group) if self.kind == "clone" else self.group

    @property
    def named(self) -> Sequence[str]:
        """The shards that are named, in the form or in the file."""
        return list(self.targets) if self.to == "file" else self.shards


def wish_of(form: Form) -> Wish:
    """The change that a form asks for. Raises InvalidInputError that names the field."""
    kind = form.text("kind")
    if kind not in KINDS:
        raise InvalidInputError(f"kind: {kind[:_SHOWN_NAME]!r} is none of {', '.join(KINDS)}")
    group = GroupKey(
        check_name(form.text("namespace") or DEFAULT_NAMESPACE, "namespace"), check_name(form.text("group"), "group")
    )
    shards = _shards(form)
    if kind == "delete":
        return Wish(kind, group, shards=shards)
    if kind == "clone":
        to_group = check_name(form.text("to_group"), "to_group")
        if to_group == group.group:
            raise InvalidInputError("to_group: is the group to clone from")
        return Wish(kind, group, shards=shards, to_group=to_group)
    to = form.text("to")
    if to not in TARGETS:
        raise InvalidInputError(f"to: choose one of {', '.join(TARGETS)}")
    create = form.text("create") == "yes"
    if to != "file":
        return Wish(kind, group, to, _value(form, to), shards=shards, create=create)
    if shards:
        raise InvalidInputError("shards: must be empty beside a file, which names the shards")
    targets, warning = _targets(form, group)
    return Wish(kind, group, to, targets=targets, create=create, warning=warning)


def requests_of(wish: Wish, shards: Sequence[str]) -> Iterator[Request]:
    """The requests that change these shards, a piece in each, as dry runs."""
    for at in range(0, len(shards), PIECE):
        piece = shards[at : at + PIECE]
        namespace, group = wish.group
        if wish.kind == "delete":
            yield offsets_pb.DeleteOffsetsRequest(namespace=namespace, group=group, shards=piece)
        elif wish.kind == "clone":
            yield offsets_pb.CloneGroupRequest(namespace=namespace, from_group=group, to_group=wish.to_group, shards=piece)
        elif wish.to == "file":
            yield reset_to(wish, {shard: wish.targets[shard] for shard in piece})
        else:
            request = offsets_pb.ResetOffsetsRequest(namespace=namespace, group=group, shards=piece, create=wish.create)
            if wish.to in {"earliest", "latest", "current"}:
                setattr(request, f"to_{wish.to}", True)
            else:
                setattr(request, {"offset": "to_offset", "time": "to_timestamp_ms", "shift": "shift_by"}[wish.to], wish.value)
            yield request


def reset_to(wish: Wish, targets: Mapping[str, int]) -> offsets_pb.ResetOffsetsRequest:
    """The request that gives each shard its own offset."""
    named = [offsets_pb.ResetOffsetsRequest.Target(shard=shard, offset=offset) for shard, offset in targets.items()]
    return offsets_pb.ResetOffsetsRequest(
        namespace=wish.group.namespace,
        group=wish.group.group,
        to_targets=offsets_pb.ResetOffsetsRequest.Targets(targets=named),
        create=wish.create,
    )


def _shards(form: Form) -> list[str]:
    lines = [line for line in form.text("shards").split("\n") if line]
    if len(lines) > SHARDS_MAX:
        raise InvalidInputError(f"shards: are {len(lines):,}, over {SHARDS_MAX:,}; use the command")
    found = dict.fromkeys(check_name(line, f"shards: line {at + 1}") for at, line in enumerate(lines))
    if len(found) < len(lines):
        raise InvalidInputError("shards: one is named twice")
    return list(found)


def _value(form: Form, to: str) -> int:
    if to == "offset":
        return _number(form, "offset", 0, U64_MAX)
    if to == "shift":
        return _number(form, "shift", -SHIFT_MAX, SHIFT_MAX)
    if to == "time":
        return datetime_ms(form.text("time").strip().replace(" ", "T"), "time")
    return 0


def _number(form: Form, field: str, low: int, high: int) -> int:
    text = form.text(field).strip()
    try:
        number = int(text) if text.isascii() and len(text) <= len(str(U64_MAX)) + 1 else None
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        raise InvalidInputError(f"{field}: {text[:_SHOWN_NAME]!r} is not a whole number from {low} to {high}")
    return number


def _targets(form: Form, group: GroupKey) -> tuple[dict[str, int], str]:
    """The rows of the file, or of what was pasted, and a warning. Takes milliseconds for each 1,000 rows."""
    from adapter.formats import reset_plan_file  # noqa: PLC0415 - the formats of files bring RocksDB

    data = form.file if form.file is not None else form.text("pasted").encode()
    if not data.strip():
        raise InvalidInputError(
            "file: choose a file, or paste its lines: TOPIC,PARTITION,OFFSET as `offsets reset --from-file` reads"
        )
    name = "file.json" if data.lstrip()[:1] in {b"{", b"["} else "file.csv"
    with tempfile.NamedTemporaryFile(prefix="offset-console-") as copy:
        copy.write(data)
        copy.flush()
        rows, cut = reset_plan_file.read(copy.name, group, name)
    if len(rows) > SHARDS_MAX:
        raise InvalidInputError(f"file: has {len(rows):,} shards, over {SHARDS_MAX:,}; use the command")
    # What was pasted has no line end as a rule, and is seen as it is.
    return {row.shard: row.offset for row in rows}, cut if form.file is not None else ""
