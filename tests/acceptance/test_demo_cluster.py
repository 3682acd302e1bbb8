"""`make demo-cluster` on a machine without a terminal, in a short form; what it compares, and what it leaves behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from adapter.model.records import DEFAULT_NAMESPACE, FIRST_EPOCH, OffsetKey
from demo.comparison import Positions, compare
from demo.counting import Total
from demo.raft import exit_code
from demo.raft_display import fault_table, verdict
from demo.raft_load import MOVED, SHARDS, Ledger, commit_of
from demo.raft_state import Fault, Outcome, RaftState
from tests.durability.etcd_cluster import etcd
from tests.durability.machine import require

ROOT = Path(__file__).parents[2]
LIMIT_S = 280  # far above what it takes
KILLED = ("a follower", "the leader", "both members", "meta-", "adapter of")


@pytest.mark.release  # each of these kills, with what is acknowledged compared, is also in tests/durability
def test_the_demo_of_a_cluster_ends_with_nothing_missing(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each part is killed in turn under load (invariants 1 to 4, 8): exit code 0, all reads are complete, nothing is left."""
    directory = tmp_path_factory.mktemp("d")  # short enough for the adapters' sockets
    require("the demo of a cluster", etcd)
    process = subprocess.Popen(
        [sys.executable, "-m", "demo.raft", "--watch", "0.3"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(directory), "COLUMNS": "120"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output + errors
    assert errors == ""
    assert [part for part in KILLED if f"{part}" in _after(output, "killed, and brought back")] == list(KILLED)
    rows = [line.split() for line in _after(output, "acknowledged = in the stores").splitlines() if line.startswith("meta-")]
    assert [row[0] for row in rows] == ["meta-1", "meta-2"]
    for _, keys, missing, above in rows:
        assert int(keys.replace(",", "")) > 600
        assert (missing, above) == ("0", "0")
    assert "Nothing is missing" in output
    assert list(directory.iterdir()) == []
    assert not [command for command in map(_command, psutil.process_iter()) if str(directory) in command]


def _after(output: str, title: str) -> str:
    return output.partition(title)[2]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def key(shard: str) -> OffsetKey:
    """A key of the load."""
    return OffsetKey(DEFAULT_NAMESPACE, "g", shard)


MOVES, ONCE = key("shard-0"), key("once-1")
ACKNOWLEDGED = {MOVES: (1, 7), ONCE: (1, 1)}
LOST = {MOVES: (1, 7)}
BELOW = {MOVES: (1, 6), ONCE: (1, 1)}
ABOVE = {MOVES: (1, 8), ONCE: (1, 1)}


def outcome(**reads: Positions) -> Outcome:
    """The offsets that each Meta Service process reads, compared with stores that have all."""
    return Outcome({name: compare(ACKNOWLEDGED, ACKNOWLEDGED, read) for name, read in reads.items()})


def test_all_metas_reading_all_is_a_success() -> None:
    """Exit code 0, and the verdict has the numbers."""
    found, state = outcome(a=ACKNOWLEDGED, b=ACKNOWLEDGED), RaftState()
    state.ledger.began("g")
    state.ledger.acknowledged("g", {"shard-0": 7, "once-1": 1})
    assert exit_code(found) == 0
    assert verdict(found, state).startswith("Nothing is missing: all 2 acknowledged offsets on 2 keys, of which 1 ")


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (LOST, "MISSING at b: 1 of 2 keys, for example g once-1: acknowledged 1, local 1, remote absent."),
        (BELOW, "MISSING at b: 1 of 2 keys, for example g shard-0: acknowledged 7, local 7, remote 6."),
        (ABOVE, "WRONG at b: 1 keys are above"),
        ({}, "MISSING at b: 2 of 2 keys"),
    ],
)
def test_one_meta_that_reads_something_else_is_a_failure(read: Positions, text: str) -> None:
    """Also when the other one reads all."""
    found = outcome(a=ACKNOWLEDGED, b=read)
    assert exit_code(found) == 1
    assert verdict(found, RaftState()).startswith(text)


def test_nothing_compared_is_no_success() -> None:
    """A comparison without processes or without keys, or no comparison at all, is a failure."""
    assert exit_code(Outcome({})) == 1
    assert exit_code(Outcome({"a": compare({}, {}, {})})) == 1
    assert exit_code(None) == 1
    assert exit_code(None, interrupted=True) == 130


def test_the_ledger_has_the_last_acknowledged_offset_of_each_key() -> None:
    """What Meta Service processes read is compared with it. A commit without a reply is not in it, but counts as waiting."""
    times = iter([0.0, 0.5, 1.0, 1.2, 2.0, 5.0, 6.0, 9.0])
    ledger = Ledger(clock=lambda: next(times))
    for tick in (1, 2):
        ledger.began("g")
        ledger.acknowledged("g", {"shard-0": tick, f"once-{tick}": tick})
    assert ledger.slowest_s == 0.5
    ledger.measure()
    ledger.began("g")
    assert ledger.positions == {key("shard-0"): (FIRST_EPOCH, 2), ONCE: (FIRST_EPOCH, 1), key("once-2"): (FIRST_EPOCH, 2)}
    assert (ledger.commits, ledger.once, ledger.slowest_s, ledger.waiting_s()) == (4, 2, 0.0, 3.0)
    assert ledger.acknowledged("g", {"once-3": 3}) == ledger.slowest_s == 4.0
    assert ledger.waiting_s() == 0.0


def test_each_commit_has_a_key_that_no_later_one_touches() -> None:
    """So that no later commit hides that one was lost; all other keys only move on."""
    newest: dict[str, int] = {}
    for tick in range(1, 2 * SHARDS):
        offsets: Mapping[str, int] = commit_of(tick)
        once = [shard for shard in offsets if not shard.startswith("shard-")]
        assert (len(offsets), len(once)) == (MOVED + 1, 1)
        assert once[0] not in newest
        assert all(offset > newest.get(shard, 0) for shard, offset in offsets.items())
        newest.update(offsets)
    assert sum(shard.startswith("shard-") for shard in newest) == SHARDS


def test_a_counter_goes_on_over_the_restarts_of_its_process() -> None:
    """Save calls and moves are those of all starts, though a new process counts from 0."""
    total = Total()
    assert [total.shown(count) for count in (0, 5, 7, 2, 2, 9, 1)] == [0, 5, 7, 9, 9, 16, 17]


def test_what_each_fault_cost_fits_80_columns() -> None:
    """The longest name, and a minute of waiting, on one line."""
    state = RaftState(faults=[Fault("offsets-1-1, a follower", 59.99, 59.99, 59.99, 59.99)])
    console = Console(width=80, file=StringIO())
    with console.capture() as captured:
        console.print(fault_table(state))
    assert any(line.split()[-2:] == ["59.99", "s"] and "follower" in line for line in captured.get().splitlines())
