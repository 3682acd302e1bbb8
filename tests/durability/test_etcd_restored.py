"""A Raft group of offsets comes back from an old snapshot: Meta Services have no memory, so that of the adapters counts (3)."""

import shutil
from contextlib import ExitStack
from pathlib import Path

from adapter.client.client import OffsetClient
from adapter.testing.etcd import LocalCluster
from adapter.testing.history import History
from adapter.testing.processes import adapter_process, ended
from adapter.testing.waiting import eventually
from tests.durability.callers import WAIT_S, Callers
from tests.durability.etcd_cluster import OFFSETS, etcd, meta_process
from tests.durability.machine import require
from tests.durability.restored import NOTICED, at_least_in
from tests.integration.helpers import status_of, until_clean


async def test_adapters_push_again_what_an_old_snapshot_does_not_have(tmp_path: Path) -> None:
    """The same cluster at a lower revision. Idle adapters notice by their light calls; the Meta Service tells it too."""
    require("a Raft group that is restored", etcd)
    metadata = LocalCluster("metadata", 1, directory=tmp_path / "etcd")
    offsets = LocalCluster(OFFSETS, 1, directory=tmp_path / "etcd")
    (member,) = offsets.members
    data, copy = member.directory / "data", tmp_path / "copy"
    history = History()
    with ExitStack() as stack:
        stack.enter_context(metadata)
        stack.enter_context(offsets)
        meta = meta_process(tmp_path / "Meta Service", metadata.endpoints, offsets.endpoints)
        adapter = adapter_process(tmp_path / "a", meta.address)
        stack.enter_context(ended(adapter, meta))
        meta.start()
        adapter.start()
        await Callers(adapter.address, history).run(turns=1)
        await _flushed(adapter.address)
        member.kill()
        shutil.copytree(data, copy)
        offsets.start()
        for _ in range(10):
            await Callers(adapter.address, history).run(turns=1)
            await _flushed(adapter.address)
        assert status_of(adapter).meta_losses == 0
        member.kill()
        shutil.rmtree(data)
        copy.rename(data)
        offsets.start()
        await at_least_in(meta, history)
        await eventually(lambda: "meta.compared_again" in adapter.log, WAIT_S)
        assert NOTICED in adapter.log
        assert "etcd.holds_less" in meta.log
        assert status_of(adapter).meta_losses >= 1


async def _flushed(address: str) -> None:
    async with OffsetClient.connect(address, WAIT_S) as client:
        await until_clean(client)
