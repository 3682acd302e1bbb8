"""An adapter in memory behind a `Batcher`, with the real one's rules for requests, and a test runner in virtual time."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import wraps
from typing import Any, NamedTuple

import grpc
import grpc.aio

from adapter.client.batching import MAX_PAUSE_S, Batcher
from adapter.client.pending import Committed, rpc_error
from adapter.client.progress import Progress
from adapter.errors import AdapterError, DiskFullError, FencedError, NotReadyError, RefusedError
from adapter.model.records import CommitMode, GroupKey, Member, OffsetKey, OffsetRecord, decide
from adapter.rpc import offsets_pb
from adapter.runtime.serving.statuses import status_of
from adapter.sidecar.api.commit_requests import parse_commit
from adapter.sidecar.ledger.operations import Entry
from tests.model.loop import VirtualLoop

TIMEOUT_S = 5.0
LONG_S = 1_000.0  # virtual

Code = grpc.StatusCode
Found = list[tuple[str, int, int]]  # (shard, epoch, offset) of what supersedes


class Applied(NamedTuple):
    """One applied entry of a request."""

    key: OffsetKey
    offered: OffsetRecord
    mode: CommitMode


class Fault(NamedTuple):
    """What happens to a request: it takes this long, and is lost before or after it is applied."""

    seconds: float = 0.0
    lost: bool = False
    applied: bool = True


NO_FAULT = Fault()


class FakeAdapter:
    """Registers, fencing and refusals; records requests; faults for each request, and groups that are written through or hang."""

    def __init__(self, usual: Fault = NO_FAULT) -> None:
        self.usual = usual
        self.records: dict[OffsetKey, OffsetRecord] = {}
        self.generations: dict[GroupKey, int] = {}
        self.requests: list[offsets_pb.CommitOffsetsRequest] = []
        self.applied: list[Applied] = []
        self.faults: deque[Fault] = deque()
        self.gate = asyncio.Event()
        self.gate.set()
        self.through: set[str] = set()
        self.hanging: set[str] = set()
        self.away: set[str] = set()  # groups that get UNAVAILABLE
        self.refused: set[str] = {"refused"}  # shards and groups that get FAILED_PRECONDITION
        self.full = False  # its disk
        self.most = 0  # requests under way at one moment
        self._now = 0

    async def send(self, request: offsets_pb.CommitOffsetsRequest, timeout_s: float) -> offsets_pb.CommitOffsetsReply:
        """Receive one request as a copy, as over the wire."""
        copy = offsets_pb.CommitOffsetsRequest.FromString(request.SerializeToString())
        self.requests.append(copy)
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._serve(copy)
        except TimeoutError:
            raise rpc_error(Code.DEADLINE_EXCEEDED, "hangs") from None
        finally:
            self._now -= 1

    async def _serve(self, request: offsets_pb.CommitOffsetsRequest) -> offsets_pb.CommitOffsetsReply:
        fault = self.faults.popleft() if self.faults else self.usual
        if any(group.group in self.hanging for group in request.groups):
            fault = Fault(LONG_S)
        await self.gate.wait()
        if fault.seconds:
            await asyncio.sleep(fault.seconds)
        if fault.lost and not fault.applied:
            raise rpc_error(Code.UNAVAILABLE, "lost")
        try:
            reply = self._apply(request)
        except AdapterError as error:
            raise rpc_error(status_of(error), str(error)) from error
        if fault.lost:
            raise rpc_error(Code.UNAVAILABLE, "lost")
        return reply

    def _apply(self, request: offsets_pb.CommitOffsetsRequest) -> offsets_pb.CommitOffsetsReply:
        if self.full:
            raise DiskFullError("no space")
        commit, _, groups = parse_commit(request, 1)
        entries = commit.offered()
        for group, member in commit.members.items():
            if member.generation < self.generations.get(group, 0):
                raise FencedError(f"{group}: generation {member.generation} has ended")
        self._check(entries)
        self.generations.update((group, member.generation) for group, member in commit.members.items())
        reply = offsets_pb.CommitOffsetsReply(
            written_through=[at for at, group in enumerate(groups) if group.group in self.through]
        )
        for key, offered in entries:
            before = self.records.get(key)
            after = decide(offered, before, commit.mode) if before else offered._replace(epoch=1)
            self.records[key] = after
            self.applied.append(Applied(key, offered, commit.mode))
            if after.offset != offered.offset or 0 < offered.epoch < after.epoch:
                reply.superseded.add(
                    namespace=key.namespace, group=key.group, shard=key.shard, epoch=after.epoch, offset=after.offset
                )
        return reply

    def _check(self, entries: Iterable[Entry]) -> None:
        for key, offered in entries:
            if key.group in self.away:
                raise NotReadyError("the Meta Service is away")
            if self.refused & {key.group, key.shard}:
                raise RefusedError(f"{key.shard} is refused")
            if offered.epoch > (self.records[key].epoch if key in self.records else 1):
                raise NotReadyError("unknown epoch")


class Client:
    """A batcher over a fake adapter, with short method names."""

    def __init__(self, adapter: FakeAdapter, *, resend: bool = True) -> None:
        self.adapter = adapter
        self.batcher = Batcher(adapter.send, TIMEOUT_S, resend=resend)

    async def commit(
        self,
        offsets: Mapping[str, int | Progress],
        group: str = "g",
        *,
        overwrite: bool = False,
        epoch: int = 0,
        member: Member | None = None,
    ) -> Found:
        """Commit as `OffsetClient.commit` does; returns the superseded rows."""
        mode = CommitMode.OVERWRITE if overwrite else CommitMode.INCREASE_ONLY
        epochs = dict.fromkeys(offsets, epoch) if epoch else {}
        deadline = await self.batcher.limit.wait(TIMEOUT_S) if self.batcher.limit.full else 0.0
        rows = await self.batcher.commit(("default", group), offsets, mode, epochs, member, deadline) or Committed()
        assert {(row.namespace, row.group) for row in rows} <= {("default", group)}
        return [(row.shard, row.epoch, row.offset) for row in rows]

    def start(self, *args: Any, **kwargs: Any) -> "asyncio.Task[Found]":
        """The same as a task."""
        return asyncio.create_task(self.commit(*args, **kwargs))

    async def held(self) -> None:
        """Send two requests and keep the gate closed, so that later commits have to wait. `requests` begins after the two."""
        self.adapter.requests.clear()
        self.adapter.gate.clear()
        for name in ("held-1", "held-2"):
            self.start({"s": 1}, name).add_done_callback(asyncio.Task.exception)
            await settled()
        assert len(self.adapter.requests) == 2
        self.adapter.requests.clear()

    async def released(self, *tasks: "asyncio.Task[Found]") -> list[Any]:
        """Open the gate once everything has arrived; returns the results of the tasks."""
        await settled()
        self.adapter.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    def sent(self) -> list[dict[str, dict[str, int]]]:
        """The content of each request: group -> shard -> offset."""
        return [
            {group.group: dict(zip(group.shard_names, group.offsets, strict=True)) for group in request.groups}
            for request in self.adapter.requests
        ]

    async def ended(self) -> None:
        """Check that nothing is left over once the pauses of abandoned commits have passed."""
        await asyncio.sleep(MAX_PAUSE_S)
        await settled()
        batcher = self.batcher
        assert batcher.limit.used == sum(batcher._in_flight) == 0
        for left in (batcher._shared_queue, batcher._separate_queue, batcher._delayed, batcher._requests):
            assert not left
        assert all(group.idle and not group.open for group in batcher._groups.values())


def codes(found: Iterable[Any]) -> list[Any]:
    """Errors as their codes, other results unchanged."""
    return [one.code() if isinstance(one, grpc.aio.AioRpcError) else one for one in found]


async def settled() -> None:
    """Run everything that does not have to wait."""
    for _ in range(20):
        await asyncio.sleep(0)


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in virtual time; it fails if it does not end, or if an error of a callback or task was never read."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        loop = VirtualLoop()
        try:
            task = loop.create_task(test(*args, **kwargs))
            loop.run_for(LONG_S)
            assert task.done(), "somebody waits for ever"
            task.result()
            assert loop.errors == []
        finally:
            loop.close()

    return run
