"""The job `reconcile` with snapshot files and a Meta Service: what it writes, merges, reads back and refuses."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import grpc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from adapter.cli.files.snapshot_file import SnapshotFile
from adapter.model.codec import decode_key, decode_record, encode_key, encode_record
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import JobError, Switches
from adapter.pipeline.reconcile import job as reconcile_job
from adapter.rpc import meta_grpc, meta_pb, offsets_pb
from adapter.runtime.settings.config import parse
from adapter.testing.processes import ServiceProcess, ended, meta_process
from tests.pipeline.bulk_meta import BulkMeta, serving

Records = Mapping[str, OffsetRecord]
RESET = OffsetRecord(2 << 32, 1, committed_at_ms=9)


def key(shard: str) -> OffsetKey:
    """A key of which only the shard matters."""
    return OffsetKey("n", "g", shard)


def snapshot(path: Path, broker: str, records: Records, taken_at_ms: int = 5) -> Path:
    """A file as `offset-adapter snapshot` writes it; write counters are 1, 2, ..., and only the first is flushed."""
    head = offsets_pb.SnapshotOffsetsReply.Head(taken_at_ms=taken_at_ms, records=len(records), flushed_seq=1, broker=broker)
    with path.open("wb") as raw, SnapshotFile(raw, head) as file:
        values = [encode_record(record, seq) for seq, record in enumerate(records.values(), start=1)]
        file.add([encode_key(key(shard)) for shard in records], values)
    return path


def merge(address: str, records: Records) -> None:
    """Merge these records into the Meta Service."""
    keys, values = [encode_key(key(shard)) for shard in records], [encode_record(record) for record in records.values()]
    with grpc.insecure_channel(address) as channel:
        request = meta_pb.MergeOffsetDataRequest(cluster_name="default", keys=keys, records=values)
        meta_grpc.MetaServiceServiceStub(channel).MergeOffsetData(request)


def standing(address: str) -> dict[str, OffsetRecord]:
    """The record of each shard in the Meta Service."""
    with grpc.insecure_channel(address) as channel:
        request = meta_pb.ScanOffsetDataRequest(cluster_name="default", page_size=1_000)
        page = meta_grpc.MetaServiceServiceStub(channel).ScanOffsetData(request)
    return {decode_key(name).shard: decode_record(value) for name, value in zip(page.keys, page.records, strict=True)}


@dataclass(frozen=True)
class Interrupted(Switches):
    """Does something at the beginning of a step, to simulate concurrent changes."""

    meanwhile: Mapping[str, Callable[[], None]] = field(default_factory=dict)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print the name of the step, and run what the test wants to happen then."""
        self.tell(text)
        if text in self.meanwhile:
            self.meanwhile[text]()
        yield


class Job:
    """Runs `reconcile` in a directory."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self.snapshots = directory / "snapshots [x]"  # Spark takes brackets for a pattern
        self.snapshots.mkdir()
        self.output = directory / "out"
        self.said = ""

    def __call__(self, address: str, meanwhile: Mapping[str, Callable[[], None]] | None = None, **switches: bool) -> int:
        """Run it; returns the exit code."""
        section = {"snapshots": [str(self.snapshots)], "output": str(self.output)}
        config = parse({"meta": {"endpoints": [address]}, "reconcile": section}, JobConfig, source="test")
        said = StringIO()
        console = Console(file=said, width=200)
        try:
            return reconcile_job.run(self._spark, config, Interrupted(**switches, console=console, meanwhile=meanwhile or {}))
        finally:
            self.said = said.getvalue()

    def table(self, name: str) -> dict[str, dict[str, Any]]:
        """The row of each shard in a table."""
        return {row["shard"]: row for row in pq.read_table(self.output / name).to_pylist()}


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    """A job with an empty directory for snapshots."""
    return Job(spark, tmp_path)


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A real Meta Service."""
    service = meta_process(tmp_path)
    with ended(service):
        service.start()
        yield service


def live(epoch: int, offset: int, metadata: str = "") -> OffsetRecord:
    """A record with an offset."""
    return OffsetRecord(epoch, offset, committed_at_ms=1_700_000_000_000, metadata=metadata, topic="t", partition=3)


