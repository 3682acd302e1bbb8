"""A reset holds its shards: real processes, killed right behind it, and with the Meta Service away (invariants 1 and 7)."""

import asyncio
from pathlib import Path

import pytest

from adapter.client.client import OffsetClient
from adapter.model.records import ReadMode
from adapter.rpc import offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from tests.integration.helpers import PATIENCE_S

SLOW = "[flush]\ninterval_ms = 60000\n"  # only what a reset writes reaches the Meta Service
ERA = 1 << 32


async def reset(client: OffsetClient, offset: int) -> None:
    """Reset the shard."""
    request = offsets_pb.ResetOffsetsRequest(group="g", shards=["a"], to_offset=offset, execute=True)
    await client.admin.ResetOffsets(request, timeout=PATIENCE_S)


async def late(client: OffsetClient, offset: int) -> tuple[int, int, bool]:
    """Commit as a consumer that knows nothing of a reset; returns what it is told."""
    [row] = await client.commit("g", {"a": offset}, check=False)
    return row.epoch, row.offset, row.held


async def begin(address: str) -> None:
    """Commit, reset, and commit what was in flight."""
    async with OffsetClient.connect(address, PATIENCE_S) as client:
        await client.commit("g", {"a": 200})
        await reset(client, 100)
        assert await late(client, 240) == (ERA, 100, True)


async def go_on(address: str, *, there: bool) -> None:
    """The consumer that was running goes on, then one reads where to begin."""
    async with OffsetClient.connect(address, PATIENCE_S) as client:
        assert await late(client, 250) == (ERA, 100, True)
        if not there:
            assert (await client.commit("g", {"a": 110}, epochs={"a": ERA})).raised == {"a": ERA + 1}
            return
        assert (await client.read("g", ["a"], mode=ReadMode.STORE))["a"].offset == 100
        assert await client.commit("g", {"a": 110}) == []


async def stands(address: str) -> tuple[int, int]:
    """What the shard has."""
    async with OffsetClient.connect(address, PATIENCE_S) as client:
        row = (await client.read("g", ["a"], mode=ReadMode.MEMORY))["a"]
        return row.epoch, row.offset


@pytest.mark.parametrize("there", [True, False], ids=["with the Meta Service", "without it"])
def test_a_hold_survives_a_kill_right_behind_the_reset(tmp_path: Path, there: bool) -> None:
    """It is part of the record: as durable as the reset itself. So is its end."""
    meta: ServiceProcess = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, extra=f"{SLOW}[recovery]\ntimeout_ms = 500\n")
    with ended(adapter, meta):
        meta.start()
        adapter.start()
        asyncio.run(begin(adapter.address))
        adapter.kill()
        if not there:
            meta.kill()
        adapter.start()
        asyncio.run(go_on(adapter.address, there=there))
        adapter.kill()
        adapter.start()
        assert asyncio.run(stands(adapter.address)) == (ERA + 1, 110)


def test_a_hold_is_there_on_an_empty_disk(tmp_path: Path) -> None:
    """The broker moved: the Meta Service has the only copy, and the shard is held there as well."""
    meta = meta_process(tmp_path)
    first = adapter_process(tmp_path / "1", meta.address, extra=SLOW)
    second = adapter_process(tmp_path / "2", meta.address, extra=SLOW)
    with ended(first, second, meta):
        meta.start()
        first.start()
        asyncio.run(begin(first.address))
        first.kill()
        second.start()
        asyncio.run(go_on(second.address, there=True))
