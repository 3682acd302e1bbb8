"""`groups handover` and `offsets history` as an operator uses them."""

import csv
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from adapter.testing.waiting import eventually
from tests.acceptance.conftest import Pair, run
from tests.acceptance.terminals import at_a_terminal

OK, FAILED, ERROR = 0, 1, 2


def commit(pair: Pair, group: str, **offsets: int) -> None:
    """Commit shards of a group."""
    for shard, offset in offsets.items():
        assert pair("commit", group, shard, str(offset)).code == OK


def execute(pair: Pair, *arguments: str) -> None:
    """Run a change."""
    ran = pair(*arguments, "--execute")
    assert ran.code == OK, ran.err


async def test_what_is_handed_over_is_in_the_meta_service_and_not_here_and_a_reader_has_it_again(shared: Pair) -> None:
    """By names and patterns; also what was not flushed, and with all groups nothing is left here."""
    commit(shared, "leaves-1", a=5, b=6)
    commit(shared, "leaves-2", a=7)
    commit(shared, "stays", a=8)
    ran = shared("groups", "handover", "leaves-*", "--json")
    assert ran.code == OK, ran.err
    assert [(row["group"], row["offsets"]) for row in ran.json] == [("leaves-1", 2), ("leaves-2", 1)]
    here = {row["group"] for row in shared("list", "--json").json}
    assert "stays" in here
    assert not here & {"leaves-1", "leaves-2"}
    there = {(row["group"], row["shard"]): row["offset"] for row in run("list", "--meta", shared.meta.address, "--json").json}
    assert (there["leaves-1", "a"], there["leaves-1", "b"], there["leaves-2", "a"]) == (5, 6, 7)
    assert shared("groups", "handover", "--all-groups").code == OK
    assert shared("list", "--json").json == []
    assert [row["offset"] for row in shared("get", "leaves-1", "a", "--json").json] == [5]


def test_who_hands_over_nothing_is_told(shared: Pair) -> None:
    """No group, no name, or both."""
    nothing = shared("groups", "handover", "nobody-*")
    assert (nothing.code, nothing.out) == (FAILED, "namespace\tgroup\toffsets\terror\n")
    assert "no group 'nobody-*' is here" in nothing.err
    commit(shared, "somebody", a=1)
    some = shared("groups", "handover", "somebody", "nobody")
    assert (some.code, "no group 'nobody' is here" in some.err) == (FAILED, True)
    assert "1 group handed over" in some.err
    for arguments in ((), ("some", "--all-groups")):
        refused = shared("groups", "handover", *arguments)
        assert (refused.code, "name at least one GROUP, or give --all-groups" in refused.err) == (ERROR, True)


async def test_without_the_meta_service_nothing_leaves(pair: Pair) -> None:
    """That it does not have: the error says who does not answer, and the offsets stay."""
    pair.meta.kill()
    commit(pair, "g", a=5)
    refused = pair("groups", "handover", "g")
    assert refused.code == ERROR
    assert "the adapter answers, the Meta Service does not" in refused.err
    assert [row["offset"] for row in pair("list", "--json").json] == [5]
    pair.meta.start()
    await eventually(lambda: pair("groups", "handover", "g").code == OK)
    assert pair("list", "--json").json == []


def test_the_history_says_who_moved_what_from_where_to_where(shared: Pair) -> None:
    """The newest first, of a group or of all; the same in JSON, and in CSV."""
    commit(shared, "moved", a=50, b=60)
    execute(shared, "offsets", "reset", "moved", "--to-offset", "10")
    execute(shared, "offsets", "delete", "moved", "b")
    commit(shared, "other", a=1)
    execute(shared, "offsets", "reset", "other", "--to-offset", "0")
    changes = shared("offsets", "history", "moved", "--json").json
    assert [(change["kind"], change["shards"]) for change in changes] == [("delete", 1), ("reset", 2)]
    assert changes[0]["rows"][0]["after"]["deleted"]
    assert changes[1]["who"].startswith("unix:")
    table = shared("offsets", "history", "moved")
    assert table.code == OK
    lines = [line.split("\t")[1:7] for line in table.out.splitlines()[1:]]
    assert lines == [
        ["delete", "default", "moved", "b", "10", "deleted"],
        ["reset", "default", "moved", "a", "50", "10"],
        ["reset", "default", "moved", "b", "60", "10"],
    ]
    assert "2 changes; all since " in table.err
    assert [change["group"] for change in shared("offsets", "history", "--limit", "1", "--json").json] == ["other"]
    assert [row["kind"] for row in csv.DictReader(shared("offsets", "history", "moved", "--output", "csv").out.splitlines())] == [
        "delete",
        "reset",
    ]
    assert shared("offsets", "history", "nobody").code == OK