def test_the_meta_service_is_repaired_and_nothing_goes_back_meanwhile(job: Job, meta: ServiceProcess) -> None:
    """Two snapshots, one partly stale; during the merge one key gets a commit and another one a reset."""
    tombstone = OffsetRecord(1 << 32, 0, live=False, committed_at_ms=1_700_000_000_000)
    before = {"equal": live(1, 5), "behind": live(1, 5), "ahead": live(1, 9), "moved": live(1, 5), "deleted": live(1, 5)}
    merge(meta.address, {**before, "reset": live(1, 5), "rewound": live(2, 3)})
    here = {"equal": live(1, 5), "behind": live(1, 7, "m"), "ahead": live(1, 7), "moved": live(1, 7), "reset": live(1, 7)}
    snapshot(job.snapshots / "a%2Fb-5.parquet", "a/b", {**here, "rewound": live(1, 9)})
    snapshot(job.snapshots / "c-5.parquet", "c", {"missing": live(0, 7), "behind": live(1, 6), "deleted": tombstone})
    snapshot(job.snapshots / "c-4.parquet", "c", {"equal": live(1, 99)}, taken_at_ms=4)

    assert job(meta.address, dry_run=True) == 0
    assert not job.output.exists()
    assert job(meta.address) == 0
    differences = job.table("differences")
    assert {shard: row["kind"] for shard, row in differences.items()} == {
        "missing": "missing", "behind": "behind", "moved": "behind", "reset": "behind", "deleted": "behind", "ahead": "ahead",
        "rewound": "epoch_conflict",
    }  # fmt: skip
    assert (differences["behind"]["broker"], differences["behind"]["brokers"]) == ("a/b", ["a/b", "c"])
    plan = job.table("plan")
    assert plan.keys() == {"missing", "behind", "moved", "reset", "deleted"}
    assert standing(meta.address)["behind"].offset == 5
    for text in ("c-4.parquet: not read, there is a newer snapshot of c", "epoch_conflict", "rewound"):
        assert text in job.said

    goes_on = {"moved": live(1, 50), "reset": RESET}
    assert job(meta.address, {"merging the plan into the Meta Service": lambda: merge(meta.address, goes_on)}, apply=True) == 0
    found = standing(meta.address)
    assert {shard: record for shard, record in found.items() if shard in plan} == {
        **goes_on, "missing": live(1, 7), "behind": live(1, 7, "m"), "deleted": tombstone,
    }  # fmt: skip
    assert (found["ahead"], found["rewound"]) == (live(1, 9), live(2, 3))
    applied = job.table("applied")
    assert (applied.keys(), {row["below"] for row in applied.values()}) == (plan.keys(), {False})
    assert "5 offsets merged, 0 of them below the plan" in job.said

    assert job(meta.address) == 0
    assert job.table("plan") == {}
    assert not (job.output / "applied").exists(), "it belongs to another plan"


def test_what_is_below_the_plan_after_the_merge_is_a_failure(job: Job) -> None:
    """A Meta Service that acknowledges without storing: each such key is shown."""
    meta = BulkMeta()
    meta.records = {key("behind"): live(1, 5)}
    snapshot(job.snapshots / "a.parquet", "a", {"behind": live(1, 7), "missing": live(1, 7)})

    def forget() -> None:
        meta.records = {key("behind"): live(1, 5)}

    with serving(meta) as address:
        assert job(address, {"reading back": forget}, apply=True) == 1
    assert "2 offsets merged, 2 of them below the plan" in job.said
    assert [row["below"] for row in job.table("applied").values()] == [True, True]


def test_snapshots_that_cannot_be_read_do_not_hide_the_others(job: Job) -> None:
    """They are in the table of differences, and set the exit code; equal records are no difference."""
    meta = BulkMeta()
    meta.records = {key("equal"): live(1, 5)}
    snapshot(job.snapshots / "a.parquet", "a", {"equal": live(1, 5)})
    (job.snapshots / "torn.parquet").write_bytes(b"PAR1")
    with serving(meta) as address:
        assert job(address) == 3
        (row,) = pq.read_table(job.output / "differences").to_pylist()
        assert (row["kind"], row["planned"]) == ("unreadable", False)
        assert row["problem"].startswith(f"{job.snapshots / 'torn.parquet'}: is torn or no Parquet file")
        assert "torn.parquet: is torn" in job.said
        (job.snapshots / "torn.parquet").unlink()
        assert job(address, dry_run=True) == 0
        assert "no differences: the Meta Service has all that the adapters have" in job.said


def test_a_file_that_is_damaged_behind_its_footer_stops_the_job_by_its_name(job: Job) -> None:
    """Spark finds the damage only when it reads the rows."""
    path = snapshot(job.snapshots / "a.parquet", "a", {f"{number}": live(1, number) for number in range(500)})
    data = bytearray(path.read_bytes())
    data[4:2_000] = bytes(1_996)
    path.write_bytes(data)
    with serving(BulkMeta()) as address, pytest.raises(JobError, match=r"a\.parquet: is damaged behind its footer"):
        job(address)
