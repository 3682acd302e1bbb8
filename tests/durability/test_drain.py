"""A drain of many chunks, killed in its middle: what was acknowledged to consumers is here and there in the end (1, 2, 3)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread

from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.records import OffsetKey
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests.durability.load import LIMIT_S, Positions
from tests.durability.proxy import Proxy

GROUPS, SHARDS = 10, 200
KEYS = GROUPS * SHARDS
# Some 100 entries in a chunk, so that there are 20 of them.
SETTINGS = "[flush]\nmax_batch_bytes = 16384\nbackoff_max_ms = 200\n[recovery]\nbatch_keys = 500\ntimeout_ms = 100"
ANSWER_S = 0.05  # delay of each answer, so that the drain can be met halfway


class Outage:
    """An adapter with many dirty keys, a Meta Service behind a slow line, and the ledger of what was acknowledged."""

    def __init__(self, directory: Path, meta: ServiceProcess, line: Proxy) -> None:
        self.meta, self.line = meta, line
        self.adapter = adapter_process(directory, line.address, extra=SETTINGS)
        self.ledger: dict[OffsetKey, int] = {}

    async def commit(self, offset: int, shards: int = SHARDS) -> None:
        """Commit this offset in each group; noted when it is acknowledged."""
        async with OffsetClient.connect(self.adapter.address, LIMIT_S) as client:
            for number in range(GROUPS):
                offsets = {f"s{at}": offset for at in range(shards)}
                await client.commit(f"g{number}", offsets)
                self.ledger.update((OffsetKey("default", f"g{number}", shard), offset) for shard in offsets)

    async def dirty(self) -> int:
        """How many keys are."""
        async with OffsetClient.connect(self.adapter.address, LIMIT_S) as client:
            return (await client.status()).dirty_keys

    async def halfway(self) -> None:
        """Return when a part of it has been drained."""
        with anyio.fail_after(LIMIT_S):
            while await self.dirty() > KEYS * 0.8:  # noqa: ASYNC110 - no event tells it
                await anyio.sleep(0.01)

    async def fails(self) -> None:
        """Return when a flush has failed."""
        async with OffsetClient.connect(self.adapter.address, LIMIT_S) as client:
            with anyio.fail_after(LIMIT_S):
                while not (await client.status()).last_flush_error:  # noqa: ASYNC110
                    await anyio.sleep(0.01)

    async def drained(self) -> None:
        """Return when nothing is dirty."""
        with anyio.fail_after(LIMIT_S):
            while await self.dirty():  # noqa: ASYNC110
                await anyio.sleep(0.02)

    async def stored(self) -> Positions:
        """What the Meta Service holds."""
        async with GrpcMetaClient.open(MetaSection(endpoints=(self.meta.address,))) as client:
            return {key: record.position for key, record in (await client.get(sorted(self.ledger))).items()}


@asynccontextmanager
async def outage(directory: Path) -> AsyncIterator[Outage]:
    """All keys are dirty, and the Meta Service is down."""
    meta = meta_process(directory)
    async with Proxy(meta.address).listening() as line:
        found = Outage(directory, meta, line)
        line.delay_s = ANSWER_S
        with ended(meta, found.adapter):
            await anyio.to_thread.run_sync(found.adapter.start)
            await found.commit(1)
            assert await found.dirty() == KEYS
            yield found


async def test_a_meta_service_killed_in_the_middle_of_a_drain_gets_everything(tmp_path: Path) -> None:
    """Once it is back; a chunk of which the answer was lost is sent again, with what was committed meanwhile (3, 4)."""
    async with outage(tmp_path) as found:
        await anyio.to_thread.run_sync(found.meta.start)
        await found.halfway()
        found.meta.kill()
        await found.commit(2, SHARDS // 4)
        left = await found.dirty()
        await anyio.to_thread.run_sync(found.meta.start)
        before = await found.stored()
        # What is clean is there: at least as many keys as are not dirty any more, nor again.
        assert before
        assert len(before) >= KEYS - left
        await found.drained()
        stands = await found.stored()
        assert stands == {key: (1, offset) for key, offset in found.ledger.items()}
        assert all(stands[key] >= position for key, position in before.items())


async def test_answers_that_are_cut_in_the_middle_of_a_drain_lose_nothing(tmp_path: Path) -> None:
    """Their chunks are there, but the adapter cannot know: they are sent again, with what was committed meanwhile (2, 4)."""
    async with outage(tmp_path) as found:
        await found.fails()
        await anyio.to_thread.run_sync(found.meta.start)
        await found.halfway()
        found.line.cutting = True
        await found.commit(2, SHARDS // 4)
        await found.fails()
        found.line.cutting = False
        await found.drained()
        assert await found.stored() == {key: (1, offset) for key, offset in found.ledger.items()}


async def test_an_adapter_killed_in_the_middle_of_a_drain_brings_the_rest_after_its_start(tmp_path: Path) -> None:
    """Its store knows what it has not brought, whatever was clean in memory (1, 3, 9)."""
    async with outage(tmp_path) as found:
        await anyio.to_thread.run_sync(found.meta.start)
        await found.halfway()
        await found.commit(2, SHARDS // 4)
        found.adapter.kill()
        before = await found.stored()
        assert before
        await anyio.to_thread.run_sync(found.adapter.start)
        await eventually(found.adapter.healthy, LIMIT_S)
        await found.drained()
        stands = await found.stored()
        assert stands == {key: (1, offset) for key, offset in found.ledger.items()}
        assert all(stands[key] >= position for key, position in before.items())
        async with OffsetClient.connect(found.adapter.address, LIMIT_S) as client:
            assert not (await client.status()).HasField("loss")
            rows = await client.read("g0")
            assert {shard: (row.epoch, row.offset) for shard, row in rows.items()} == {
                key.shard: position for key, position in stands.items() if key.group == "g0"
            }