async def test_what_a_killed_adapter_remembered_is_in_its_log_and_its_journal(pair: Pair) -> None:
    """The log says who; the journal has the rewind as well; with both each change is shown once."""
    path = pair.directory / "journal"
    pair.adapter.settings += f"\n[journal]\npath = '{path}'\nsegment_max_age_ms = 100"
    pair.restart()
    commit(pair, "g", a=50, b=60)
    execute(pair, "offsets", "reset", "g", "--to-offset", "10")
    commit(pair, "other", a=50)
    execute(pair, "offsets", "delete", "other")
    assert pair("commit", "g", "a", "20", "--epoch", "1.0").code == OK
    assert pair("commit", "g", "a", "5", "--overwrite").code == OK
    log = pair.adapter.directory / "serve.log"
    await eventually(lambda: in_segments(path) == 4)  # two of the reset, one of the delete, one rewind
    remembered = [(change["kind"], change["source"]) for change in shown(pair, "g", "--log", log, "--journal", path)]
    assert remembered == [("rewind", "memory"), ("reset", "memory")]
    pair.adapter.kill()
    away = pair("offsets", "history", "g", "--log", log, "--json")
    assert (away.code, "what it remembers is missing here" in away.err) == (OK, True)
    assert pair("offsets", "history", "g", "--json").code == ERROR
    pair.adapter.start()
    assert shown(pair, "g") == []
    (reset,) = shown(pair, "g", "--log", log)
    assert (reset["kind"], reset["source"], reset["shards"], [row["shard"] for row in reset["rows"]]) == (
        "reset",
        "log",
        2,
        ["a", "b"],
    )
    assert reset["who"].startswith("unix:")
    rewind, same = shown(pair, "g", "--journal", path)
    assert (rewind["kind"], same["kind"], same["source"], same["who"]) == ("rewind", "reset", "journal", "")
    assert [(row["shard"], row["before"]["offset"], row["after"]["offset"]) for row in rewind["rows"]] == [("a", 20, 5)]
    both = shown(pair, "--log", log, "--journal", path)
    assert [(change["kind"], change["source"]) for change in both] == [("rewind", "journal"), ("delete", "log"), ("reset", "log")]
    table = pair("offsets", "history", "g", "--journal", path).out.splitlines()[1:]
    assert {line.split("\t")[-1] for line in table} == {f"journal of {rewind['broker']}"}
    for option in ("--log", "--journal"):
        assert pair("offsets", "history", option, pair.directory / "nowhere").code == ERROR


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_the_history_of_a_group_is_a_table_at_every_width(shared: Pair, columns: int) -> None:
    """Who, from where to where, and when; where there is little room not what was typed anyway."""
    group = f"wide-{columns}"
    commit(shared, group, **{"orders/0": 7, "orders/1": 8})
    execute(shared, "offsets", "reset", group, "--to-offset", "3")
    arguments = ["offsets", "history", group, "--address", shared.adapter.address]
    lines = at_a_terminal(arguments, {}, columns)[1].splitlines()
    rows = [line.split() for line in lines[1:3]]
    assert [(row[2], "orders/0" in row, "orders/1" in row) for row in rows] == [("reset", True, False), ("reset", False, True)]
    assert all(any(cell.startswith("unix:") for cell in row) for row in rows)
    assert max(map(len, lines[:3])) <= columns
    assert ("known-from" in lines[0].split()) is (columns > 80)


def shown(pair: Pair, *arguments: str | Path) -> list[dict[str, Any]]:
    """The changes that `offsets history` shows."""
    ran = pair("offsets", "history", *arguments, "--json")
    assert ran.code == OK, ran.err
    found: list[dict[str, Any]] = ran.json
    return found


def in_segments(journal: Path) -> int:
    """Rows of changes that were made on purpose, in the closed segments of a journal."""
    tables = [pq.read_table(file, columns=["kind"], partitioning=None) for file in journal.glob("date=*/*/*.parquet")]
    return sum(kind not in {"flush", "heartbeat"} for table in tables for kind in table["kind"].to_pylist())
