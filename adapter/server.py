"""The gRPC front of the offset store: proto <-> model, errors -> statuses. No policy."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import grpc
import structlog

from adapter.bounds import Bounds, ShardKey
from adapter.committer import Commit
from adapter.core import Core
from adapter.errors import AdapterError
from adapter.metrics import AdapterMetrics
from adapter.requests import parse_commit, parse_read_mode, parse_wanted
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.statuses import Context, answering, status_of
from adapter.views import shard_offset, superseded_rows

log = structlog.get_logger(__name__)

ENDED = "the adapter is stopping; send again what was not answered"
MAX_PIPELINED = 256  # unanswered requests of one stream; beyond that its reading stops, and with it the sender


class OffsetStore(offsets_grpc.OffsetStoreServicer):
    """`offsets.v1.OffsetStore`. `core` gives the store, or raises NotReadyError while there is none to serve."""

    def __init__(self, core: Callable[[], Core], metrics: AdapterMetrics) -> None:
        self._core = core
        self._metrics = metrics
        self._readers: set[asyncio.Task[None]] = set()
        self._ending = False

    @answering
    async def CommitOffsets(  # noqa: D102 - documented in the proto, as all RPCs
        self, request: offsets_pb.CommitOffsetsRequest, context: Context
    ) -> offsets_pb.CommitOffsetsReply:
        return offsets_pb.CommitOffsetsReply(superseded=await self.finish(await self.begin(request)))

    async def StreamCommits(  # noqa: D102
        self, request_iterator: AsyncIterator[offsets_pb.StreamCommitsRequest], context: Context
    ) -> AsyncIterator[offsets_pb.StreamCommitsReply]:
        if self._ending:
            # Its caller was told so a moment ago, and came back at once: this stream would hold up the stop.
            await context.abort(grpc.StatusCode.UNAVAILABLE, ENDED)
        stream = _Stream(self)
        reader = asyncio.create_task(stream.read(request_iterator), name="stream.reader")
        self._readers.add(reader)
        try:
            async for reply in stream.replies(reader):
                yield reply
        except Exception:
            log.exception("rpc.failed", method="StreamCommits")
            raise
        finally:
            self._readers.discard(reader)
            reader.cancel()
        if reader.cancelled():
            await context.abort(grpc.StatusCode.UNAVAILABLE, ENDED)
        reader.result()

    @answering
    async def ReadOffsets(self, request: offsets_pb.ReadOffsetsRequest, context: Context) -> offsets_pb.ReadOffsetsReply:  # noqa: D102
        core = self._core()
        mode = parse_read_mode(request.mode)
        found = await core.reader.read(parse_wanted(request.groups), mode)
        return offsets_pb.ReadOffsetsReply(offsets=[shard_offset(key, record, dirty=key in core.dirty) for key, record in found])

    @answering
    async def PersistOffsets(  # noqa: D102
        self, request: offsets_pb.PersistOffsetsRequest, context: Context
    ) -> offsets_pb.PersistOffsetsReply:
        await self._core().ownership.persist(parse_wanted(request.groups))
        return offsets_pb.PersistOffsetsReply()

    @answering
    async def RemoveOffsets(  # noqa: D102
        self, request: offsets_pb.RemoveOffsetsRequest, context: Context
    ) -> offsets_pb.RemoveOffsetsReply:
        removed = await self._core().ownership.remove(parse_wanted(request.groups))
        return offsets_pb.RemoveOffsetsReply(removed=removed)

    def end_streams(self) -> None:
        """Read nothing more from streams, open no new one; what was read is still answered (invariant 8)."""
        self._ending = True
        for reader in self._readers:
            reader.cancel()

    async def begin(self, request: offsets_pb.CommitOffsetsRequest) -> "_Begun":
        """Check a commit and load what it needs. Finished in the order in which they began, commits apply in this order."""
        started = time.perf_counter()
        with self._errors_counted():
            core = self._core()
            commit, bounds = parse_commit(request, core.clocks.now_ms())
            await core.commits.prepare(commit)
        return _Begun(core, commit, bounds, started)

    async def finish(self, begun: "_Begun") -> list[offsets_pb.Superseded]:
        """Make a commit durable; returns the rows of its reply."""
        core, commit, bounds, started = begun
        with self._errors_counted():
            rows = superseded_rows(commit, await core.commits.commit(commit))
        core.bounds.note(bounds)
        self._metrics.committed(len(commit.entries), len(rows), time.perf_counter() - started)
        return rows

    @contextmanager
    def _errors_counted(self) -> Iterator[None]:
        try:
            yield
        except AdapterError as error:
            self._metrics.commit_errors.labels(status_of(error).name).inc()
            raise


class _Begun(NamedTuple):
    """A checked commit on its way."""

    core: Core
    commit: Commit
    bounds: dict[ShardKey, Bounds]
    started: float


class _Stream:
    """One StreamCommits call: commits apply and are answered in the order of the requests, many being under way at once."""

    def __init__(self, store: OffsetStore) -> None:
        self._store = store
        self._answers: asyncio.Queue[asyncio.Task[offsets_pb.StreamCommitsReply] | None] = asyncio.Queue()
        self._slots = asyncio.Semaphore(MAX_PIPELINED)

    async def read(self, requests: AsyncIterator[offsets_pb.StreamCommitsRequest]) -> None:
        """Start a commit per request, as many at once as there are slots."""
        running: set[asyncio.Task[offsets_pb.StreamCommitsReply]] = set()
        async for request in requests:
            await self._slots.acquire()
            # A rewind means something only in its place, even when a part of what came before goes to the Meta Service first.
            ordered = request.commit.mode == offsets_pb.OVERWRITE
            if ordered and running:
                await asyncio.wait(running)
            task = asyncio.create_task(await self._begin(request), name="stream.commit")
            running.add(task)
            task.add_done_callback(running.discard)
            self._answers.put_nowait(task)
            if ordered:
                await asyncio.wait([task])

    async def replies(self, reader: asyncio.Task[None]) -> AsyncIterator[offsets_pb.StreamCommitsReply]:
        """The replies, in order, until the reader has ended and all are out. A reply that is not taken keeps its slot."""
        reader.add_done_callback(lambda _: self._answers.put_nowait(None))
        while (answer := await self._answers.get()) is not None:
            yield await answer
            self._slots.release()

    async def _begin(self, request: offsets_pb.StreamCommitsRequest) -> Coroutine[None, None, offsets_pb.StreamCommitsReply]:
        """Begin a request in its turn; returns what is left to do for its answer."""
        try:
            begun = await self._store.begin(request.commit)
        except AdapterError as error:
            return self._refuse(request.id, error)
        return self._finish(request.id, begun)

    async def _finish(self, number: int, begun: _Begun) -> offsets_pb.StreamCommitsReply:
        try:
            return offsets_pb.StreamCommitsReply(id=number, superseded=await self._store.finish(begun))
        except AdapterError as error:
            return await self._refuse(number, error)

    @staticmethod
    async def _refuse(number: int, error: AdapterError) -> offsets_pb.StreamCommitsReply:
        code: int = status_of(error).value[0]
        return offsets_pb.StreamCommitsReply(id=number, code=code, message=str(error))
