"""The writer as Spark's tasks use it: chunks, bad rows, and that repeated, concurrent or partial writes change nothing."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest

from adapter.errors import InvalidInputError, MetaUnavailableError, RefusedError
from adapter.meta.blocking import MetaCalls
from adapter.metaservice.config import LimitsSection
from adapter.model.arrow import decode_packed
from adapter.model.records import MAX_ENTRIES, OffsetKey, OffsetRecord
from adapter.pipeline.offsets import writer as source_writer
from adapter.pipeline.offsets.options import WriteOptions, parse_options
from adapter.pipeline.offsets.rows import completed
from adapter.pipeline.offsets.writer import IN_FLIGHT, MAX_BYTES, SAMPLES, Chunk, OffsetsWriter, Written, _Task, chunks
from adapter.rpc import meta_pb
from adapter.testing.processes import ServiceProcess, ended, meta_process
from tests.pipeline.bulk_meta import BulkMeta, answer_lost, never_came, no_fault, serving
from tests.unit.helpers import key, record

ROWS = 100  # of a batch
ENTRIES = 2 * ROWS  # of a call; in life 20,000


@pytest.fixture(autouse=True)
def small_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make calls small, so that few rows need many calls."""
    monkeypatch.setattr(source_writer, "MAX_ENTRIES", ENTRIES)


def batch_of(shards: Iterator[int] | range, offset: int = 7, **columns: Any) -> pa.RecordBatch:
    """Rows of the group g."""
    numbers = list(shards)
    names = {"namespace": "default", "group": "g"}
    arrays = {name: pa.repeat(pa.scalar(value), len(numbers)) for name, value in names.items()}
    arrays["shard"] = pa.array([f"s{number}" for number in numbers])
    arrays["offset"] = pa.array([offset + number for number in numbers], pa.int64())
    for name, value in columns.items():
        arrays[name] = pa.repeat(pa.scalar(value), len(numbers))
    return pa.RecordBatch.from_pydict(arrays)


def batches_of(count: int) -> list[pa.RecordBatch]:
    """As many batches, each with shards of its own."""
    return [batch_of(range(at * ROWS, (at + 1) * ROWS)) for at in range(count)]


def expected(count: int) -> dict[OffsetKey, tuple[int, int]]:
    """The records after `batches_of(count)`."""
    return {key(f"s{number}"): (1, 7 + number) for number in range(count * ROWS)}


def standing(meta: BulkMeta) -> dict[OffsetKey, tuple[int, int]]:
    """(epoch, offset) of all stored keys."""
    return {found: value.position for found, value in meta.records.items()}


def writer_to(address: str, **options: str) -> OffsetsWriter:
    """A writer with long time limits by default."""
    return OffsetsWriter(parse_options(WriteOptions, {"endpoints": address, "retryMs": "60000", **options}))


def test_rows_are_merged_in_full_chunks_and_counted() -> None:
    """Batches are joined, because one entry costs the same sync as 20,000."""
    meta = BulkMeta()
    with serving(meta) as address:
        written = writer_to(address).write(iter(batches_of(5)))
    assert written == Written(sent=500, applied=500)
    assert sorted(meta.merges) == [100, 200, 200]
    assert standing(meta) == expected(5)


def test_a_chunk_stays_below_the_limit_of_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if every entry is as large as possible; no row is lost or reordered between chunks."""
    monkeypatch.setattr(source_writer, "MAX_ENTRIES", MAX_ENTRIES)
    edges = [0, 700, 2700, 3400]
    batches = [batch_of(range(start, end), metadata="m" * 4096) for start, end in pairwise(edges)]
    meta = BulkMeta()
    with serving(meta) as address:
        written = writer_to(address).write(iter(batches))
    assert written == Written(sent=3400, applied=3400)
    assert max(meta.bytes) <= MAX_BYTES + 1024
    assert sorted(meta.merges)[1:] == [max(meta.merges)] * 4  # all but the last one are full
    assert {value.metadata for value in meta.records.values()} == {"m" * 4096}


def test_chunks_hold_all_rows_in_their_order() -> None:
    """For batches of any size."""
    whole = writer_to("127.0.0.1:1")
    sizes = [0, 1, 199, 1, 401, 0, 5]
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    batches = [batch_of(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
    task = whole_task(whole, batches)
    made = list(chunks(task, "c"))
    assert [len(chunk.keys) for chunk in made] == [ENTRIES, ENTRIES, ENTRIES, 7]
    shards = [[row["shard"] for row in rows_of(chunk)] for chunk in made]
    names = [f"s{number}" for number in range(sum(sizes))]
    assert [sorted(some) for some in shards] == [sorted(names[at : at + ENTRIES]) for at in range(0, len(names), ENTRIES)]


def test_the_rows_of_a_chunk_are_in_key_order() -> None:
    """So that the Meta Service need not look each of them up. Rows of one key stay in their order, with all their columns."""
    batches = [batch_of(iter([3, 1, 2])), batch_of(iter([1, 4]), offset=90)]
    [chunk] = chunks((completed(batch, 1) for batch in batches), "c")
    assert [(row["shard"], row["offset"]) for row in rows_of(chunk)] == [("s1", 8), ("s1", 91), ("s2", 9), ("s3", 10), ("s4", 94)]


def rows_of(chunk: Chunk) -> list[dict[str, Any]]:
    """What is sent."""
    rows = chunk.packed()
    found: list[dict[str, Any]] = decode_packed(rows.keys, rows.key_sizes, rows.records, rows.record_sizes).to_pylist()
    return found


def whole_task(writer: OffsetsWriter, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches with the end that a completed task has."""
    return (completed(batch, writer._began_ms) for batch in batches)


