"""Tells a RobustMQ broker of groups whose offsets others changed: it answers from its map until that is emptied.

The map of a group is emptied as a whole, as RobustMQ's Meta Service has it done (`GroupOffset`, `Delete`); with `Update` the
broker would keep a map without the shards, and answer that there are no offsets. A notice has no offsets: it may be repeated.
What the broker saves and reads itself is no news to it, and its own calls say so (`known`).
"""

import asyncio
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import anyio
import grpc
import grpc.aio
import structlog

from adapter.model.records import GroupKey, OffsetKey
from adapter.rpc import robustmq_grpc, robustmq_pb
from adapter.runtime.backoff import pause_s
from adapter.runtime.channels import close_channels, mark_again, open_channel_with
from adapter.sidecar.engine.core import Core
from adapter.sidecar.front.counts import FrontCounts

log = structlog.get_logger(__name__)

GROUPS_MAX = 10_000  # that wait to be told; of more, all groups of the store are told
AT_ONCE = 200  # groups of a call
TIMEOUT_S = 3.0
AGAIN_S, AGAIN_MAX_S = 0.1, 5.0


class Notices:
    """The groups of which the broker is still to be told."""

    def __init__(self, counts: FrontCounts) -> None:
        self._counts = counts
        self._groups: dict[GroupKey, None] = {}
        self._all = False
        self._calls: Counter[GroupKey] = Counter()  # calls of the broker that are under way
        self._noted: dict[GroupKey, set[OffsetKey]] = {}  # changes meanwhile
        self._changed = asyncio.Event()

    def note(self, keys: Collection[OffsetKey]) -> None:
        """These keys changed."""
        for key in keys:
            group = key.group_key
            if group in self._calls:
                self._noted.setdefault(group, set()).add(key)
            else:
                self.add(group)

    def add(self, group: GroupKey) -> None:
        """The broker's map of this group is not what is stored."""
        if not self._all:
            self._groups[group] = None
        if len(self._groups) > GROUPS_MAX:
            self._groups.clear()
            self._all = True
        self._count()
        self._changed.set()

    @contextmanager
    def known(self, groups: Iterable[GroupKey], keys: set[OffsetKey] | None = None) -> Iterator[None]:
        """What changes inside is the broker's own doing: of `keys`, as they are at the end; without them, all of these groups."""
        calls = list(groups)
        self._calls.update(calls)
        try:
            yield
        finally:
            self._calls.subtract(calls)
            for group in calls:
                if not self._calls[group]:
                    del self._calls[group]
                    noted = self._noted.pop(group, set())
                    if keys is not None and not noted <= keys:
                        self.add(group)

    async def run(self, core: Core, address: str) -> None:
        """Tell the broker, until cancelled. Not what changes before all offsets are compared: mostly it has saved that itself."""
        await core.ledger.recovered.settled.wait()
        with core.ledger.watches.telling(self):
            channel = open_channel_with(address, None, ())
            try:
                stub = robustmq_grpc.BrokerServiceStub(channel)
                while True:
                    while not (self._groups or self._all):
                        self._changed.clear()
                        await self._changed.wait()
                    await self._tell(core, stub)
            finally:
                await close_channels([channel])

    async def _tell(self, core: Core, stub: "robustmq_grpc.BrokerServiceAsyncStub") -> None:
        """Tell what waits. What is noted meanwhile is told again."""
        told_all, groups = self._all, list(islice(self._groups, AT_ONCE))
        self._all = False
        for group in groups:
            del self._groups[group]
        try:
            await self._until_told(stub, groups)
            if told_all:
                some: list[GroupKey] = []
                async for group in core.groups.live(deleted=True):
                    some.append(group)
                    if len(some) == AT_ONCE:
                        await self._until_told(stub, some)
                        some = []
                await self._until_told(stub, some)
        except BaseException:  # the store failed, or the adapter stops
            self._all |= told_all
            self._groups.update(dict.fromkeys(groups))
            raise

    async def _until_told(self, stub: "robustmq_grpc.BrokerServiceAsyncStub", groups: list[GroupKey]) -> None:
        request = robustmq_pb.UpdateCacheRequest(records=[_record(group) for group in groups])
        failures = 0
        while groups:
            self._count(len(groups))
            try:
                await stub.UpdateCache(request, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                failures += 1
                text = f"{error.code().name}: {error.details()}"
                if self._counts.broker_error != text:
                    log.warning("robustmq.untold", broker=self._counts.broker, error=text, help="it is told again and again")
                self._counts.broker_error = text
                await anyio.sleep(pause_s(failures, AGAIN_S, AGAIN_MAX_S))
            except asyncio.CancelledError:
                await mark_again()
                raise
            else:
                self._counts.broker_error = ""
                self._counts.told += len(groups)
                break
        self._count()

    def _count(self, telling: int = 0) -> None:
        self._counts.untold = len(self._groups) + telling


def _record(group: GroupKey) -> robustmq_pb.UpdateCacheRecord:
    """What empties the map of a group: RobustMQ's `ShareGroup`, with its names alone.

    Its fields: uuid, tenant, group_name, leader_broker (u64), sub_params (an enum whose first variant has no fields), create_time
    (u64), as bincode 1 writes them: the length of a text in eight bytes, the number of a variant in four, little-endian.
    """
    texts = b"".join(struct.pack("<Q", len(text)) + text for text in (b"", group.namespace.encode(), group.group.encode()))
    return robustmq_pb.UpdateCacheRecord(
        action_type=robustmq_pb.UpdateCacheRecord.DELETE,
        resource_type=robustmq_pb.UpdateCacheRecord.GROUP_OFFSET,
        data=texts + struct.pack("<QIQ", 0, 0, 0),
    )
