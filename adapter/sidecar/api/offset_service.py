"""The gRPC service `offsets.v1.OffsetStore`, beside which consumers and brokers run: messages <-> model, errors -> statuses.

Decides nothing about offsets: commits are made by `commits`, and reads, hand-overs and broadcasts by the engine.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import cast

import grpc
import structlog

from adapter.errors import AdapterError
from adapter.model.records import OffsetKey, OffsetRecord, ReadMode
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.serving.http2.call import Requests, Take
from adapter.runtime.serving.statuses import Context, answering, status_of, trailing_of
from adapter.sidecar.api.commit_stream import CommitStream
from adapter.sidecar.api.commits import Commits, Committing
from adapter.sidecar.api.listing import changes, list_page, listed_row, stored_row
from adapter.sidecar.api.requests import parse_commit_broadcast, parse_read_broadcast, parse_read_mode, parse_wanted
from adapter.sidecar.engine.core import Core
from adapter.sidecar.ledger.ledger import MAX_REQUEST_BYTES
from adapter.sidecar.ledger.watching import Watches
from adapter.sidecar.metrics import AdapterMetrics

log = structlog.get_logger(__name__)

ENDED = "the adapter is stopping; send again what was not answered"


class OffsetService(offsets_grpc.OffsetStoreServicer):
    """`offsets.v1.OffsetStore`. `core` gives the store; it raises NotReadyError while there is none to serve.

    `committing` does the same for commits, which are taken earlier. Commits of broadcasting groups are not: they decide by what
    is read here whether the former ones have expired. `take` is for the server: it offers the small requests of
    CommitOffsets to the group commit.
    """

    def __init__(self, core: Callable[[], Awaitable[Core]], committing: Callable[[], Core], metrics: AdapterMetrics) -> None:
        self._core = core
        self._readers: set[asyncio.Task[None]] = set()
        self._watches: Watches | None = None  # of the core that was watched last
        self._stopping = False
        self.commits = Commits(committing, metrics)
        self.take = Take(self.commits.offer, self._commit_offered, MAX_REQUEST_BYTES)

    @answering
    async def CommitOffsets(  # noqa: D102 - documented in the proto, as all RPCs
        self, request: offsets_pb.CommitOffsetsRequest, context: Context
    ) -> offsets_pb.CommitOffsetsReply:
        return await self._commits_of(context).commit(request)

    async def StreamCommits(  # noqa: D102
        self, request_iterator: AsyncIterator[offsets_pb.StreamCommitsRequest], context: Context
    ) -> AsyncIterator[offsets_pb.StreamCommitsReply]:
        if self._stopping:
            # A client whose stream was ended opens the next one at once; that would hold up the stop.
            await context.abort(grpc.StatusCode.UNAVAILABLE, ENDED)
        stream = CommitStream(self._commits_of(context))
        reader = asyncio.create_task(stream.read(cast("Requests", request_iterator)), name="stream.reader")
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
        try:
            reader.result()
        except AdapterError as error:  # of a request that has too many fields to be parsed
            await context.abort(status_of(error), str(error))

    @answering
    async def ReadOffsets(self, request: offsets_pb.ReadOffsetsRequest, context: Context) -> offsets_pb.ReadOffsetsReply:  # noqa: D102
        core = await self._core()
        mode = parse_read_mode(request.mode)
        wanted = await parse_wanted(request.groups)
        if request.keep_hold:
            await core.reader.ask(wanted, mode)
        else:
            await core.reader.begin(wanted, mode)

        def row(key: OffsetKey, record: OffsetRecord) -> offsets_pb.ShardOffset:
            return (listed_row if mode is ReadMode.MEMORY else stored_row)(core, key, record)

        return offsets_pb.ReadOffsetsReply(
            offsets=await core.reader.answer(wanted, row, offsets_pb.ShardOffset.ByteSize, context)
        )

    @answering
    async def PersistOffsets(  # noqa: D102
        self, request: offsets_pb.PersistOffsetsRequest, context: Context
    ) -> offsets_pb.PersistOffsetsReply:
        core = await self._core()
        await core.handover.persist(await parse_wanted(request.groups))
        return offsets_pb.PersistOffsetsReply()

    @answering
    async def RemoveOffsets(  # noqa: D102
        self, request: offsets_pb.RemoveOffsetsRequest, context: Context
    ) -> offsets_pb.RemoveOffsetsReply:
        core = await self._core()
        removed = await core.handover.remove(await parse_wanted(request.groups))
        return offsets_pb.RemoveOffsetsReply(removed=removed)

    @answering
    async def CommitBroadcast(  # noqa: D102
        self, request: offsets_pb.CommitBroadcastRequest, context: Context
    ) -> offsets_pb.CommitOffsetsReply:
        try:
            broadcasts = (await self._core()).broadcasts
            commit = parse_commit_broadcast(request)
        except AdapterError as error:
            self.commits.refused(error)
            raise
        return await broadcasts.commit(commit, request.group, self._commits_of(context).commit)

    @answering
    async def ReadBroadcast(  # noqa: D102
        self, request: offsets_pb.ReadBroadcastRequest, context: Context
    ) -> offsets_pb.ReadBroadcastReply:
        broadcasts = (await self._core()).broadcasts
        return offsets_pb.ReadBroadcastReply(offsets=await broadcasts.read(await parse_read_broadcast(request)))

    @answering
    async def ListOffsets(self, request: offsets_pb.ListOffsetsRequest, context: Context) -> offsets_pb.ListOffsetsReply:  # noqa: D102
        return await list_page(await self._core(), request, context)

    async def WatchOffsets(  # noqa: D102
        self, request: offsets_pb.WatchOffsetsRequest, context: Context
    ) -> AsyncIterator[offsets_pb.WatchOffsetsReply]:
        try:
            core = await self._core()
            self._watches = core.ledger.watches
            async with aclosing(changes(core, request)) as replies:
                async for reply in replies:
                    yield reply
        except AdapterError as error:
            await context.abort(status_of(error), str(error), trailing_of(error))
        except Exception:
            log.exception("rpc.failed", method="WatchOffsets")
            raise

    def end_streams(self) -> None:
        """End all watches, read no more from streams, open no new one; requests that were read get their replies (8)."""
        self._stopping = True
        if self._watches:
            self._watches.end()
        for reader in self._readers:
            reader.cancel()

    @answering
    async def _commit_offered(self, request: offsets_pb.CommitOffsetsRequest, context: Context) -> offsets_pb.CommitOffsetsReply:
        """CommitOffsets for a request that the fast path has declined."""
        return await self._commits_of(context).commit(request, offered=True)

    def _commits_of(self, context: Context) -> Committing:
        """What makes the commits of a call."""
        return self.commits
