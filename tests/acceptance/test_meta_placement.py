"""What a person sees of the placement of leaders."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from rich.live import Live

from adapter.cli.meta.placement import _Lines, _LiveTable, as_dict, table
from adapter.errors import MetaUnavailableError
from adapter.metaservice.etcd.leader_placement import ClusterState, Move, RaftGroup
from adapter.metaservice.etcd.lease import LeaseTakenError
from tests.unit.metaservice.etcd.raft_groups import COMMITTED, member, raft_group, situation


def text_of(what: ClusterState) -> list[str]:
    """The rows of the table, each as its cells."""
    console = Console(file=StringIO(), width=200)
    console.print(table(what))
    assert isinstance(console.file, StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return ["|".join(cell.strip() for cell in line.split("   ") if cell.strip()) for line in lines[2:] if line]


def mixed() -> ClusterState:
    """Members in every state that there is."""
    behind = member("offsets-1", "n1", "n0", applied=COMMITTED - 7_000, version="3.5.30")
    group = RaftGroup(
        "offsets-1",
        (
            member("offsets-1", "n0", "n0", db_bytes=3 * 2**20, version="3.6.14"),
            behind,
            member("offsets-1", "n2", "n0", learner=True, version="3.6.14", problem="alarm"),
            replace(behind, node="n3", endpoint="offsets-1.n3", reachable=False, problem="no answer"),
        ),
    )
    return ClusterState(raft_group("metadata", "n0"), (group, raft_group("offsets-2", ""), raft_group("offsets-3", "n1")))


def test_a_table_tells_of_every_group_and_of_members_that_are_not_well() -> None:
    """The leader, its node, the size, the version and whether it is where it should be."""
    metadata, first, second, third = text_of(mixed())
    assert metadata == "metadata|n0|metadata.n0|3/3|0.0 MiB|good"
    assert first.startswith("offsets-1|n0|offsets-1.n0|1/4, n1 behind by 7,000, n2 learner, n3 unreachable, alarm|3.0 MiB|")
    assert first.endswith("|3.5.30, 3.6.14|beside metadata")
    assert second == "offsets-2|unknown|0/3, n0 without a leader, n1 without a leader, n2 without a leader|0.0 MiB|no leader"
    assert third == "offsets-3|n1|offsets-3.n1|3/3|0.0 MiB|good"


def test_a_leader_that_makes_it_uneven_is_told() -> None:
    """Apart it is, and not as it should be."""
    assert [row.rpartition("|")[2] for row in text_of(situation("n0", "n1", "n1"))] == ["good", "uneven", "good"]


def test_a_script_gets_every_member() -> None:
    """With its state, and why it is not well."""
    told = as_dict(mixed())
    assert (told["good"], told["apart"], len(told["problems"])) == (False, False, 2)
    found = told["raft_groups"][1]
    assert found["leader"] == {"node": "n0", "endpoint": "offsets-1.n0"}
    assert [(one["state"], one["behind"], one["problem"]) for one in found["members"]] == [
        ("leader", 0, ""),
        ("behind", 7_000, ""),
        ("learner", 0, "alarm"),
        ("unreachable", None, "no answer"),
    ]
    assert told["raft_groups"][2]["leader"] is None


def test_lines_tell_each_change_of_turns_once(capsys: pytest.CaptureFixture[str]) -> None:
    """And each move, with what came of it."""
    lines = _Lines()
    for error in (None, None, LeaseTakenError("node2:7"), LeaseTakenError("node2:7"), MetaUnavailableError("no answer")):
        lines.lease_changed(error)
    move = Move("offsets-1", member("offsets-1", "n0", "n0"), member("offsets-1", "n1", "n0"))
    lines.moved(move, "")
    lines.moved(move, "no answer")
    assert capsys.readouterr().out.splitlines() == [
        "balancing",
        "node2:7 balances now; this one stands by",
        "not balancing: no answer",
        "offsets-1: leader n0 -> n1 (offsets-1.n1)",
        "offsets-1: leader n0 -> n1 (offsets-1.n1) failed: no answer",
    ]


def test_a_live_table_has_what_is_wrong_and_what_happened_below() -> None:
    """And how long a leader stays that would be moved."""
    console = Console(file=StringIO(), width=200, force_terminal=True)
    with Live(console=console, auto_refresh=False) as live:
        shown = _LiveTable(live)
        shown.lease_changed(None)
        shown.looked(situation("n0", "n0"), {"offsets-1": 12_345})
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "offsets-1: its leader is on n0, as the metadata leader; can go to n1" in text
    assert "offsets-1: stays 12 s longer, because it was moved lately (etcd.placement.cooldown_ms)" in text
    assert " balancing" in text
