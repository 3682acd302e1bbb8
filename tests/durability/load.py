"""What the crash and fault tests share: a load of committing consumers, and readings of both stores.

A commit counts as acknowledged when, and only when, its answer has arrived; then it is in the ledger.
"""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count

import anyio
import grpc
import grpc.aio

from adapter.client import OffsetClient
from adapter.config import MetaSection
from adapter.errors import MetaUnavailableError
from adapter.meta_client import GrpcMetaClient, MetaClient
from adapter.model import DEFAULT_NAMESPACE, FIRST_EPOCH, CommitMode, OffsetKey
from adapter.reads import ReadMode
from adapter.rpc import offsets_pb
from adapter.testing import Ledger, eventually, positions

LIMIT_S = 30.0  # of every wait for something that will happen
CALL_S = 20.0  # of every call; the machine may be busy, and nothing here measures time
RETRY_S = 0.02  # the pause of a consumer whose commit failed
POLL_S = 0.05
SHARDS = 4  # of a consumer that commits one message at a time
BATCH = 20  # shards of a batch, spread over two commits
BURST = 32  # commits that a stream sends before it reads the answers
PAGE = 50  # keys; small, so that a listing has several pages

# After a restart the next attempt decides, not a channel that still waits to reconnect.
CHANNEL_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200))
# The two ways in which a dead or stopping adapter does not acknowledge. Any other status fails the test.
NOT_ACKNOWLEDGED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
BROKEN_WRITE = "Internal error from Core"  # what grpc.aio's client says of a write to a connection that just broke

Position = tuple[int, int]
Positions = dict[OffsetKey, Position]
Turn = Callable[[int], Awaitable[None]]


def random_instants() -> random.Random:
    """The random numbers of a run. Its output has the seed; `CRASH_SEED=...` in the environment repeats them."""
    seed = int(os.environ.get("CRASH_SEED") or time.time_ns() % 2**32)
    sys.stdout.write(f"CRASH_SEED={seed}\n")
    return random.Random(seed)


