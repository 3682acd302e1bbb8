"""What the crash and fault tests share: a load of committing consumers, and readings of both stores.

Everything that is sent, answered and read is in a history, which decides (invariants 1, 2, 3).
"""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

import anyio
import grpc
import grpc.aio

from adapter.client.client import OffsetClient
from adapter.errors import MetaUnavailableError
from adapter.meta.client import GrpcMetaClient, MetaClient
from adapter.meta.config import MetaSection
from adapter.model.records import DEFAULT_NAMESPACE, FIRST_EPOCH, CommitMode, OffsetKey, OffsetRecord, ReadMode
from adapter.rpc import offsets_pb
from adapter.testing.history import ADAPTER, META, History, Write
from adapter.testing.waiting import PATIENCE_S, eventually, positions

LIMIT_S = PATIENCE_S  # of every wait for something that will happen
CALL_S = PATIENCE_S  # of every call; nothing here measures time
RETRY_S = 0.02  # the pause of a consumer whose commit failed
POLL_S = 0.05
SHARDS = 4  # of a consumer that commits one message at a time
BATCH = 20  # shards of a batch, spread over two commits
BURST = 32  # commits that a stream sends before it reads the answers
PAGE = 50  # keys; small, so that a listing has several pages

# After a restart the next attempt decides, not a channel that still waits to reconnect.
CHANNEL_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200))
# The two ways in which a dead or stopping adapter does not acknowledge. Any other status fails the test.
NOT_ACKNOWLEDGED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
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

    expected = NOT_ACKNOWLEDGED

    def __init__(self, client: OffsetClient, history: History, places: Sequence[str] = (ADAPTER,), pause_s: float = 0.0) -> None:
        self.history = history
        self.keys: set[OffsetKey] = set()  # that a commit was sent for
        self.commits = 0  # acknowledged
        self.failures: Counter[grpc.StatusCode] = Counter()
        self._client = client
        self._pause_s = pause_s  # between two turns of a consumer
        self._places = places  # where a commit is when it is acknowledged
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

    async def take_turns(self, turn: Turn) -> None:
        """Call `turn` with 1, 2, 3 and so on, whatever becomes of each."""
        for number in count(1):
            while not self._open.is_set():  # a pause may follow a resume before this goes on
                await self._open.wait()
            self._busy += 1
            failures = self.failures.total()
            try:
                await turn(number)
            except grpc.aio.AioRpcError as error:
                self._failed(error.code(), error.details())
            finally:
                self._busy -= 1
            await anyio.sleep(RETRY_S if self.failures.total() > failures else self._pause_s)

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
        doubt = 0  # the epoch of a commit without an answer: it may stand in the Meta Service, and not be seen here

        async def turn(number: int) -> None:
            nonlocal doubt
            if not stands:  # nobody knows whether the last one was applied
                reading = self.history.reading(self._places[0], keys=[key])
                found = (await self._client.read(group, mode=ReadMode.MEMORY)).get(key.shard)
                reading.found({key: (found.epoch, found.offset)} if found else {})
                stands.append((max(found.epoch, FIRST_EPOCH), found.offset) if found else (FIRST_EPOCH, 0))
            epoch, offset = stands.pop()
            back = number % 10 == 0 and offset > 5
            target = (epoch + 1, offset - 5) if back else (epoch, offset + 1)
            # Without an epoch it takes the one that stands, which a recovery may bring between the read and this.
            targets = [(at, target[1]) for at in range(target[0], max(target[0], doubt + back) + 1)]
            write = self._sending(key, *targets)
            doubt = targets[-1][0]
            superseded = await self._client.commit(group, {key.shard: target[1]}, mode=CommitMode.OVERWRITE, check=False)
            doubt = 0
            if superseded:
                stands.append((superseded[0].epoch, superseded[0].offset))
                write.superseded(stands[0])
                self.commits += 1
                return
            if len(targets) == 1:
                stands.append(target)
            self._acknowledged(write)

        return turn

    async def _commit(self, namespace: str, group: str, offsets: dict[str, int]) -> None:
        writes = [self._sending(OffsetKey(namespace, group, shard), (FIRST_EPOCH, offset)) for shard, offset in offsets.items()]
        superseded = await self._client.commit(group, offsets, namespace=namespace)
        assert not superseded, f"{offsets} superseded by {superseded}"
        for write in writes:
            self._acknowledged(write)

    async def _burst(
        self,
        stream: "grpc.aio.StreamStreamCall[offsets_pb.StreamCommitsRequest, offsets_pb.StreamCommitsReply]",
        group: str,
        first: int,
    ) -> None:
        writes: dict[int, Write] = {}
        for at in range(first, first + BURST):
            writes[at] = self._sending(_stream_key(group, at), (FIRST_EPOCH, at))
            await stream.write(_stream_request(group, at))
        while writes:
            reply = await stream.read()
            if not isinstance(reply, offsets_pb.StreamCommitsReply):
                raise asyncio.InvalidStateError
            # A stream's commits apply in their order, so that none finds a later one.
            at = next(iter(writes))
            assert (reply.id + 1 - reply.covers, len(reply.superseded)) == (at, 0), f"{reply} instead of {at}"
            answered = [writes.pop(number) for number in range(at, reply.id + 1)]
            if reply.code == 0:
                for write in answered:
                    self._acknowledged(write)
            else:
                self._failed(next(code for code in grpc.StatusCode if code.value[0] == reply.code), reply.message)

    def _failed(self, code: grpc.StatusCode, details: str | None = "") -> None:
        assert code in self.expected, f"{code}: {details}"
        self.failures[code] += 1

    def _sending(self, key: OffsetKey, *positions: Position) -> Write:
        self.keys.add(key)
        return self.history.begin(key, *positions, places=self._places)

    def _acknowledged(self, write: Write) -> None:
        write.acknowledged()
        self.commits += 1


