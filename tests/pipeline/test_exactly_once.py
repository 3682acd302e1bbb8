"""The lag job's driver is killed with -9 at random times: its tables end up as those of an undisturbed run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import DONE, Switches
from adapter.pipeline.lag import job as lag_job
from adapter.runtime.config import load
from tests.pipeline.segments import commits, journal_table, write_segment

# After its next batch is planned; a batch takes about a second, on a fast machine less: then an earlier kill is tried.
LATEST_KILL_S = 1.5
TRIES = 6
PATIENCE_S = 800.0
BROKERS = ("a", "b/c")
SEGMENTS = 2  # of each broker
TABLES = ("shards", "groups", "rewinds", "rejects")
GROUPS, SHARDS = 4, 3


def make_journal(root: Path) -> None:
    """Segments of commits with one rewind each; the tables must have every rewind once."""
    for broker in BROKERS:
        for number in range(SEGMENTS):
            table = commits(5, GROUPS, SHARDS, first_cycle=number * 5, first_seq=number * 100, namespace=broker)
            last = table.slice(table.num_rows - 1).to_pylist()[0]
            moved = {"kind": "rewind", "epoch": 0, "from_epoch": 0, "from_offset": last["offset"], "offset": last["offset"] - 7}
            table = pa.concat_tables([table, journal_table([last | moved | {"seq": number * 100 + 99}])])
            write_segment(root, table, number, broker=broker)


@contextmanager
def driver(config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The job in its own process group with its JVM; the group is killed at the end."""
    command = [
        sys.executable,
        "-m",
        "adapter.pipeline",
        "lag",
        "--config",
        str(config),
        "--master",
        "local[2]",
        "--available-now",
    ]
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with (
        (config.parent / f"{config.stem}.log").open("ab") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def run_to_the_end(config: Path) -> int:
    """Run the job; returns its exit code."""
    with driver(config) as process:
        return process.wait(PATIENCE_S)


def run_and_kill(config: Path, output: Path, after_s: float) -> bool:
    """Kill the job this long after its next batch is planned; False if it ended before."""
    planned = output / "checkpoint" / "offsets"
    before = set(planned.glob("*"))
    deadline = time.monotonic() + PATIENCE_S
    with driver(config) as process:
        while not set(planned.glob("[0-9]*")) - before:
            if process.poll() is not None:
                return False
            assert time.monotonic() < deadline, "no batch was planned"
            time.sleep(0.01)
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            return True
    return False


def rows_of(output: Path) -> dict[str, list[Any]]:
    """All rows of each table and batch, sorted."""
    found: dict[str, list[Any]] = {}
    for table in TABLES:
        for batch in sorted((output / table).glob("batch=*")):
            rows = [row for file in sorted(batch.glob("*.parquet")) for row in pq.ParquetFile(file).read().to_pylist()]
            found[f"{table}/{batch.name}"] = sorted(rows, key=repr)
    return found


def configured(directory: Path, name: str, journal: Path) -> tuple[Path, Path]:
    """Write job.toml; returns it, and the directory of the tables."""
    output = directory / name
    config = directory / f"{name}.toml"
    told = {"journals": [str(journal)], "output": str(output), "max_files": 2}
    config.write_text("[lag]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in told.items()))
    return config, output


@pytest.mark.timeout(1_800)  # two drivers, each with a JVM; some 40 s on two idle cores
def test_a_job_that_is_killed_at_random_instants_writes_the_tables_of_an_undisturbed_one(
    spark: SparkSession, journal: Path, tmp_path: Path
) -> None:
    """Compared row by row, for all batches of all tables; each rewind is there once. The undisturbed job runs in this process."""
    make_journal(journal)
    calm, calm_output = configured(tmp_path, "calm", journal)
    assert lag_job.run(spark, load(calm, JobConfig), Switches(console=Console(file=StringIO()), available_now=True)) == DONE
    seed = random.randrange(2**32)
    instants = random.Random(seed)
    for number in range(TRIES):
        killed, killed_output = configured(tmp_path, f"killed-{number}", journal)
        if run_and_kill(killed, killed_output, instants.uniform(0, LATEST_KILL_S / 2**number)):
            break
    else:
        raise AssertionError(f"seed {seed}: it always ended before it was killed")
    assert run_to_the_end(killed) == 0, killed.with_suffix(".log").read_text()[-2000:]
    expected, found = rows_of(calm_output), rows_of(killed_output)
    assert found.keys() == expected.keys(), f"seed {seed}"
    assert [name for name in expected if found[name] != expected[name]] == [], f"seed {seed}"
    rewinds = [row for name, rows in found.items() if name.startswith("rewinds/") for row in rows]
    assert len(rewinds) == len({(row["at"], row["broker"]) for row in rewinds}) == len(BROKERS) * SEGMENTS
    assert {row["duplicates"] for row in rewinds} == {7}
