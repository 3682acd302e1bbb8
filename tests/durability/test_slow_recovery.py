"""After a power cut, with a Meta Service that is slow: the recovery ends, and shows how far it is (9)."""

from pathlib import Path

import anyio
import anyio.to_thread

from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.records import OffsetKey, SaveEntry
from adapter.rpc import offsets_pb
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.processes import adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests.durability.callers import WAIT_S
from tests.durability.proxy import Proxy
from tests.unit.helpers import key, record
from tests.unit.sidecar.engine.losses import lost

GROUPS, SHARDS = 40, 300
PATIENCE_S = 60.0
KILLS = 3
BYTES_PER_S = 600_000.0  # the rows of all groups take about a second, a whole page of them longer than a call may
SETTINGS = "timeout_ms = 400\n[recovery]\ntimeout_ms = 0\n"


async def test_a_recovery_after_a_loss_ends_though_the_meta_service_is_slow(tmp_path: Path) -> None:
    """It asked for all groups in one call, and that again and again, for ever, as if nothing had been compared."""
    local = {key("s000", f"g{group:02}"): record(5) for group in range(GROUPS)}
    store = LocalStore.open(tmp_path / "adapter", "interval")
    store.write(local)
    store.close()
    lost(tmp_path, 1)
    there = [OffsetKey(*where[:2], f"s{shard:03}") for where in local for shard in range(SHARDS)]
    meta = meta_process(tmp_path / "meta")
    proxy = Proxy(meta.address)
    adapter = adapter_process(tmp_path, proxy.address, extra=SETTINGS)
    async with proxy.listening():
        with ended(adapter, meta):
            meta.start()
            async with GrpcMetaClient.open(MetaSection(endpoints=(meta.address,), timeout_ms=60_000)) as client:
                await client.save([SaveEntry(where, record(7)) for where in there])
            proxy.bytes_per_s = BYTES_PER_S
            adapter.launch()
            states: list[offsets_pb.StatusReply] = []
            async with OffsetClient.connect(adapter.address, WAIT_S) as admin:
                await eventually(lambda: "sidecar.serving" in adapter.log, WAIT_S)
                with anyio.fail_after(PATIENCE_S):
                    while not states or not states[-1].recovery.done:
                        states.append(await admin.status())
                degraded = [state for state in states if state.state == offsets_pb.StatusReply.DEGRADED]
                for state in degraded:
                    assert f"compared {state.recovery.compared} of {state.recovery.of} keys" in state.reason
                last = states[-1].recovery
                assert (last.compared, last.adopted, last.failed) == (GROUPS, len(there), 0)
                assert states[-1].stored_keys == len(there)
    assert "no answer within 0.4 s" in adapter.log  # else nothing was slow
    compared = [state.recovery.compared for state in states]
    assert compared == sorted(compared)


async def test_a_kill_while_columns_are_adopted_loses_nothing(tmp_path: Path) -> None:
    """Each row is there as the Meta Service has it, or not at all; commits that were acknowledged meanwhile stand (1, 2)."""
    local = {key("s000", f"g{group:02}"): record(5) for group in range(GROUPS)}
    there = [OffsetKey(*where[:2], f"s{shard:03}") for where in local for shard in range(SHARDS)]
    meta = meta_process(tmp_path / "meta")
    proxy = Proxy(meta.address)
    adapter = adapter_process(tmp_path, proxy.address)
    committed: dict[OffsetKey, int] = {}
    in_the_middle = 0  # on a busy machine a later kill may come behind the last row
    async with proxy.listening():
        with ended(adapter, meta):
            meta.start()
            async with GrpcMetaClient.open(MetaSection(endpoints=(meta.address,), timeout_ms=60_000)) as client:
                await client.save([SaveEntry(where, record(7)) for where in there])
                held = await client.get(there)
                for part in range(1, KILLS + 1):
                    store = LocalStore.open(tmp_path / "adapter", "interval")
                    store.write({where: record(5) for where in local if store.get(where) is None})
                    store.close()
                    lost(tmp_path, 1)
                    proxy.bytes_per_s = BYTES_PER_S
                    adapter.launch()
                    async with OffsetClient.connect(adapter.address, WAIT_S) as caller:
                        await eventually(lambda: "sidecar.takes_commits" in adapter.log, WAIT_S)
                        reached = 0
                        with anyio.fail_after(PATIENCE_S):
                            while reached < part * len(there) // (KILLS + 1):
                                where = there[len(committed)]
                                await caller.commit(where.group, {where.shard: 100})
                                committed[where] = 100
                                reached = (await caller.status()).stored_keys
                    adapter.kill()
                    store = LocalStore.open(tmp_path / "adapter", "interval")
                    assert not store.loss_at_open
                    found = {stored.key: stored.record for stored in store.scan()}
                    assert part * len(there) // (KILLS + 1) <= len(found) <= len(there)
                    in_the_middle += len(found) < len(there)
                    assert {found[where].offset for where in committed} == {100}
                    assert all(found[where] == held[where] for where in found if where not in committed and where not in local)
                    store.close()
                proxy.bytes_per_s = 0.0
                await anyio.to_thread.run_sync(adapter.start)
                # It sends what the killed ones left.
                assert await anyio.to_thread.run_sync(adapter.stop) == 0, adapter.log
                held = await client.get(there)
    assert {where: held[where].offset for where in there} == {where: committed.get(where, 7) for where in there}
    assert in_the_middle