def _stream_key(group: str, at: int) -> OffsetKey:
    return OffsetKey(DEFAULT_NAMESPACE, group, str(at % SHARDS))


def _stream_request(group: str, at: int) -> offsets_pb.StreamCommitsRequest:
    shards = [offsets_pb.ShardCommit(shard=_stream_key(group, at).shard, offset=at)]
    commit = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=group, shards=shards)])
    return offsets_pb.StreamCommitsRequest(id=at, commit=commit)


@asynccontextmanager
async def running_load(
    address: str, history: History, consumers: int = 6, places: Sequence[str] = (ADAPTER,)
) -> AsyncIterator[Load]:
    """A load on one adapter: consumers with a commit per message, batches, a stream, and one that rewinds."""
    async with grpc.aio.insecure_channel(address, CHANNEL_OPTIONS) as channel, anyio.create_task_group() as tasks:
        load = Load(OffsetClient(channel, CALL_S, resend=False), history, places)
        turns = [load.consumer(f"consumer-{number}") for number in range(consumers)]
        turns += [load.batches(DEFAULT_NAMESPACE), load.batches("other"), load.stream("stream"), load.rewinds("rewinds")]
        for number, turn in enumerate(turns):
            tasks.start_soon(load.take_turns, turn, name=f"load-{number}")
        yield load
        tasks.cancel_scope.cancel()


async def local_positions(address: str, history: History) -> Positions:
    """What stands in an adapter that nobody commits to, by both ways of reading it; it must not contradict anything.

    Waits for the end of its recovery: no read is answered before.
    """
    await status_when(address, lambda status: status.recovery.done or status.state == offsets_pb.StatusReply.DEGRADED)
    reading = history.reading(ADAPTER)
    async with OffsetClient.connect(address, CALL_S) as client:
        listed = positions([row async for row in client.list()])
        groups = dict.fromkeys((key.namespace, key.group) for key in listed)
        wanted = [offsets_pb.GroupShards(namespace=namespace, group=group) for namespace, group in groups]
        request = offsets_pb.ReadOffsetsRequest(groups=wanted, mode=offsets_pb.MEMORY)
        read = positions((await client.store.ReadOffsets(request, timeout=CALL_S)).offsets)
    assert _known(read) == _known(listed), "ReadOffsets and ListOffsets differ"
    reading.found(listed)
    assert history.check() == []
    return _known(listed)