def test_a_bad_row_fails_the_task_before_its_batch_is_sent() -> None:
    """The error has key, field, and what was merged before."""
    bad = batch_of(range(ROWS, 2 * ROWS)).set_column(3, "offset", pa.array([*range(ROWS - 2), None, -4], pa.int64()))
    meta = BulkMeta()
    with serving(meta) as address, pytest.raises(InvalidInputError) as caught:
        writer_to(address).write(iter([*batches_of(1), bad, *batches_of(1)]))
    assert "2 rows cannot be offsets, nothing of their batch was sent" in str(caught.value)
    assert "namespace 'default', group 'g', shard 's198': offset is null" in str(caught.value)
    assert "shard 's199': offset is -4" in str(caught.value)
    assert not {key(f"s{number}") for number in range(ROWS, 2 * ROWS)} & meta.records.keys()


def test_bad_rows_are_left_out_and_counted_when_asked_for() -> None:
    """A limited number of them is named."""
    bad = batch_of(range(100), epoch=-1)
    meta = BulkMeta()
    with serving(meta) as address:
        written = writer_to(address, badRows="skip").write(iter([bad, *batches_of(1)]))
    assert (written.sent, written.applied, written.rejected) == (ROWS, ROWS, 100)
    assert len(written.samples) == SAMPLES
    assert written.samples[0] == "namespace 'default', group 'g', shard 's0': epoch is -1"
    assert standing(meta) == expected(1)


def test_what_the_server_refuses_is_named() -> None:
    """A server with other rules refuses a row; the rest of the call is merged."""
    meta = BulkMeta()
    meta.refuses = {"s3"}
    with serving(meta) as address:
        with pytest.raises(RefusedError, match="refused 1 row: namespace 'default', group 'g', shard 's3': refused by the test"):
            writer_to(address).write(iter(batches_of(1)))
        written = writer_to(address, badRows="skip").write(iter(batches_of(1)))
    assert (written.sent, written.applied, written.rejected) == (ROWS, ROWS - 1, 1)


def test_a_task_that_is_run_again_changes_nothing() -> None:
    """Not even the time of rows without a commit time; stored rows count as applied."""
    meta = BulkMeta()
    with serving(meta) as address:
        writer = writer_to(address)
        writer.write(iter(batches_of(2)))
        first = dict(meta.records)
        assert writer.write(iter(batches_of(2))) == Written(sent=200, applied=200)
    assert meta.records == first
    assert {value.committed_at_ms for value in first.values()} == {writer._began_ms}


def test_a_task_that_is_run_again_after_a_reset_does_not_undo_it() -> None:
    """Its rows keep the time of the first run, which is before the reset."""
    meta = BulkMeta()
    with serving(meta) as address:
        writer = writer_to(address)
        writer.write(iter([batch_of(range(1), offset=100)]))
        meta.records[key("s0")] = OffsetRecord(1 << 32, 5, committed_at_ms=writer._began_ms + 1)
        assert writer.write(iter([batch_of(range(1), offset=100)])) == Written(sent=1, superseded=1)
    assert meta.records[key("s0")].position == (1 << 32, 5)


