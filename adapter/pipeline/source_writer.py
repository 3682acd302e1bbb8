"""Writes rows into the Meta Service by merge: in chunks, several in flight, each row checked before it is sent.

A merge may be repeated: what a failed, retried or duplicated task sent before changes nothing. Nothing is ever taken back.
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
import structlog
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from adapter.errors import AdapterError, InvalidInputError, RefusedError
from adapter.meta.blocking import MetaCalls
from adapter.model.arrow import encode_records
from adapter.model.codec import decode_key
from adapter.pipeline.source_options import WriteOptions
from adapter.pipeline.source_rows import bad_rows, completed, refusal, without
from adapter.rpc import meta_pb
from adapter.runtime import files
from adapter.runtime.wording import counted

log = structlog.get_logger(__name__)

# Of one call: below gRPC's limit of 4 MiB for a message, and the Meta Service's for entries.
MAX_BYTES = 3 * 2**20
MAX_ENTRIES = 20_000
ENTRY_BYTES = 8  # of protobuf around a key and its record
IN_FLIGHT = 3
SAMPLES = 20  # rejected rows that a task, and the report, tell by name

AGAIN = "Merging is harmless: run the same write again, it repeats what was merged without effect and adds the rest"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task, or all of them, wrote: `applied` stands now, above `superseded` a larger value stands."""

    sent: int = 0
    applied: int = 0
    superseded: int = 0
    rejected: int = 0
    samples: tuple[str, ...] = field(default=())

    def plus(self, other: "Written") -> "Written":
        """Both together."""
        return Written(
            self.sent + other.sent,
            self.applied + other.applied,
            self.superseded + other.superseded,
            self.rejected + other.rejected,
            (*self.samples, *other.samples)[:SAMPLES],
        )


_Flight = Future[meta_pb.MergeOffsetDataReply]


class Chunk(NamedTuple):
    """The entries of one call."""

    keys: list[bytes]
    records: list[bytes]


class OffsetsWriter(DataSourceArrowWriter):
    """`df.write.format("offsets")`. Made once for a write, on the driver; a task that runs again sends the same bytes."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # Of rows that do not say when they were committed. Taken once: with a time of its own a retried task could pass what
        # was reset after its first attempt.
        self._began_ms = time.time_ns() // 1_000_000

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One task. Raises InvalidInputError for bad rows, before their batch is sent; MetaUnavailableError; RefusedError."""
        task = _Task(self._options.bad_rows == "skip")
        with (
            closing(MetaCalls(self._options.meta, self._options.retry_ms / 1000)) as calls,
            ThreadPoolExecutor(IN_FLIGHT, "merge") as pool,
        ):
            try:
                task.run(chunks(task.checked(completed(batch, self._began_ms) for batch in iterator)), calls, pool)
            except AdapterError as error:
                pool.shutdown(cancel_futures=True)
                raise type(error)(f"{error}. This task had merged {counted(task.merged(), 'row')} before. {AGAIN}.") from error
        return task.written

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks succeeded: their counts, added up."""
        total = _total(messages)
        log.info("offsets.written", **asdict(total))
        self._report({"state": "committed", "tasks": len(messages), **asdict(total)})

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task failed for good. What the others merged stays."""
        done = [message for message in messages if message is not None]
        total = _total(done)
        advice = f"These are the tasks that finished; others may have merged a part. {AGAIN}."
        log.error("offsets.aborted", **asdict(total), tasks=len(done), help=advice)
        self._report({"state": "aborted", "tasks": len(done), **asdict(total), "help": advice})

    def _report(self, content: dict[str, Any]) -> None:
        if self._options.report:
            files.write(str(self._options.report), (json.dumps(content, indent=1) + "\n").encode())


class _Task:
    """One task's rows, and what became of them."""

    def __init__(self, skip_bad: bool) -> None:  # noqa: FBT001 - private
        self._skip_bad = skip_bad
        self.written = Written()
        self._flying: deque[tuple[Chunk, _Flight]] = deque()

    def run(self, wanted: Iterator[Chunk], calls: MetaCalls, pool: ThreadPoolExecutor) -> None:
        """Send chunks, a few at a time."""
        for chunk in wanted:
            if len(self._flying) == IN_FLIGHT:
                self._land()
            self._flying.append((chunk, pool.submit(calls.merge, chunk.keys, chunk.records)))
        while self._flying:
            self._land()

    def merged(self) -> int:
        """Rows of which it is known that they were sent and merged, when nothing is in flight any more."""
        landed = (chunk for chunk, flight in self._flying if not flight.cancelled() and not flight.exception())
        return self.written.sent + sum(len(chunk.keys) for chunk in landed)

    def checked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches without bad rows. Raises InvalidInputError."""
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


def chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
    """The entries of the batches, in their order, as full as a call may be."""
    rest, room = Chunk([], []), MAX_BYTES
    for batch in batches:
        keys, records = encode_records(batch)
        ends = np.cumsum([len(key) + len(record) + ENTRY_BYTES for key, record in zip(keys, records, strict=True)])
        at = before = 0
        while at < len(keys):
            end = min(int(np.searchsorted(ends, before + room, "right")), at + MAX_ENTRIES - len(rest.keys))
            rest.keys.extend(keys[at:end])
            rest.records.extend(records[at:end])
            if end > at:
                room -= int(ends[end - 1]) - before
                before = int(ends[end - 1])
            at = end
            if at < len(keys):
                yield rest
                rest, room = Chunk([], []), MAX_BYTES
    if rest.keys:
        yield rest


def _total(messages: Sequence[WriterCommitMessage | None]) -> Written:
    total = Written()
    for message in messages:
        if isinstance(message, Written):
            total = total.plus(message)
    return total


def _refused(chunk: Chunk, row: meta_pb.MergeOffsetDataReply.Rejected) -> str:
    key = decode_key(chunk.keys[row.index])
    return f"namespace {key.namespace!r}, group {key.group!r}, shard {key.shard!r}: {row.message}"