class Load:
    """Consumers that commit until they are cancelled, through all restarts of the adapter."""

    def __init__(self, client: OffsetClient) -> None:
        self.ledger = Ledger()
        self.sent: Positions = {}  # the highest that was ever sent, acknowledged or not
        self.commits = 0  # acknowledged
        self.failures: Counter[grpc.StatusCode] = Counter()
        self._client = client
        self._open = asyncio.Event()
        self._open.set()
        self._busy = 0

    async def pause(self) -> None:
        """Return when no commit is under way. The next ones wait for `resume`: they must not hide a loss."""
        self._open.clear()
        await eventually(lambda: self._busy == 0, LIMIT_S)

    def resume(self) -> None:
        """Go on committing."""
        self._open.set()

    async def progress(self, commits: int = 100) -> None:
        """Return when so many more commits are acknowledged."""
        goal = self.commits + commits
        await eventually(lambda: self.commits >= goal, LIMIT_S)

    def verify(self, found: Mapping[OffsetKey, Position]) -> None:
        """Everything acknowledged is there (invariant 1), and nothing that was never sent."""
        missing = self.ledger.missing(found)
        assert not missing, f"acknowledged -> found: {missing}"
        unsent = {key: (self.sent.get(key), at) for key, at in found.items() if at > self.sent.get(key, (0, 0))}
        assert not unsent, f"sent -> found: {unsent}"

    async def take_turns(self, turn: Turn) -> None:
        """Call `turn` with 1, 2, 3 and so on, whatever becomes of each."""
        for number in count(1):
            await self._open.wait()
            self._busy += 1
            failures = self.failures.total()
            try:
                await turn(number)
            except grpc.aio.AioRpcError as error:
                self._failed(error.code(), error.details())
            finally:
                self._busy -= 1
            await anyio.sleep(RETRY_S if self.failures.total() > failures else 0)

    def consumer(self, group: str) -> Turn:
        """Commits every message of its shards."""

        async def turn(number: int) -> None:
            await self._commit(DEFAULT_NAMESPACE, group, {str(number % SHARDS): number})

        return turn

    def batches(self, namespace: str) -> Turn:
        """Commits many shards at once, half of them in turn."""

        async def turn(number: int) -> None:
            shards = range(number % 2, BATCH, 2)
            await self._commit(namespace, "batch", {f"shard-{shard}": number for shard in shards})

        return turn

    def stream(self, group: str) -> Turn:
        """Commits in bursts through one stream, which stays open until the adapter ends it."""
        streams: list[grpc.aio.StreamStreamCall[offsets_pb.StreamCommitsRequest, offsets_pb.StreamCommitsReply]] = []

        async def turn(number: int) -> None:
            if not streams:
                streams.append(self._client.store.StreamCommits())
            try:
                await self._burst(streams[0], group, number * BURST)
            except asyncio.InvalidStateError:  # it had ended before this was sent
                self._failed(await streams.pop().code())
            except grpc.aio.AioRpcError as error:
                streams.clear()
                if error.details() != BROKEN_WRITE:
                    raise
                self._failed(grpc.StatusCode.UNAVAILABLE)

        return turn

    def rewinds(self, group: str) -> Turn:
        """Commits with OVERWRITE and goes back now and then, which raises the epoch (invariants 1 and 2)."""
        key = OffsetKey(DEFAULT_NAMESPACE, group, "0")
        stands: list[Position] = [(FIRST_EPOCH, 0)]

        async def turn(number: int) -> None:
            if not stands:  # nobody knows whether the last one was applied
                found = (await self._client.read(group, mode=ReadMode.MEMORY)).get(key.shard)
                stands.append((max(found.epoch, FIRST_EPOCH), found.offset) if found else (FIRST_EPOCH, 0))
            epoch, offset = stands.pop()
            back = number % 10 == 0 and offset > 5
            target = (epoch + 1, offset - 5) if back else (epoch, offset + 1)
            self._sending(key, target)
            superseded = await self._client.commit(group, {key.shard: target[1]}, mode=CommitMode.OVERWRITE)
            stands.append((superseded[0].epoch, superseded[0].offset) if superseded else target)
            self._acknowledged(key, stands[0])

        return turn

    async def _commit(self, namespace: str, group: str, offsets: dict[str, int]) -> None:
        at = {OffsetKey(namespace, group, shard): (FIRST_EPOCH, offset) for shard, offset in offsets.items()}
        for key, position in at.items():
            self._sending(key, position)
        superseded = await self._client.commit(group, offsets, namespace=namespace)
        assert not superseded, f"{offsets} superseded by {superseded}"
        for key, position in at.items():
            self._acknowledged(key, position)

    async def _burst(
        self,
        stream: "grpc.aio.StreamStreamCall[offsets_pb.StreamCommitsRequest, offsets_pb.StreamCommitsReply]",
        group: str,
        first: int,
    ) -> None:
        for at in range(first, first + BURST):
            self._sending(_stream_key(group, at), (FIRST_EPOCH, at))
            await stream.write(_stream_request(group, at))
        for at in range(first, first + BURST):
            reply = await stream.read()
            if not isinstance(reply, offsets_pb.StreamCommitsReply):
                raise asyncio.InvalidStateError
            # A stream's commits apply in their order, so that none finds a later one.
            assert (reply.id, len(reply.superseded)) == (at, 0), f"{reply} instead of {at}"
            if reply.code == 0:
                self._acknowledged(_stream_key(group, at), (FIRST_EPOCH, at))
            else:
                self._failed(next(code for code in grpc.StatusCode if code.value[0] == reply.code), reply.message)

    def _failed(self, code: grpc.StatusCode, details: str | None = "") -> None:
        assert code in NOT_ACKNOWLEDGED, f"{code}: {details}"
        self.failures[code] += 1

    def _sending(self, key: OffsetKey, position: Position) -> None:
        self.sent[key] = max(self.sent.get(key, position), position)

    def _acknowledged(self, key: OffsetKey, position: Position) -> None:
        epoch, offset = position
        self.ledger.note(key, offset, epoch)
        self.commits += 1


def _stream_key(group: str, at: int) -> OffsetKey:
    return OffsetKey(DEFAULT_NAMESPACE, group, str(at % SHARDS))


def _stream_request(group: str, at: int) -> offsets_pb.StreamCommitsRequest:
    shards = [offsets_pb.ShardCommit(shard=_stream_key(group, at).shard, offset=at)]
    commit = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=group, shards=shards)])
    return offsets_pb.StreamCommitsRequest(id=at, commit=commit)


