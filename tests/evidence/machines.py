"""The machines of proof: for each, the command of its next slice, and how much of what a finished one has done.

A slice is one command that takes seconds to a minute. Its line, environment included, repeats it.
"""

import json
import random
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args
from xml.etree import ElementTree as ET

from adapter.sidecar.config import WalSync
from tests.durability.etcd_cluster import etcd
from tests.evidence.code import digest
from tests.linearizability.verdicts import go

MODEL_RUNS = 500
WALKS = 200
SOAK_CYCLES = 14  # each kind of crash twice
CUTS = 5  # of one run of an adapter; a slice has a run with each wal_sync
KILLS = 15  # of the leader, in one slice
HISTORY_CYCLES, BROKEN, ARBITRARY = 7, 500, 1_000
PEERS = 1_000
FUZZ_INPUTS = 1_000  # for each target
HTTP2_EXAMPLES = 300
WAL_SYNCS: tuple[WalSync, ...] = get_args(WalSync)
DURABILITY = "tests/durability"
PROCESSES = "adapter.__main__"  # what real processes run; the tests that start them need not import it
POWER_CUTS = (
    "test_synced_acknowledgements_survive_a_power_cut",
    "test_a_power_cut_takes_at_most_what_no_sync_had_covered",
    "test_without_syncs_a_power_cut_is_alarmed",
)

Counts = Mapping[str, float]


class Command(NamedTuple):
    """What to run after `python -m`, with these variables. `seeds`: the first and the last seed that it uses."""

    arguments: tuple[str, ...]
    seeds: tuple[int, int]
    variables: Mapping[str, str] = {}

    def __str__(self) -> str:
        """As it is typed."""
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        return shlex.join([*variables, "python", "-m", *self.arguments])


@dataclass(frozen=True)
class Machine:
    """`next`: the command for a seed. `option`: what makes it write its counts to a file. `counts`: reads that file.

    `missing`: what this computer lacks for it; empty if nothing. `roots`: the modules of its commands, whatever the seed; with
    what they import they are its code.
    """

    name: str
    text: str
    next: Callable[[int], Command]
    option: str
    counts: Callable[[Path], Counts]
    missing: Callable[[], str] = str
    roots: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        """The digest of it as it is now."""
        return digest(self.roots)


def of_json(path: Path) -> Counts:
    """What the command counted itself. Nothing if it ended before."""
    try:
        counts: Counts = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return counts


def of_pytest(each: Callable[[str], Counts]) -> Callable[[Path], Counts]:
    """By the tests that passed: `each` says what a test, by its name without parameters, has done."""

    def counts(path: Path) -> Counts:
        total: Counter[str] = Counter()
        try:
            cases = list(ET.parse(path).iter("testcase"))  # noqa: S314 - our own pytest wrote it
        except (OSError, ET.ParseError):
            return {}
        for case in cases:
            if case.find("skipped") is not None:
                total["tests skipped"] += 1
            elif case.find("failure") is None and case.find("error") is None:
                total["tests passed"] += 1
                total.update({name: int(count) for name, count in each(case.get("name", "").partition("[")[0]).items()})
        return dict(total)

    return counts


def _pytest(seed: int, *arguments: str, **variables: str) -> Command:
    return Command(
        ("pytest", "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", *arguments),
        (seed, seed),
        {"CRASH_SEED": str(seed), **variables},
    )


def _model(seed: int) -> Command:
    arguments = ("tests.model", "--runs", str(MODEL_RUNS), "--processes", "1", "--seed", str(seed))
    return Command(arguments, (seed, seed + MODEL_RUNS - 1), {"PYTHONHASHSEED": "0"})


def _walks(seed: int) -> Command:
    scope = random.Random(seed).choice(("walk-grow", "walk-shrink", "walk-removal"))
    arguments = ("tests.exploration", "--scope", scope, "--walks", str(WALKS), "--seed", str(seed))
    return Command(arguments, (seed, seed), {"PYTHONHASHSEED": "0"})


def _soak(seed: int) -> Command:
    wal_sync = random.Random(seed).choice(WAL_SYNCS)
    return Command(("tests.soak", "--cycles", str(SOAK_CYCLES), "--seed", str(seed), "--wal-sync", wal_sync), (seed, seed))


def _power_cuts(seed: int) -> Command:
    return _pytest(seed, *(f"{DURABILITY}/test_power_cut.py::{test}" for test in POWER_CUTS), POWER_CUTS=str(CUTS))


def _leader_kills(seed: int) -> Command:
    timers = random.Random(seed).choice(("fast", "default"))
    faults = f"{DURABILITY}/test_etcd_faults.py::test_kills_of_the_leader_lose_nothing"
    return _pytest(seed, faults, ETCD_KILLS=str(KILLS), ETCD_TIMERS=timers)


def _etcd(seed: int) -> Command:
    tests = [
        f"{DURABILITY}/test_etcd_partition.py",
        f"{DURABILITY}/test_etcd_faults.py::test_a_frozen_leader_loses_nothing",
        f"{DURABILITY}/test_etcd_faults.py::test_without_a_minority_saves_go_on_and_without_a_majority_adapters_do",
        f"{DURABILITY}/test_etcd_faults.py::test_a_meta_that_dies_between_the_txn_and_its_reply_loses_nothing",
        f"{DURABILITY}/test_etcd_faults.py::test_a_leader_whose_disk_fails_loses_nothing",
    ]
    return _pytest(seed, random.Random(seed).choice(tests))