class LazyPool:
    """Runs what is submitted only when its result is asked for."""

    def __init__(self) -> None:
        self.flying = self.most = 0

    def submit(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Keep the call for later."""
        self.flying += 1
        self.most = max(self.most, self.flying)

        def result() -> Any:
            self.flying -= 1
            return call(*arguments, **named)

        return SimpleNamespace(result=result)


def test_only_a_few_calls_are_in_flight_at_a_time() -> None:
    """A task keeps only a few chunks in memory, however slow the Meta Service is."""
    pool: Any = LazyPool()
    calls: Any = SimpleNamespace(merge=lambda rows, **_: meta_pb.MergeOffsetDataReply(applied=len(rows.key_sizes) // 2))
    task = _Task(skip_bad=False)
    task.run(chunks((completed(batch, 1) for batch in batches_of(30)), "c"), calls, pool)
    assert task.written == Written(sent=3000, applied=3000)
    assert (pool.most, pool.flying) == (IN_FLIGHT, 0)


def test_two_tasks_stay_below_the_limit_of_a_meta_service() -> None:
    """With full calls. Beyond the limit a call is refused, and its task waits for seconds."""
    assert LimitsSection().offsets > 2 * IN_FLIGHT * MAX_ENTRIES


def test_larger_offsets_stand_and_are_counted_as_superseding() -> None:
    """A merge never lowers an offset."""
    meta = BulkMeta()
    meta.records[key("s1")] = record(1_000_000)
    with serving(meta) as address:
        assert writer_to(address).write(iter([batch_of(range(3))])) == Written(sent=3, applied=2, superseded=1)
    assert meta.records[key("s1")].offset == 1_000_000


@pytest.mark.parametrize("fault", [answer_lost, never_came])
def test_lost_answers_and_requests_lose_no_row(fault: Any) -> None:
    """Only the calls without a reply are repeated."""
    meta = BulkMeta()
    meta.faults.extend([fault] * 4)
    with serving(meta) as address:
        assert writer_to(address).write(iter(batches_of(6))) == Written(sent=600, applied=600)
    assert sum(meta.merges) == 600 + 4 * ENTRIES
    assert standing(meta) == expected(6)


def test_speculative_duplicates_of_a_task_write_what_one_writes() -> None:
    """Two attempts at the same time, whose chunks interleave."""
    meta = BulkMeta()
    found: list[Written] = []
    with serving(meta) as address:
        writer = writer_to(address)
        tasks = [threading.Thread(target=lambda: found.append(writer.write(iter(batches_of(4))))) for _ in range(2)]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()
    assert found == [Written(sent=400, applied=400)] * 2
    assert standing(meta) == expected(4)


def test_a_task_that_dies_half_way_is_completed_by_its_next_attempt() -> None:
    """The iterator ends as when the process that feeds it is killed."""
    meta = BulkMeta()

    def torn() -> Iterator[pa.RecordBatch]:
        yield from batches_of(IN_FLIGHT * 2 + 2)
        raise EOFError

    with serving(meta) as address:
        writer = writer_to(address)
        with pytest.raises(EOFError):
            writer.write(torn())
        assert meta.merges  # a part was sent
        written = writer.write(iter(batches_of(9)))
    assert written == Written(sent=900, applied=900)
    assert standing(meta) == expected(9)


def test_a_meta_service_that_stays_away_ends_the_task_with_what_was_merged() -> None:
    """All that the error counts is stored, and the next attempt adds the rest."""
    meta = BulkMeta()

    def goes(_merge: Callable[[], None], context: grpc.ServicerContext) -> None:
        meta.down = True
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    meta.faults.extend([no_fault, goes])
    with serving(meta) as address:
        with pytest.raises(MetaUnavailableError, match=r"no Meta Service answered, tried for 0\.2 s") as caught:
            writer_to(address, retryMs="200").write(iter(batches_of(10)))
        assert f"This task had merged {len(meta.records):,} rows before. Merging is harmless: run the same write again" in str(
            caught.value
        )
        assert len(meta.records) == ENTRIES
        meta.down = False
        assert writer_to(address).write(iter(batches_of(10))).applied == 1000
    assert standing(meta) == expected(10)


def test_a_meta_service_that_is_killed_and_started_again_mid_write_gets_every_row(tmp_path: Path) -> None:
    """A real process; the writer retries until it is back."""
    service = meta_process(tmp_path)
    starting: list[threading.Thread] = []

    def interrupted() -> Iterator[pa.RecordBatch]:
        for at, batch in enumerate(batches_of(9)):
            if at == 2 * IN_FLIGHT:  # calls are in flight
                service.kill()
                starting.append(threading.Thread(target=service.start))
                starting[0].start()
            yield batch

    with ended(service):
        service.start()
        written = writer_to(service.address).write(interrupted())
        starting[0].join()
        assert (written.sent, written.applied) == (900, 900)
        assert everything(service) == expected(9)


def everything(service: ServiceProcess) -> dict[OffsetKey, tuple[int, int]]:
    """All records of a real Meta Service."""
    rows: list[dict[str, Any]] = []
    with closing(MetaCalls(parse_options(WriteOptions, {"endpoints": service.address}).meta)) as calls:
        after = b""
        while True:
            page = calls.scan("", "", 20_000, after, b"")
            packed = page.packed
            rows += decode_packed(packed.keys, packed.key_sizes, packed.records, packed.record_sizes).to_pylist()
            after = page.next_page_token
            if not after:
                return {OffsetKey(row["namespace"], row["group"], row["shard"]): (row["epoch"], row["offset"]) for row in rows}


def test_the_report_tells_what_all_tasks_did(tmp_path: Path) -> None:
    """The sum over all tasks; the report is written atomically."""
    report = tmp_path / "report.json"
    writer = writer_to("127.0.0.1:1", report=str(report))
    samples = tuple(f"row {at}" for at in range(SAMPLES))
    writer.commit([Written(5, 3, 1, 1, samples), Written(7, 7, 0, 0), Written(2, 0, 0, 2, ("later",))])
    assert json.loads(report.read_text()) == {
        "state": "committed",
        "tasks": 3,
        "sent": 14,
        "applied": 10,
        "superseded": 1,
        "rejected": 3,
        "samples": list(samples),
    }
    writer.abort([None, Written(5, 5, 0, 0)])
    aborted = json.loads(report.read_text())
    assert (aborted["state"], aborted["tasks"], aborted["sent"]) == ("aborted", 1, 5)
    assert "run the same write again" in aborted["help"]