@asynccontextmanager
async def running_load(address: str, consumers: int = 6) -> AsyncIterator[Load]:
    """A load on one adapter: consumers with a commit per message, batches, a stream, and one that rewinds."""
    async with grpc.aio.insecure_channel(address, CHANNEL_OPTIONS) as channel, anyio.create_task_group() as tasks:
        load = Load(OffsetClient(channel, CALL_S))
        turns = [load.consumer(f"consumer-{number}") for number in range(consumers)]
        turns += [load.batches(DEFAULT_NAMESPACE), load.batches("other"), load.stream("stream"), load.rewinds("rewinds")]
        for number, turn in enumerate(turns):
            tasks.start_soon(load.take_turns, turn, name=f"load-{number}")
        yield load
        tasks.cancel_scope.cancel()


async def local_positions(address: str) -> Positions:
    """What stands in an adapter that nobody commits to, by both ways of reading it."""
    async with OffsetClient.connect(address, CALL_S) as client:
        listed = positions([row async for row in client.list()])
        groups = dict.fromkeys((key.namespace, key.group) for key in listed)
        wanted = [offsets_pb.GroupShards(namespace=namespace, group=group) for namespace, group in groups]
        request = offsets_pb.ReadOffsetsRequest(groups=wanted, mode=offsets_pb.MEMORY)
        read = positions((await client.store.ReadOffsets(request, timeout=CALL_S)).offsets)
    assert _known(read) == _known(listed), "ReadOffsets and ListOffsets differ"
    return _known(listed)


async def status_when(
    address: str, condition: Callable[[offsets_pb.StatusReply], bool] = lambda _: True
) -> offsets_pb.StatusReply:
    """The first status of an adapter that is so; waits for an adapter that is still starting."""
    async with grpc.aio.insecure_channel(address, CHANNEL_OPTIONS) as channel:
        client = OffsetClient(channel, CALL_S)
        with anyio.fail_after(LIMIT_S):
            while True:
                with suppress(grpc.aio.AioRpcError):
                    status = await client.status()
                    if condition(status):
                        return status
                await anyio.sleep(POLL_S)


async def remote_positions(meta: MetaClient) -> Positions:
    """Everything in the Meta Service. Raises MetaUnavailableError."""
    found: Positions = {}
    token = b""
    while True:
        page, token = await meta.list_page("", "", PAGE, token)
        found.update((key, record.position) for key, record in page)
        if not token:
            return found


def backwards(before: Mapping[OffsetKey, Position], after: Mapping[OffsetKey, Position]) -> list[str]:
    """What went backwards, or vanished, between two readings of a store (invariant 2)."""
    return [f"{'/'.join(key)}: {at} -> {after.get(key)}" for key, at in before.items() if after.get(key, (0, 0)) < at]


def _known(found: Positions) -> Positions:
    # Epoch 0 is "unknown": such a record takes the epoch that stands in the Meta Service, and there the first one is 1.
    return {key: (max(epoch, FIRST_EPOCH), offset) for key, (epoch, offset) in found.items()}


class Watcher:
    """Reads all of the Meta Service again and again, and notes what went backwards (invariant 2)."""

    def __init__(self, meta: MetaClient) -> None:
        self._meta = meta
        self.seen: Positions = {}
        self.readings = 0
        self.steps_back: list[str] = []

    async def run(self) -> None:
        """Read until cancelled. While the Meta Service is away there is nothing to read."""
        while True:
            with suppress(MetaUnavailableError):
                found = await remote_positions(self._meta)
                self.steps_back += backwards(self.seen, found)
                self.seen = found
                self.readings += 1
            await anyio.sleep(POLL_S)

    async def fresh(self) -> Positions:
        """A reading that began after this call."""
        goal = self.readings + 2
        await eventually(lambda: self.readings >= goal, LIMIT_S)
        return self.seen


@asynccontextmanager
async def watching(meta_address: str) -> AsyncIterator[Watcher]:
    """A running watcher of a Meta Service; at the end it must not have seen anything go backwards."""
    section = MetaSection(endpoints=(meta_address,), timeout_ms=2_000)
    async with GrpcMetaClient.open(section) as meta, anyio.create_task_group() as tasks:
        watcher = Watcher(meta)
        tasks.start_soon(watcher.run, name="watcher")
        yield watcher
        tasks.cancel_scope.cancel()
    assert watcher.readings > 0, "the Meta Service was never read"
    assert not watcher.steps_back, watcher.steps_back
