"""An adapter in memory with the rules of the real one, and with commits that fail in an exactly known way."""

# ruff: noqa: ARG002 - the signatures are those of OffsetClient

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType

import grpc

from adapter.client.client import OffsetClient
from adapter.client.pending import Committed, checked_offsets, rpc_error
from adapter.client.progress import Progress
from adapter.model.records import DEFAULT_NAMESPACE, FIRST_EPOCH, CommitMode, Member, OffsetRecord, ReadMode, decide, next_era
from adapter.rpc import offsets_pb


class Fault(Enum):
    """What happens to a commit. After an UNAVAILABLE its caller does not know whether it was applied."""

    NONE = "none"
    LOST = "not applied, no answer"
    UNANSWERED = "applied, no answer"


class FakeAdapter(OffsetClient):
    """Shards of one group, each with an offset in the first epoch at first.

    `faults` are those of the next commits; `gate` holds all answers back while it is not set.
    """

    def __init__(self, offsets: Mapping[str, int] = MappingProxyType({})) -> None:
        self.records = {shard: OffsetRecord(FIRST_EPOCH, offset) for shard, offset in offsets.items()}
        self.commits: list[tuple[CommitMode, dict[str, int]]] = []
        self.persisted: list[list[str]] = []
        self.faults: deque[Fault] = deque()
        self.unreadable = False
        self.reads = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()

    async def commit(
        self,
        group: str,
        offsets: Mapping[str, int | Progress],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        mode: CommitMode = CommitMode.INCREASE_ONLY,
        epochs: Mapping[str, int] = MappingProxyType({}),
        member: Member | None = None,
        check: bool = True,
    ) -> Committed:
        """Apply a commit as an adapter does."""
        numbers, _ = checked_offsets(offsets)
        self.commits.append((mode, numbers))
        self.arrived.set()
        fault = self.faults.popleft() if self.faults else Fault.NONE
        rows, raised = [], {}
        if fault is not Fault.LOST:
            for shard, offset in numbers.items():
                standing = self.records.get(shard)
                offered = OffsetRecord(epochs.get(shard, 0), offset)
                result = decide(offered, standing, mode)
                self.records[shard] = result._replace(epoch=result.epoch or FIRST_EPOCH)
                if standing and result.epoch > standing.epoch:
                    raised[shard] = result.epoch
                if result is standing and (offered.offset != standing.offset or offered.epoch < standing.epoch):
                    rows.append(offsets_pb.Superseded(shard=shard, epoch=standing.epoch, offset=standing.offset))
        await self.gate.wait()
        if fault is not Fault.NONE:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, "no route")
        return Committed(rows, raised)

    async def read(
        self,
        group: str,
        shards: Sequence[str] = (),
        *,
        namespace: str = DEFAULT_NAMESPACE,
        mode: ReadMode = ReadMode.MEMORY_FIRST_THEN_STORE,
        keep_hold: bool = False,
    ) -> dict[str, offsets_pb.ShardOffset]:
        """The stored records."""
        self.reads += 1
        await self.gate.wait()
        if self.unreadable:
            raise rpc_error(grpc.StatusCode.UNAVAILABLE, "no route")
        return {
            shard: offsets_pb.ShardOffset(shard=shard, epoch=record.epoch, offset=record.offset)
            for shard, record in self.records.items()
            if shard in shards
        }

    async def persist(self, group: str, shards: Sequence[str] = (), *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Record the call only."""
        self.persisted.append(list(shards))

    async def remove(self, group: str, shards: Sequence[str] = (), *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Record the call only: persisted offsets would be in the Meta Service, which does not exist here."""
        self.persisted.append(list(shards))
        return len(shards)

    def reset(self, shard: str, offset: int) -> None:
        """Reset as `offsets reset` does."""
        self.records[shard] = OffsetRecord(next_era(self.records[shard].epoch), offset)
