"""What the bridge finds in the store, beside what is of other brokers."""

from pathlib import Path

import anyio
import anyio.lowlevel

from adapter.model.records import OffsetKey
from adapter.sidecar.bridge.agreement import Agreed
from adapter.sidecar.bridge.store_changes import StoreChanges
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import commit_of, core_over, key, send

OURS = key("broker-a/T/0")


def is_ours(found: OffsetKey) -> bool:
    """Whether a key is of this broker."""
    return found.shard.startswith("broker-a/")


async def test_offsets_of_other_brokers_are_left_out_while_the_store_is_looked_through(tmp_path: Path) -> None:
    """There may be many times as many as of this one: a group is loaded as a whole. Other tasks run meanwhile."""
    async with core_over(tmp_path, FakeMeta()) as core:
        await send(core, commit_of({key(f"broker-b/T/{queue}"): 1 for queue in range(1_000)} | {OURS: 7}))
        with core.ledger.watches.own(("default",)) as watcher:
            changes = StoreChanges(core.ledger.store, watcher, "default")
            others = 0

            async def count() -> None:
                nonlocal others
                while True:
                    await anyio.lowlevel.checkpoint()
                    others += 1

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(count)
                found = await changes.differing({}, is_ours)
                tasks.cancel_scope.cancel()
            assert {one: record.offset for one, record in found.items()} == {OURS: 7}
            assert others > 3
            changes.look_at_all()
            assert await changes.differing({OURS: Agreed.on(7, core.ledger.store.get(OURS))}, is_ours) == {}
