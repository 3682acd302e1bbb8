"""Changes that an adapter no longer remembers, from its log and from journals."""

import io
from typing import Any, Literal

import pytest
import structlog

from adapter.cli.offsets.older import JOURNAL, LOG, MEMORY, Change, Found, Row, in_log, merged
from adapter.errors import InvalidInputError
from adapter.rpc.offsets_pb2 import Position
from adapter.runtime.settings.config import LogSection
from adapter.runtime.telemetry import logs

FORMATS: tuple[Literal["console", "json"], ...] = ("console", "json")


def event(shards: list[str], **fields: Any) -> dict[str, Any]:
    """The fields of an executed reset of the group `g`, of these shards, from 5 to 1."""
    before, after = {"epoch": 1, "offset": 5}, {"epoch": 2**32, "offset": 1}
    rows = [{"key": ["default", "g", shard], "before": before, "after": after} for shard in shards]
    told = {"who": "unix:root", "claimed": "ann lee", "peer": "unix:", "method": "ResetOffsets", "arguments": {"group": "g"}}
    return {**told, "dry_run": False, "outcome": "OK", "rows": rows, **fields}


@pytest.fixture(params=FORMATS)
def log(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Any:
    """Writes events as an adapter does, in both forms; returns the lines."""

    def write(*events: dict[str, Any]) -> io.StringIO:
        logs.setup(LogSection(format=request.param))
        audit = logs.audit()
        for fields in events:
            audit.info("admin.call", **fields)
        return io.StringIO(capsys.readouterr().err)

    yield write
    structlog.reset_defaults()


def test_a_log_says_who_moved_which_shards_from_where_to_where(log: Any) -> None:
    """In both forms of a log; what came in parts is one change."""
    parts = [event(["s-1", "] who=unix:other"], part="1 of 2"), event(["s-2"], part="2 of 2"), event(["s-3"], who="token")]
    first, second = in_log(log(*parts), "", "")
    assert (first.source, first.change.kind, first.change.group, first.change.shards) == (LOG, "reset", "g", 3)
    assert (first.change.who, first.change.claimed, first.change.peer) == ("unix:root", "ann lee", "unix:")
    assert [row.shard for row in first.change.rows] == ["s-1", "] who=unix:other", "s-2"]
    assert (first.change.rows[0].before.offset, first.change.rows[0].after.offset) == (5, 1)
    assert abs(first.change.at_ms - second.change.at_ms) < 3_600_000
    assert first.change.at_ms > 1_600_000_000_000
    assert (second.change.who, second.change.shards) == ("token", 1)


def test_of_a_log_only_executed_changes_of_the_group_count(log: Any) -> None:
    """Not dry runs, refused calls, other groups, shards that stayed, nor what somebody else wrote."""
    stayed = event(["s"])
    stayed["rows"][0]["after"] = stayed["rows"][0]["before"]
    none = [event(["s"], dry_run=True), event(["s"], outcome="CANCELLED"), event(["s"], method="Reload"), stayed]
    lines = log(*none, event(["s"]))
    assert len([*in_log(lines, "default", "g")]) == 1
    lines.seek(0)
    assert [*in_log(lines, "default", "other")] == []
    for line in (
        "nobody's line\n",
        '{"event": "admin.call"}\n',
        "{admin.call\n",
        "x [info] admin.call claimed=a dry_run=False\n",
    ):
        assert [*in_log(io.StringIO(line), "", "")] == []
    with pytest.raises(InvalidInputError, match="--log: is empty"):
        [*in_log(io.StringIO(), "", "")]


def change(source: str, at_ms: int, offset: int, broker: str = "") -> Found:
    """A change to an offset."""
    row = Row(shard="s", after=Position(epoch=1, offset=offset))
    return Found(Change(at_ms=at_ms, kind="reset", group="g", rows=[row]), source, broker)


def test_each_change_is_shown_once_from_the_source_that_says_most() -> None:
    """What the adapter remembers, then its log, then journals; other brokers' journals beside what it remembers."""
    memory, early, from_log = change(MEMORY, 100, 3), change(MEMORY, 60, 7), change(LOG, 51, 2)
    others = change(JOURNAL, 120, 9, "other")
    found = [
        change(LOG, 101, 3),
        from_log,
        change(JOURNAL, 50, 2, "mine"),
        change(JOURNAL, 40, 1, "mine"),
        change(JOURNAL, 100, 3, "mine"),
        change(JOURNAL, 90, 8, "mine"),
        others,
        change(LOG, 61, 7),
        early,
        memory,
    ]
    kept = merged(found, 90, "mine")
    assert kept == [others, memory, early, from_log, change(JOURNAL, 40, 1, "mine")]