async def status_when(
    address: str, condition: Callable[[offsets_pb.StatusReply], bool] = lambda _: True
) -> offsets_pb.StatusReply:
    """The first status of an adapter that is so; waits for an adapter that is still starting."""
    async with grpc.aio.insecure_channel(address, CHANNEL_OPTIONS) as channel:
        client = OffsetClient(channel, CALL_S, resend=False)
        with anyio.fail_after(LIMIT_S):
            while True:
                with suppress(grpc.aio.AioRpcError):
                    status = await client.status()
                    if condition(status):
                        return status
                await anyio.sleep(POLL_S)


async def remote_records(meta: MetaClient) -> dict[OffsetKey, OffsetRecord]:
    """Everything in the Meta Service, also tombstones. Raises MetaUnavailableError."""
    found: dict[OffsetKey, OffsetRecord] = {}
    token = b""
    while True:
        page, token = await meta.list_page("", "", PAGE, token)
        found.update(page)
        if not token:
            return found


def _known(found: Positions) -> Positions:
    # Epoch 0 is "unknown": such a record takes the epoch that stands in the Meta Service, and there the first one is 1.
    return {key: (max(epoch, FIRST_EPOCH), offset) for key, (epoch, offset) in found.items()}


class Watcher:
    """Reads all of the Meta Service again and again, for the history."""

    def __init__(self, meta: MetaClient, history: History) -> None:
        self._meta = meta
        self._history = history
        self.turn = anyio.Lock()  # who has it keeps the watcher from reading
        self.seen: Positions = {}
        self.readings = 0

    async def run(self) -> None:
        """Read until cancelled. While the Meta Service is away there is nothing to read."""
        while True:
            async with self.turn:
                with suppress(MetaUnavailableError):
                    await self._read()
            await anyio.sleep(POLL_S)

    async def _read(self) -> None:
        reading = self._history.reading(META)
        found = await remote_records(self._meta)
        reading.found({key: record[:3] for key, record in found.items()})
        self.seen = {key: record.position for key, record in found.items() if record.live}
        self.readings += 1

    async def has_everything(self, adapters: Iterable[str] = ()) -> None:
        """Wait until the Meta Service has all that it, and these adapters, ever acknowledged. Not of interest to the history."""
        least: Positions = {}
        for place in (META, *adapters):
            for key, position in self._history.least(place).items():
                least[key] = max(position, least.get(key, position))
        lacking = least
        with anyio.move_on_after(LIMIT_S):
            while lacking:
                with suppress(MetaUnavailableError):
                    found = await self._meta.get(sorted(least))
                    lacking = {key: at for key, at in least.items() if key not in found or found[key].position < at}
                await anyio.sleep(POLL_S)
        if lacking:
            raise TimeoutError(f"the Meta Service never had {lacking}")

    async def fresh(self) -> Positions:
        """A reading that began after this call."""
        with anyio.fail_after(LIMIT_S):
            while True:
                async with self.turn:
                    with suppress(MetaUnavailableError):
                        await self._read()
                        return self.seen
                await anyio.sleep(RETRY_S)


@asynccontextmanager
async def watching(meta_address: str, history: History) -> AsyncIterator[Watcher]:
    """A running watcher of a Meta Service; at the end nothing may contradict anything."""
    section = MetaSection(endpoints=(meta_address,), timeout_ms=2_000)
    async with GrpcMetaClient.open(section) as meta, anyio.create_task_group() as tasks:
        watcher = Watcher(meta, history)
        tasks.start_soon(watcher.run, name="watcher")
        yield watcher
        tasks.cancel_scope.cancel()
    assert watcher.readings > 0, "the Meta Service was never read"
    assert history.check() == []
