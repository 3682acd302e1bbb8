"""The gRPC front of the offset store: proto <-> model, errors -> statuses. No policy."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import NamedTuple, TypeGuard

import grpc
import structlog
from google.protobuf.message import DecodeError

from adapter.errors import AdapterError
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.large_calls import LargeCalls
from adapter.runtime.statuses import Context, answering, status_of
from adapter.sidecar.api.commit_requests import ParsedCommit, parse_commit, parse_in_slices, size_of
from adapter.sidecar.api.replies import shard_offset, superseded_rows
from adapter.sidecar.api.requests import parse_commit_broadcast, parse_read_broadcast, parse_read_mode, parse_wanted
from adapter.sidecar.engine.changes import Standing
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_commit import Done, GroupCommit
from adapter.sidecar.metrics import AdapterMetrics

log = structlog.get_logger(__name__)

Request = offsets_pb.StreamCommitsRequest
Reply = offsets_pb.StreamCommitsReply

ENDED = "the adapter is stopping; send again what was not answered"
MAX_PIPELINED = 256  # unanswered requests of one stream; beyond that its reading stops, and with it the sender
MAX_PIPELINED_BYTES = 4 * 2**20  # of those that wait for something, and of answers that are not taken; the same
SMALL = 100  # offsets and groups of a commit that takes no turn of its own: one takes a millisecond or two
MAX_LARGE_BYTES = 32 * 2**20  # of large commits that wait for their turn
OFFSET_BYTES = 400  # of memory that an offset of a commit takes, beside its bytes in the request


class OffsetStore(offsets_grpc.OffsetStoreServicer):
    """`offsets.v1.OffsetStore`. `core` gives the store, or raises NotReadyError while there is none to serve."""

    def __init__(self, core: Callable[[], Core], metrics: AdapterMetrics) -> None:
        self._core = core
        self._metrics = metrics
        self._readers: set[asyncio.Task[None]] = set()
        self._ending = False
        self.turn = GroupCommit(core, metrics, self._count)
        self._large = LargeCalls("bytes of large commits", at_once=1, max_waiting=MAX_LARGE_BYTES)

    @answering
    async def CommitOffsets(  # noqa: D102 - documented in the proto, as all RPCs
        self, request: offsets_pb.CommitOffsetsRequest, context: Context
    ) -> offsets_pb.CommitOffsetsReply:
        return await self._commit(request)

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
        wanted = await parse_wanted(request.groups)
        await core.reader.ask(wanted, mode)

        def row(key: OffsetKey, record: OffsetRecord) -> offsets_pb.ShardOffset:
            return shard_offset(key, record, dirty=key in core.dirty)

        return offsets_pb.ReadOffsetsReply(
            offsets=await core.reader.answer(wanted, row, offsets_pb.ShardOffset.ByteSize, context)
        )

    @answering
    async def PersistOffsets(  # noqa: D102
        self, request: offsets_pb.PersistOffsetsRequest, context: Context
    ) -> offsets_pb.PersistOffsetsReply:
        core = self._core()
        await core.ownership.persist(await parse_wanted(request.groups))
        return offsets_pb.PersistOffsetsReply()

    @answering
    async def RemoveOffsets(  # noqa: D102
        self, request: offsets_pb.RemoveOffsetsRequest, context: Context
    ) -> offsets_pb.RemoveOffsetsReply:
        core = self._core()
        removed = await core.ownership.remove(await parse_wanted(request.groups))
        return offsets_pb.RemoveOffsetsReply(removed=removed)

    @answering
    async def CommitBroadcast(  # noqa: D102
        self, request: offsets_pb.CommitBroadcastRequest, context: Context
    ) -> offsets_pb.CommitOffsetsReply:
        try:
            broadcasts = self._core().broadcasts
            commit = parse_commit_broadcast(request)
        except AdapterError as error:
            self._count(error)
            raise
        return await broadcasts.commit(commit, request.group, self._commit)

    @answering
    async def ReadBroadcast(  # noqa: D102
        self, request: offsets_pb.ReadBroadcastRequest, context: Context
    ) -> offsets_pb.ReadBroadcastReply:
        broadcasts = self._core().broadcasts
        return offsets_pb.ReadBroadcastReply(offsets=await broadcasts.read(await parse_read_broadcast(request)))

    def end_streams(self) -> None:
        """Read nothing more from streams, open no new one; what was read is still answered (invariant 8)."""
        self._ending = True
        for reader in self._readers:
            reader.cancel()

    def take(self, message: bytes, done: Done) -> None:
        """Commit the request with all that come in this turn of the event loop, see `Turn`; `done` is called at its end."""
        try:
            request = offsets_pb.CommitOffsetsRequest.FromString(message)
        except DecodeError:
            done(0, None)
        else:
            self.turn.add((request,), done)

    async def _commit(self, request: offsets_pb.CommitOffsetsRequest) -> offsets_pb.CommitOffsetsReply:
        if self.commit_lone(request):
            return offsets_pb.CommitOffsetsReply()
        async with self.turn_of(request):
            begun = await self.begin_in_slices(request)
            rows = self.finish_at_once(begun)
        if rows is None:
            await self.prepare(begun)
            with self._room_for(begun, request):
                rows = await self.finish(begun)
        return offsets_pb.CommitOffsetsReply(superseded=rows, written_through=begun.written_through())

    def turn_of(self, request: offsets_pb.CommitOffsetsRequest, *, patient: bool = False) -> AbstractAsyncContextManager[None]:
        """Large commits are checked, and mostly made durable, one at a time: each may hold the event loop for 0.1 s.

        Raises InvalidInputError for one that is too large, OverloadedError when too many wait, unless `patient`.
        """
        try:
            size = size_of(request.groups)
        except AdapterError as error:
            self._count(error)
            raise
        return nullcontext() if size <= SMALL else self._large.one(request.ByteSize(), patient=patient)

    def commit_lone(self, request: offsets_pb.CommitOffsetsRequest) -> bool:
        """Make what most requests are durable, see `lone`; False for any other, which then begins."""
        started = time.perf_counter()
        try:
            core = self._core()
            if not core.lone.commit([(request,)], core.clocks.now_ms())[0]:
                return False
        except AdapterError as error:
            self._count(error)
            raise
        self._metrics.committed(1, 0, time.perf_counter() - started)
        return True

    def begin(self, request: offsets_pb.CommitOffsetsRequest) -> "_Begun":
        """Check a commit."""
        started = time.perf_counter()
        try:
            core = self._core()
            return _Begun(core, parse_commit(request, core.clocks.now_ms()), started)
        except AdapterError as error:
            self._count(error)
            raise

    async def begin_in_slices(self, request: offsets_pb.CommitOffsetsRequest) -> "_Begun":
        """The same, inside `turn_of` the commit, with turns for others when it is large."""
        if len(request.groups) + sum(len(group.shards) for group in request.groups) <= SMALL:
            return self.begin(request)
        started = time.perf_counter()
        try:
            core = self._core()
            return _Begun(core, await parse_in_slices(request.groups, request.mode, core.clocks.now_ms()), started)
        except AdapterError as error:
            self._count(error)
            raise

    def finish_at_once(self, begun: "_Begun") -> list[offsets_pb.Superseded] | None:
        """Make a commit durable for which nothing has to be awaited; None for any other, which is then prepared and finished."""
        try:
            standing = begun.core.commits.commit_at_once(begun.parsed.commit)
        except AdapterError as error:
            self._count(error)
            raise
        return None if standing is None else self._finished(begun, standing)

    async def prepare(self, begun: "_Begun") -> None:
        """Load what a commit needs. Finished in the order in which they were prepared, commits apply in this order."""
        await begun.core.commits.prepare(begun.parsed.commit)

    async def finish(self, begun: "_Begun") -> list[offsets_pb.Superseded]:
        """Make a commit durable; returns the rows of its reply."""
        try:
            return self._finished(begun, await begun.core.commits.commit(begun.parsed.commit))
        except AdapterError as error:
            self._count(error)
            raise

    @contextmanager
    def _room_for(self, begun: "_Begun", request: offsets_pb.CommitOffsetsRequest) -> Iterator[None]:
        """Room for what waits for the Meta Service. Raises OverloadedError when there is none."""
        size = memory_of(begun, request) if begun.writes_through else 0
        room = begun.core.commits.room
        try:
            if size:
                room.take(size)
        except AdapterError as error:
            self._count(error)
            raise
        try:
            yield
        finally:
            room.give_back(size)

    def _finished(self, begun: "_Begun", standing: Sequence[Standing]) -> list[offsets_pb.Superseded]:
        core, (commit, bounds, _), started = begun
        rows = superseded_rows(commit, standing) if standing else []
        if bounds:
            core.bounds.note(bounds)
        self._metrics.committed(commit.size, len(rows), time.perf_counter() - started)
        return rows

    def _count(self, error: AdapterError) -> None:
        self._metrics.commit_errors.labels(status_of(error).name).inc()


class _Begun(NamedTuple):
    """A checked commit on its way."""

    core: Core
    parsed: ParsedCommit
    started: float

    @property
    def writes_through(self) -> bool:
        """True when a part of it waits for the Meta Service."""
        return any(map(self.core.commits.writes_through, self.parsed.groups))

    def written_through(self) -> list[int]:
        """The places of the groups that waited for the Meta Service."""
        through = self.core.commits.writes_through
        return [at for at, group in enumerate(self.parsed.groups) if through(group)]


def memory_of(begun: _Begun, request: offsets_pb.CommitOffsetsRequest) -> int:
    """Bytes that a commit takes while it waits, about."""
    return request.ByteSize() + OFFSET_BYTES * begun.parsed.commit.size


class _Stream:
    """One StreamCommits call: commits apply and are answered in the order of the requests, many being under way at once."""

    def __init__(self, store: OffsetStore) -> None:
        self._store = store
        # Replies, and tasks that end with one, in the order of the requests. Plain ones in a row are one reply.
        self._answers: deque[Reply | asyncio.Task[Reply]] = deque()
        self._running: set[asyncio.Task[Reply]] = set()
        self._unanswered = 0
        self._bytes = 0  # of requests that wait for something, and of rows in replies that are not taken
        self._ended = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()

    async def read(self, requests: AsyncIterator[Request]) -> None:
        """Start a commit per request, as many at once as there is room for. A reply that is not taken keeps its room."""
        arrived: Callable[[int], list[Request]] | None = getattr(requests, "arrived", None)  # the built-in server's
        async for request in requests:
            run = [request, *arrived(MAX_PIPELINED - self._unanswered - 1)] if arrived else [request]
            while run:
                while self._unanswered >= MAX_PIPELINED or self._bytes >= MAX_PIPELINED_BYTES:
                    self._room.clear()
                    await self._room.wait()
                # A rewind means something only in its place, even when a part of what came before goes to the Meta Service first.
                if self._running and _is_ordered(run[0]):
                    await asyncio.wait(self._running)
                room = 1 if self._running else MAX_PIPELINED - self._unanswered
                count = await self._commit_lone(run[:room]) if arrived else 0
                if not count:
                    await self._begin(run[0])
                del run[: count or 1]

    async def replies(self, reader: asyncio.Task[None]) -> AsyncIterator[Reply]:
        """The replies, in order, until the reader has ended and all are out."""
        reader.add_done_callback(self._end)
        while self._answers or not self._ended:
            if not self._answers:
                self._changed.clear()
                await self._changed.wait()
                continue
            answer = self._answers.popleft()
            reply = await answer if isinstance(answer, asyncio.Task) else answer
            yield reply
            self._unanswered -= reply.covers
            self._bytes -= _rows_size(reply)
            self._room.set()

    def _add(self, answer: "Reply | asyncio.Task[Reply]") -> None:
        last = self._answers[-1] if self._answers else None
        self._unanswered += answer.covers if isinstance(answer, Reply) else 1
        if _is_plain(answer) and _is_plain(last):
            last.id = answer.id
            last.covers += answer.covers
        else:
            self._bytes += _rows_size(answer) if isinstance(answer, Reply) else 0
            self._answers.append(answer)
            self._changed.set()

    def _end(self, _: asyncio.Task[None]) -> None:
        self._ended = True
        self._changed.set()

    async def _commit_lone(self, run: list[Request]) -> int:
        """Answer those up to the first that is more than a lone commit, with all that comes in this turn; returns how many."""
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(count: int, error: AdapterError | None) -> None:
            # Here, not behind the await: what is committed is answered, even when the reader is ended meanwhile.
            if error:
                self._add(_refusal(run[0].id, error))
            elif count:
                self._add(Reply(id=run[count - 1].id, covers=count))
            if not answered.done():
                answered.set_result(1 if error else count)

        self._store.turn.add([request.commit for request in run], done)
        return await answered

    async def _begin(self, request: Request) -> None:
        """Begin a request in its turn: most are answered then."""
        try:
            if self._store.commit_lone(request.commit):
                self._add(Reply(id=request.id, covers=1))
                return
            async with self._store.turn_of(request.commit, patient=True):
                begun = await self._store.begin_in_slices(request.commit)
                rows = self._store.finish_at_once(begun)
                if rows is not None:
                    # Here: what is committed is answered, even when the reader is ended behind this.
                    self._add(Reply(id=request.id, superseded=rows, covers=1))
                    return
            await self._store.prepare(begun)
        except AdapterError as error:
            self._add(_refusal(request.id, error))
            return
        size = memory_of(begun, request.commit)
        through = size if begun.writes_through else 0
        if through:
            await begun.core.commits.room.wait(through)
        self._bytes += size
        task = asyncio.create_task(self._finish(request.id, begun), name="stream.commit")
        self._add(task)
        self._running.add(task)

        def ended(task: asyncio.Task[Reply]) -> None:
            self._running.discard(task)
            begun.core.commits.room.give_back(through)
            self._bytes -= size
            self._room.set()
            if not task.cancelled() and not task.exception():
                self._bytes += _rows_size(task.result())

        task.add_done_callback(ended)
        if _is_ordered(request):
            await asyncio.wait([task])

    async def _finish(self, number: int, begun: _Begun) -> Reply:
        try:
            return Reply(id=number, superseded=await self._store.finish(begun), covers=1)
        except AdapterError as error:
            return _refusal(number, error)


def _rows_size(reply: Reply) -> int:
    return reply.ByteSize() if reply.superseded else 0


def _is_ordered(request: Request) -> bool:
    return bool(request.commit.mode == offsets_pb.OVERWRITE)


def _is_plain(answer: Reply | asyncio.Task[Reply] | None) -> TypeGuard[Reply]:
    return isinstance(answer, Reply) and not answer.code and not answer.superseded


def _refusal(number: int, error: AdapterError) -> Reply:
    code: int = status_of(error).value[0]
    return Reply(id=number, code=code, message=str(error), covers=1)
