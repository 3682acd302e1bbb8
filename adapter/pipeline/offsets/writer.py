"""Writes rows to the Meta Service by merge, in chunks with several calls in flight. Each row is checked before it is sent.

A merge may be repeated, so failed, retried and duplicated tasks do no harm. Merged rows are never rolled back.
"""

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from adapter.errors import AdapterError, InvalidInputError, RefusedError
from adapter.meta.blocking import MetaCalls
from adapter.model.arrow import as_sized, encode_columns
from adapter.model.codec import unpack_names
from adapter.model.records import MAX_ENTRIES
from adapter.pipeline.offsets.options import WriteOptions
from adapter.pipeline.offsets.rows import bad_rows, completed, refusal, without
from adapter.rpc import meta_pb
from adapter.runtime.durable import files
from adapter.runtime.wording import counted

log = structlog.get_logger(__name__)

MAX_BYTES = 3 * 2**20  # of one call: below gRPC's 4 MiB for a message
ENTRY_BYTES = 4  # the sizes of a key and its record
# Calls of a task. The Meta Service works on one while the next one is encoded. More of them do not finish earlier, and with full
# calls of two tasks they would reach its limit of offsets under way (100,000): it refuses, and the task waits for seconds.
IN_FLIGHT = 2
SAMPLES = 20  # rejected rows that a task and the report list

AGAIN = "Merging is harmless: run the same write again, it repeats what was merged without effect and adds the rest"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The counts of a task, or of all: `applied` rows are stored now; for `superseded` rows a larger value was stored."""

    sent: int = 0
    applied: int = 0
    superseded: int = 0
    rejected: int = 0
    samples: tuple[str, ...] = field(default=())

    def plus(self, other: "Written") -> "Written":
        """The sum of both."""
        return Written(
            self.sent + other.sent,
            self.applied + other.applied,
            self.superseded + other.superseded,
            self.rejected + other.rejected,
            (*self.samples, *other.samples)[:SAMPLES],
        )


_Flight = Future[meta_pb.MergeOffsetDataReply]


class Chunk(NamedTuple):
    """The rows of one call, in key order; keys begin with the cluster."""

    keys: pa.BinaryArray
    records: pa.BinaryArray

    def packed(self) -> meta_pb.PackedRows:
        """The rows as they are sent."""
        keys, key_sizes = as_sized(self.keys)
        records, record_sizes = as_sized(self.records)
        return meta_pb.PackedRows(keys=keys, key_sizes=key_sizes, records=records, record_sizes=record_sizes)


class OffsetsWriter(DataSourceArrowWriter):
    """The writer of `df.write.format("offsets")`. Created once, on the driver; a repeated task sends the same bytes."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # The commit time of rows without one. Taken once: with a later time, a retried task could supersede a reset that was
        # made after its first attempt.
        self._began_ms = time.time_ns() // 1_000_000

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task.

        Raises InvalidInputError for invalid rows before their batch is sent, MetaUnavailableError, RefusedError.
        """
        return _merged(self._options, iterator, self._began_ms)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Write the report: all tasks succeeded."""
        _committed(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Write the report: a task failed for good. Rows that others merged are kept."""
        _aborted(self._options, messages)


class OffsetsStreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("offsets")`, one for all batches of a query.

    A batch that is run again has the same rows, with the same times, so its merge changes nothing: each row counts exactly once.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task of a batch. Raises as that of OffsetsWriter; a row without `committed_at` is invalid."""
        return _merged(self._options, iterator, None)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Write the report of this batch: all tasks succeeded."""
        _committed(self._options, messages, batch=batch_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Write the report of this batch: a task failed for good. Spark runs the batch again when the query is started."""
        _aborted(self._options, messages, batch=batch_id)


def _merged(options: WriteOptions, batches: Iterator[pa.RecordBatch], began_ms: int | None) -> Written:
    task = _Task(options.bad_rows == "skip")
    with closing(MetaCalls(options.meta, options.retry_ms / 1000)) as calls, ThreadPoolExecutor(IN_FLIGHT, "merge") as pool:
        try:
            task.run(chunks(task.checked(completed(batch, began_ms) for batch in batches), options.cluster), calls, pool)
        except AdapterError as error:
            pool.shutdown(cancel_futures=True)
            raise type(error)(f"{error}. This task had merged {counted(task.merged(), 'row')} before. {AGAIN}.") from error
    return task.written


def _committed(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], **batch: int) -> None:
    total = _total(messages)
    log.info("offsets.written", **asdict(total), **batch)
    _report(options, {"state": "committed", "tasks": len(messages), **batch, **asdict(total)})