def _rebalances(seed: int) -> Command:
    tests = [
        f"{DURABILITY}/test_rebalance_faults.py",
        f"{DURABILITY}/test_rebalance.py::test_rebalances_and_metas_that_die_at_every_point_lose_nothing",
    ]
    return _pytest(seed, random.Random(seed).choice(tests))


def _hostile_peers(seed: int) -> Command:
    test = "tests/integration/http2/test_hostile_clients.py::test_peers_that_do_anything_disturb_nobody"
    return _pytest(seed, test, PEERS=str(PEERS))


def _fuzz(seed: int) -> Command:
    return Command(("tests.fuzz.mutations", "--inputs", str(FUZZ_INPUTS), "--seed", str(seed)), (seed, seed))


def _properties(seed: int) -> Command:
    tests = [
        "tests/unit/formats/test_fuzz.py",
        "tests/unit/runtime/serving/http2/test_properties.py",
        "tests/unit/runtime/serving/http2/test_machine.py",
    ]
    chosen = random.Random(seed).choice(tests)
    return _pytest(seed, chosen, f"--hypothesis-seed={seed}", HTTP2_EXAMPLES=str(HTTP2_EXAMPLES))


def _linearizability(seed: int) -> Command:
    numbers = ("--cycles", str(HISTORY_CYCLES), "--broken", str(BROKEN), "--arbitrary", str(ARBITRARY))
    return Command(("tests.linearizability", *numbers, "--seed", str(seed)), (seed, seed))


def _no_go() -> str:
    return "" if go() else "Go is not installed"


def _etcd_of(test: str) -> Counts:
    members = 3
    return {"members cut off": members} if "cut_off" in test else {"faults of members": 1}


def _nothing_more(_: str) -> Counts:
    return {}


MACHINES = {
    machine.name: machine
    for machine in (
        Machine(
            "model",
            "The production code in virtual time with random faults; all invariants after every step (`tests/model`).",
            _model,
            "--counts",
            of_json,
            roots=("tests.model.__main__",),
        ),
        Machine(
            "soak",
            "Real processes, killed under load; what was acknowledged is read again (`tests/soak`). Both gRPC servers, all "
            "three `wal_sync`.",
            _soak,
            "--counts",
            of_json,
            roots=("tests.soak.__main__", PROCESSES),
        ),
        Machine(
            "linearizability",
            "Histories of the soak, and such that are broken on purpose, judged by our checker and by Porcupine "
            "(`tests/linearizability`).",
            _linearizability,
            "--counts",
            of_json,
            _no_go,
            roots=("tests.linearizability.__main__", PROCESSES),
        ),
        Machine(
            "power-cuts",
            "An adapter's ext4 image, copied at some instants under load, each copy started again (`test_power_cut.py`).",
            _power_cuts,
            "--junitxml",
            of_pytest(lambda _: {"power cuts": CUTS}),
            roots=("tests.durability.test_power_cut", PROCESSES),
        ),
        Machine(
            "leader-kills",
            "SIGKILL of etcd's leader under load (`test_etcd_faults.py`).",
            _leader_kills,
            "--junitxml",
            of_pytest(lambda _: {"leader kills": KILLS}),
            etcd,
            roots=("tests.durability.test_etcd_faults", PROCESSES),
        ),
        Machine(
            "etcd",
            "Members of etcd cut off, frozen, without a disk; Meta Services that die (`test_etcd_partition.py`, "
            "`test_etcd_faults.py`).",
            _etcd,
            "--junitxml",
            of_pytest(_etcd_of),
            etcd,
            roots=("tests.durability.test_etcd_partition", "tests.durability.test_etcd_faults", PROCESSES),
        ),
        Machine(
            "rebalances",
            "Raft groups, Meta Services and the rebalance itself fail while offsets move (`test_rebalance_faults.py`, "
            "`test_rebalance.py`).",
            _rebalances,
            "--junitxml",
            of_pytest(_nothing_more),
            etcd,
            roots=("tests.durability.test_rebalance_faults", "tests.durability.test_rebalance", PROCESSES),
        ),
        Machine(
            "walks",
            "Random walks of Meta Services and two rebalances through faults and silent Raft groups (`tests/exploration`).",
            _walks,
            "--counts",
            of_json,
            roots=("tests.exploration.__main__",),
        ),
        Machine(
            "hostile-peers",
            "Peers that say drawn things to the built-in server, right, broken and too much, beside an honest client "
            "(`test_hostile_clients.py`). Earlier slices ran fixed lists of floods and slow peers, whatever the seed.",
            _hostile_peers,
            "--junitxml",
            of_pytest(lambda _: {"hostile peers": PEERS}),
            roots=("tests.integration.http2.test_hostile_clients",),
        ),
        Machine(
            "fuzz",
            "Changed inputs for every parser: files of others, HTTP/2, RPC messages, forms of the console, settings, segments of "
            "journals (`tests/fuzz`).",
            _fuzz,
            "--counts",
            of_json,
            roots=("tests.fuzz.mutations",),
        ),
        Machine(
            "properties",
            "Hypothesis draws files and HTTP/2 sessions and compares with a reference (`test_fuzz.py`, `test_properties.py`, "
            "`test_machine.py`).",
            _properties,
            "--junitxml",
            of_pytest(_nothing_more),
            roots=(
                "tests.unit.formats.test_fuzz",
                "tests.unit.runtime.serving.http2.test_properties",
                "tests.unit.runtime.serving.http2.test_machine",
            ),
        ),
    )
}
