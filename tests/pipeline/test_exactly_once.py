"""The lag job is killed with -9 at its steps, then its workers: its tables are those of an undisturbed run, to the byte."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from adapter.pipeline.jobs import DONE
from adapter.pipeline.lag.files import STATE, TABLES, LagFiles
from adapter.pipeline.places import Place
from tests.pipeline import faults
from tests.pipeline.jvm import killed_in
from tests.pipeline.segments import commits, journal_table, write_segment

pytestmark = pytest.mark.timeout(1_800)  # up to six drivers, each with a JVM
PATIENCE_S = 800.0
BROKERS = ("a", "b/c")
SEGMENTS = 5  # of each broker: as many batches, so that old ones are deleted
GROUPS, SHARDS = 4, 3
ROWS = len(BROKERS) * SEGMENTS * (5 * GROUPS * SHARDS + 1)
KILLED = -signal.SIGKILL
# Each in a life of its own, which is a JVM and its session.
ALL_STEPS = ("in stage 1", "files written", *faults.IN_DRIVER)
SOME_STEPS = ("after the manifest",)  # a complete batch of which Spark knows nothing


def make_journal(root: Path) -> None:
    """Segments of commits with one rewind each; the tables must have every rewind once."""
    for broker in BROKERS:
        for number in range(SEGMENTS):
            table = commits(5, GROUPS, SHARDS, first_cycle=number * 5, first_seq=number * 100, namespace=broker)
            last = table.slice(table.num_rows - 1).to_pylist()[0]
            moved = {"kind": "rewind", "epoch": 0, "from_epoch": 0, "from_offset": last["offset"], "offset": last["offset"] - 7}
            table = pa.concat_tables([table, journal_table([last | moved | {"seq": number * 100 + 99}])])
            write_segment(root, table, number, broker=broker)


class Run:
    """A job.toml, and the output of its job."""

    def __init__(self, directory: Path, name: str, journal: Path) -> None:
        self.directory = directory / f"{name}-faults"
        self.config = directory / f"{name}.toml"
        self.files = LagFiles(Place.of(directory / name))
        told = {"journals": [str(journal)], "output": str(directory / name), "max_files": len(BROKERS)}
        self.config.write_text("[lag]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in told.items()))

    def start(self, *wanted: tuple[str, str], master: str = "local[2,4]", then: "Run | None" = None) -> int:
        """Run the job in its own process group, with its JVM and these faults, and after it that of `then`; its exit code."""
        command = [sys.executable, "-m", "tests.pipeline.faulty_driver", "lag", "--config", str(self.config)]
        environment = {**os.environ, **killed_in(self.directory), **faults.environment(self.directory, *wanted)}
        if then:
            environment["THEN"] = str(then.config)
        with (
            self.config.with_suffix(".log").open("ab") as log,
            subprocess.Popen(
                [*command, "--master", master, "--available-now"], stdout=log, stderr=log, env=environment, start_new_session=True
            ) as process,
        ):
            try:
                return process.wait(PATIENCE_S)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def log(self) -> str:
        """The end of what it has printed."""
        return self.config.with_suffix(".log").read_text()[-3_000:]

    def contents(self) -> Mapping[str, list[bytes]]:
        """The bytes of the files of each table and batch, and of the newest state, in the order of the buckets."""
        newest = self.files.complete()[-1]
        kept = [(name, batch) for name in ("groups", "rewinds", "rejects") for batch in self.files.complete()]
        return {
            f"{name}/{batch}": [place.read() for place in self.files.table_files(batch, name)]
            for name, batch in [*kept, ("shards", newest - 1), ("shards", newest), (STATE, newest)]
        }

    def unlisted(self) -> set[str]:
        """The files of complete batches that no manifest lists."""
        output = self.files.output.path
        listed = {path for batch in self.files.complete() for paths in self.files.info(batch).files.values() for path in paths}
        there = {str(path.relative_to(output)) for name in (*TABLES, STATE) for path in output.glob(f"{name}/batch=*/*")}
        return there - listed


class Runs(NamedTuple):
    """A run with kills, the steps at which its drivers are killed, and an undisturbed one."""

    killed: Run
    steps: Sequence[str]
    calm: Run


@pytest.fixture(scope="module", params=[SOME_STEPS, pytest.param(ALL_STEPS, marks=pytest.mark.release)], ids=["some", "all"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run of several drivers, all but the last of which are killed, each at another step, and an undisturbed one.

    The last driver reads to the end while its workers are killed. Then it does the undisturbed run.
    """
    directory = tmp_path_factory.mktemp("runs")
    make_journal(directory / "journal")
    killed, calm = (Run(directory, name, directory / "journal") for name in ("killed", "calm"))
    for step in request.param:
        assert killed.start((step, "driver")) == KILLED, (step, killed.log())
    assert killed.start(*((step, "worker") for step in faults.IN_TASKS), then=calm) == DONE, killed.log()
    return Runs(killed, request.param, calm)


def check(run: Run, calm: Run) -> None:
    """Compare all bytes; count all rows and rewinds of the journal; no file is left over."""
    expected, found = calm.contents(), run.contents()
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    assert sum(run.files.info(batch).rows for batch in run.files.complete()) == ROWS
    rewinds: list[dict[str, Any]] = [
        row for batch in run.files.complete() for row in run.files.read(batch, "rewinds").to_pylist()
    ]
    assert len(rewinds) == len({(row["at"], row["broker"]) for row in rewinds}) == len(BROKERS) * SEGMENTS
    assert {row["duplicates"] for row in rewinds} == {7}
    assert run.unlisted() == set()


def test_a_driver_that_is_killed_again_and_again_writes_the_tables_of_an_undisturbed_one(runs: Runs) -> None:
    """At one step in each of its lives; the last one reads to the end."""
    assert faults.happened(runs.killed.directory, "driver") == sorted(runs.steps)
    check(runs.killed, runs.calm)


def test_tasks_whose_workers_are_killed_are_repeated(runs: Runs) -> None:
    """While they read, while they evaluate, and with half of their files written; what they wrote before counts for nothing."""
    assert faults.happened(runs.killed.directory, "worker") == sorted(faults.IN_TASKS)
    check(runs.killed, runs.calm)