def _aborted(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], **batch: int) -> None:
    done = [message for message in messages if message is not None]
    total = _total(done)
    advice = f"These are the tasks that finished; others may have merged a part. {AGAIN}."
    log.error("offsets.aborted", **asdict(total), **batch, tasks=len(done), help=advice)
    _report(options, {"state": "aborted", "tasks": len(done), **batch, **asdict(total), "help": advice})


def _report(options: WriteOptions, content: dict[str, Any]) -> None:
    if options.report:
        files.write(str(options.report), (json.dumps(content, indent=1) + "\n").encode())


class _Task:
    """The rows of one task and their counts."""

    def __init__(self, skip_bad: bool) -> None:  # noqa: FBT001 - private
        self._skip_bad = skip_bad
        self.written = Written()
        self._flying: deque[tuple[Chunk, _Flight]] = deque()

    def run(self, wanted: Iterator[Chunk], calls: MetaCalls, pool: ThreadPoolExecutor) -> None:
        """Send chunks, up to IN_FLIGHT at a time."""
        for chunk in wanted:
            if len(self._flying) == IN_FLIGHT:
                self._land()
            self._flying.append((chunk, pool.submit(calls.merge, chunk.packed(), tell=True)))
        while self._flying:
            self._land()

    def merged(self) -> int:
        """The number of rows that are known to be merged, once no call is in flight."""
        landed = (chunk for chunk, flight in self._flying if not flight.cancelled() and not flight.exception())
        return self.written.sent + sum(len(chunk.keys) for chunk in landed)

    def checked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches without invalid rows. Raises InvalidInputError unless they are to be skipped."""
        for batch in batches:
            bad = bad_rows(batch) if batch.num_rows else []
            if bad and not self._skip_bad:
                raise InvalidInputError(
                    f"{counted(len(bad), 'row')} cannot be offsets, nothing of their batch was sent: {refusal(bad)}"
                )
            self.written = self.written.plus(Written(rejected=len(bad), samples=tuple(row.text for row in bad[:SAMPLES])))
            yield without(batch, bad) if bad else batch

    def _land(self) -> None:
        chunk, flight = self._flying.popleft()
        reply = flight.result()
        samples = tuple(_refused(chunk, row) for row in reply.rejected[:SAMPLES])
        self.written = self.written.plus(Written(len(chunk.keys), reply.applied, reply.superseded, len(reply.rejected), samples))
        if samples and not self._skip_bad:
            raise RefusedError(f"the Meta Service refused {counted(len(reply.rejected), 'row')}: {'; '.join(samples)}")


def chunks(batches: Iterator[pa.RecordBatch], cluster: str) -> Iterator[Chunk]:
    """Cut batches into chunks that are as large as a call may be, in order."""
    rest: list[Chunk] = []
    entries, room = MAX_ENTRIES, MAX_BYTES  # that the next chunk still has, beside the rest
    for batch in batches:
        keys, records = encode_columns(batch, cluster)
        ends = np.cumsum(pc.binary_length(keys).to_numpy() + pc.binary_length(records).to_numpy() + ENTRY_BYTES)
        at = before = 0
        while at < len(keys):
            end = min(int(np.searchsorted(ends, before + room, "right")), at + entries)
            if end > at:
                rest.append(Chunk(keys[at:end], records[at:end]))
                entries -= end - at
                room -= int(ends[end - 1]) - before
                before = int(ends[end - 1])
            at = end
            if at < len(keys):
                yield _joined(rest)
                rest, entries, room = [], MAX_ENTRIES, MAX_BYTES
    if rest:
        yield _joined(rest)


def _joined(pieces: Sequence[Chunk]) -> Chunk:
    """One chunk of all of them, in key order: so the Meta Service finds what stands with a few seeks."""
    keys, records = (pa.concat_arrays(columns) for columns in zip(*pieces, strict=True))
    if not pc.all(pc.less(keys[:-1], keys[1:])).as_py():
        order = pc.sort_indices(keys)
        keys, records = keys.take(order), records.take(order)
    return Chunk(keys, records)


def _total(messages: Sequence[WriterCommitMessage | None]) -> Written:
    total = Written()
    for message in messages:
        if isinstance(message, Written):
            total = total.plus(message)
    return total


def _refused(chunk: Chunk, row: meta_pb.MergeOffsetDataReply.Rejected) -> str:
    _, namespace, group, shard = unpack_names(chunk.keys[row.index].as_py())
    return f"namespace {namespace!r}, group {group!r}, shard {shard!r}: {row.message}"
