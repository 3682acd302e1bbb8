"""Shared by the tests of broadcasting groups: an adapter without gRPC, with a clock that the test sets."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from adapter.client.broker_log import NoBrokerLog
from adapter.model.broadcast_names import is_of_client
from adapter.model.records import OffsetRecord
from adapter.rpc import offsets_pb
from adapter.runtime.clocks import Clocks
from adapter.sidecar.api.offset_service import OffsetService
from adapter.sidecar.api.requests import parse_commit_broadcast, parse_read_broadcast
from adapter.sidecar.engine.core import Core, running_core
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config
from tests.unit.expiring import SetClock
from tests.unit.helpers import key, serving

WINDOW_MS = 300_000  # of the default
DEAD_MS = WINDOW_MS + 1


class World:
    """A core that takes clients' requests as the server does, and its clock."""

    def __init__(self, core: Core, clock: SetClock) -> None:
        self.core = core
        self.clock = clock
        self._service = OffsetService(serving(core), lambda: core, AdapterMetrics())

    async def commit(self, client: str, offsets: Mapping[str, int], group: str = "g") -> list[tuple[str, str, int]]:
        """Commit for a client; returns what supersedes the commit."""
        shards = [offsets_pb.ShardCommit(shard=shard, offset=offset) for shard, offset in offsets.items()]
        request = offsets_pb.CommitBroadcastRequest(group=group, client_id=client, shards=shards)
        reply = await self.core.broadcasts.commit(parse_commit_broadcast(request), group, self._service.commits.commit)
        return [(row.group, row.shard, row.offset) for row in reply.superseded]

    async def lowest(self, *shards: str) -> dict[str, tuple[int | None, str, int]]:
        """(offset, client, live clients) of each shard."""
        rows = await self._read("", shards)
        return {row.shard: (row.lowest if row.HasField("lowest") else None, row.lowest_client, row.clients) for row in rows}

    async def own(self, client: str, *shards: str) -> dict[str, int]:
        """The offsets that a client committed itself."""
        return {row.shard: row.own for row in await self._read(client, shards) if row.HasField("own")}

    async def _read(self, client: str, shards: tuple[str, ...]) -> list[offsets_pb.BroadcastOffset]:
        request = offsets_pb.ReadBroadcastRequest(group="g", client_id=client, shards=shards)
        return await self.core.broadcasts.read(await parse_read_broadcast(request))

    def kept(self) -> dict[str, tuple[int, str]]:
        """The stored lowest offsets of this adapter, and the client of each."""
        found = self.core.ledger.store.scan()
        return {
            where.shard: (held.offset, held.metadata) for where, held, _ in found if where.group == "g@broadcast" and held.live
        }

    def stored(self) -> OffsetRecord:
        """The lowest offset of the shard `s` in the Meta Service."""
        found = self.core.ledger.store.get(key("s", "g@broadcast"))
        assert found
        return found

    def clients(self) -> set[str]:
        """The clients whose offsets are in the local store."""
        return {
            where.group.partition("@broadcast@")[2]
            for where, _, _ in self.core.ledger.store.scan()
            if is_of_client(where.group_key)
        }

    async def sweep(self) -> None:
        """Flush everything to the Meta Service, then remove what has expired."""
        await self.core.flusher.flush_once()
        await self.core.expiry.sweep_once()


@asynccontextmanager
async def world(directory: Path, meta: FakeMeta | None = None, clock: SetClock | None = None) -> AsyncIterator[World]:
    """An adapter without gRPC, with the clock of the test."""
    config = adapter_config(directory)
    store = LocalStore.open(config.store.path, config.store.wal_sync)
    clock = clock or SetClock()
    parts = (config, store, meta or FakeMeta(), AdapterMetrics(), NoBrokerLog(), Clocks(now_ms=clock.now_ms))
    async with running_core(*parts) as core:
        core.ledger.recovered.finish()
        yield World(core, clock)
