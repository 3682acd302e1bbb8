"""The lag job's history, killed with -9 while it appends: each batch is in its tables once, also in an object store."""

import multiprocessing
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from adapter.pipeline.lag import schemas
from adapter.pipeline.lag.files import BatchInfo, LagFiles
from adapter.pipeline.lag.history import TABLES, storage
from adapter.pipeline.places import Place
from tests.pipeline.history_writer import STREAM, append
from tests.pipeline.object_store import s3_bucket

pytestmark = pytest.mark.timeout(900)
DAY_US = 86_400_000_000
BATCHES_OF_DAY = 3  # then files are compacted and vacuumed
FIRST_US = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000


class Plan(NamedTuple):
    """`delay_s`: the longest from the begin of a batch to the kill, about what a batch takes."""

    batches: int
    kills: int
    delay_s: float


DIRECTORY, OBJECT_STORE = Plan(28, 8, 0.1), Plan(12, 4, 0.6)


@pytest.fixture(params=[DIRECTORY, OBJECT_STORE], ids=["directory", "object store"])
def plan(request: pytest.FixtureRequest) -> Plan:
    """What happens, in the one place or the other."""
    found: Plan = request.param
    return found


@pytest.fixture
def tables(plan: Plan, tmp_path: Path) -> Iterator[Place]:
    """Where the history is."""
    with ExitStack() as stack:
        yield (Place.of(tmp_path) if plan is DIRECTORY else stack.enter_context(s3_bucket())) / "history"


def complete(files: LagFiles, number: int) -> None:
    """A batch with a row in each table."""
    now = FIRST_US + number // BATCHES_OF_DAY * DAY_US
    at = datetime.fromtimestamp(now / 1e6, UTC)
    listed = {}
    for name, schema in (("groups", schemas.GROUPS), ("rewinds", schemas.REWINDS), ("rejects", schemas.REJECTS)):
        place = files.directory(name, number) / "0.parquet"
        place.path.parent.mkdir(parents=True)
        row = {field.name: at if pa.types.is_timestamp(field.type) else None for field in schema}
        pq.write_table(pa.Table.from_pylist([row], schema), place.path)
        listed[name] = [f"{name}/batch={number}/0.parquet"]
    manifest = files.manifest(number)
    manifest.path.parent.mkdir(exist_ok=True)
    manifest.write(BatchInfo(number, rows=1, now=now, settled=now, files=listed).to_json())


class Writer:
    """The process that appends, in one of its lives: a fork of one that has imported what it needs."""

    def __init__(self, files: LagFiles, noted: Path, tables: Place) -> None:
        forks = multiprocessing.get_context("forkserver")
        forks.set_forkserver_preload([append.__module__])
        self._begun, begun = forks.Pipe(duplex=False)
        self._process = forks.Process(target=append, args=(files.output.url, noted, tables.url, begun))
        self._process.start()
        begun.close()

    def begins(self) -> int | None:
        """The next batch that it appends; None if nothing is left."""
        try:
            return int(self._begun.recv())
        except EOFError:
            return None

    def ended(self, *, kill: bool = False) -> int | None:
        """Its exit code."""
        if kill:
            self._process.kill()
        self._process.join()
        self._begun.close()
        return self._process.exitcode


def rows(table: Place) -> Counter[tuple[str, int]]:
    """How many rows there are of each stream and batch."""
    url, options = storage(table)
    found = pa.table(DeltaTable(url, None, options).to_pyarrow_dataset().to_table(["stream", "batch"]))
    return Counter((row["stream"], row["batch"]) for row in found.to_pylist())


def test_a_history_that_is_killed_at_any_instant_has_each_batch_once(plan: Plan, tables: Place, tmp_path: Path) -> None:
    """At instants that are spread over the time that a batch takes, also while files of former days are made one and deleted."""
    files, noted = LagFiles(Place.of(tmp_path / "lag")), tmp_path / "noted"
    for number in range(plan.batches):
        complete(files, number)
    rng, killed = random.Random(20), 0
    while killed < plan.kills:
        writer = Writer(files, noted, tables)
        writer.begins()  # this one takes longer: threads start
        assert writer.begins() is not None, "it ended before it was killed often: give it more batches"
        time.sleep(rng.random() * plan.delay_s)
        killed += writer.ended(kill=True) == -signal.SIGKILL
    assert Writer(files, noted, tables).ended() == 0
    for name in TABLES:
        assert rows(tables / name) == {(STREAM, batch): 1 for batch in range(plan.batches)}, name
