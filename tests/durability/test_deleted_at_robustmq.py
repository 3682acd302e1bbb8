"""A group that RobustMQ deleted, at an adapter that still has it: what a broker may call there (docs/robustmq.md)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from adapter.client.client import OffsetClient
from adapter.rpc import offsets_pb
from adapter.testing.processes import adapter_process, ended
from adapter.testing.waiting import PATIENCE_S
from tests.dialect import robust_meta

GROUP, SHARD = "g", "orders/0"

Hook = Callable[[OffsetClient], Awaitable[object]]


async def _delete(client: OffsetClient) -> None:
    request = offsets_pb.DeleteOffsetsRequest(group=GROUP, execute=True)
    await client.admin.DeleteOffsets(request, timeout=PATIENCE_S)


async def _remove(client: OffsetClient) -> None:
    await client.remove(GROUP)


async def _nothing(_: OffsetClient) -> None:
    pass


@pytest.mark.parametrize(
    ("hook", "stands"),
    [(_delete, set()), (_remove, {42}), (_nothing, {42})],
    ids=["delete", "remove", "nothing"],
)
async def test_a_stale_adapter_sends_a_deleted_group_again_unless_it_deletes_it_too(
    hook: Hook, stands: set[int], tmp_path: Path
) -> None:
    """A hand-over makes sure that it stands there, and so does a start. Only a delete at the adapter is followed by none."""
    with robust_meta() as meta:
        adapter = adapter_process(tmp_path, meta.address)
        with ended(adapter):
            await asyncio.to_thread(adapter.start)
            async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
                await client.commit(GROUP, {SHARD: 42})
                await client.persist(GROUP)
                meta.offsets.clear()  # as another broker's DeleteOffsetData does
                await hook(client)
            adapter.kill()
            await asyncio.to_thread(adapter.start)
            assert set(meta.offsets.values()) == stands
