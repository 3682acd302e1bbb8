"""Without the Meta Service: what is promised at a start (invariant 9) and from the middle (4). Real processes."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from adapter.meta.client import GrpcMetaClient
from adapter.model.records import SaveEntry, Status
from adapter.rpc import meta_pb, offsets_pb
from adapter.sidecar.engine.reads import NOT_COMPARED
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from tests.integration.helpers import (
    PATIENCE_S,
    Rpc,
    commits,
    key,
    meta_rpc,
    meta_section,
    record,
    rpc,
    status_of,
    stored_in,
    wait_until,
)

TIMEOUT_S = 1.5
SETTINGS = f"[recovery]\ntimeout_ms = {int(TIMEOUT_S * 1000)}\n[flush]\nbackoff_max_ms = 200\n[stop]\ndrain_timeout_ms = 60000"
STATE = offsets_pb.StatusReply
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def _read(stubs: Rpc, shard: str, mode: offsets_pb.ReadMode.ValueType, group: str = "g") -> list[offsets_pb.ShardOffset]:
    wanted = [offsets_pb.GroupShards(group=group, shards=[shard] if shard else [])]
    reply = stubs.store.ReadOffsets(offsets_pb.ReadOffsetsRequest(groups=wanted, mode=mode), timeout=PATIENCE_S)
    return list(reply.offsets)


def _refused(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details() or ""


def _commit(stubs: Rpc, offsets: dict[str, int], *, overwrite: bool = False) -> None:
    stubs.store.CommitOffsets(commits(offsets, overwrite=overwrite), timeout=PATIENCE_S)


def _leave_dirty(adapter: ServiceProcess, meta: ServiceProcess) -> None:
    """Run once, and be killed with one key that the Meta Service has and one that it has not."""
    adapter.start()
    with rpc(adapter.address) as stubs:
        _commit(stubs, {"flushed": 1})
        stubs.admin.Flush(offsets_pb.FlushRequest(), timeout=PATIENCE_S)
        meta.kill()
        _commit(stubs, {"dirty": 1})
    adapter.kill()


def test_a_start_without_the_meta_service_is_degraded_and_recovers_when_it_is_back(directory: Path, meta: ServiceProcess) -> None:
    """Commits and no reads until `recovery.timeout_ms`, then no reads of the store, then all of it (9)."""
    adapter = adapter_process(directory, meta.address, extra=SETTINGS)
    with ended(adapter):
        _leave_dirty(adapter, meta)
        launched = time.monotonic()
        adapter.launch()
        with rpc(adapter.address) as stubs:
            _is_not_ready_before_the_timeout(adapter, stubs, launched)
            _is_degraded(adapter, stubs)
        meta.start()
        wait_until(lambda: status_of(adapter).recovery.done, "recovered")
        status = status_of(adapter)
        assert (status.reason, status.recovery.done, status.recovery.compared) == ("", True, 3)
        wait_until(lambda: not status_of(adapter).dirty_keys, "all is pushed")
        assert stored_in(meta) == {key("flushed"): (1, 1), key("dirty"): (1, 2), key("new"): (1, 1)}
        with rpc(adapter.address) as stubs:
            assert len(_read(stubs, "", offsets_pb.STORE)) == 3
        assert adapter.stop() == 0


def _is_not_ready_before_the_timeout(adapter: ServiceProcess, stubs: Rpc, launched: float) -> None:
    request = offsets_pb.StatusRequest()
    status = stubs.admin.Status(request, timeout=PATIENCE_S, wait_for_ready=True)
    if status.state == STATE.RECOVERING:  # else this process was held up for longer than the timeout
        with suppress(grpc.RpcError):  # the call waits for longer than the timeout, unless its connection came too early
            assert [row.offset for row in _read(stubs, "flushed", offsets_pb.MEMORY)] == [1]
            assert time.monotonic() - launched > TIMEOUT_S
    adapter.wait_ready()
    assert time.monotonic() - launched > TIMEOUT_S


def _is_degraded(adapter: ServiceProcess, stubs: Rpc) -> None:
    assert all(adapter.healthy(service) for service in ("", "offsets.v1.OffsetStore", "offsets.v1.OffsetAdmin"))
    status = status_of(adapter)
    assert (status.state, status.recovery.done, status.meta_available) == (STATE.DEGRADED, False, False)
    assert status.reason
    assert status.dirty_keys == 1  # what the killed process left, known from the flushed watermark
    _commit(stubs, {"new": 1, "dirty": 2})
    assert status_of(adapter).dirty_keys == 2
    assert [row.offset for row in _read(stubs, "dirty", offsets_pb.MEMORY)] == [2]
    assert [row.offset for row in _read(stubs, "dirty", offsets_pb.MEMORY_FIRST_THEN_STORE)] == [2]
    for shard, mode in (("dirty", offsets_pb.STORE), ("absent", offsets_pb.MEMORY_FIRST_THEN_STORE)):
        code, text = _refused(lambda shard=shard, mode=mode: _read(stubs, shard, mode))  # type: ignore[misc]
        assert code is UNAVAILABLE
        assert text.startswith(f"default/g: {NOT_COMPARED}: ")


def test_an_empty_store_without_the_meta_service_is_degraded_too(directory: Path) -> None:
    """There is nothing to compare, but the Meta Service was not reached either: status says so (9)."""
    meta = meta_process(directory)
    adapter = adapter_process(directory, meta.address, extra=SETTINGS)
    with ended(adapter, meta):
        launched = time.monotonic()
        adapter.start()
        status = status_of(adapter)
        assert (status.state, status.meta_available) == (STATE.DEGRADED, False)
        assert time.monotonic() - launched > TIMEOUT_S
        meta.start()
        wait_until(lambda: status_of(adapter).state == STATE.SERVING, "recovered")


def test_a_degraded_commit_takes_the_epoch_that_stands_when_the_meta_service_is_back(
    directory: Path, meta: ServiceProcess
) -> None:
    """Meanwhile its epoch is unknown: a larger offset stands above the stored one in the end (1, 2), a rewind is refused."""
    adapter = adapter_process(directory, meta.address, extra=SETTINGS)
    with ended(adapter):
        _leave_dirty(adapter, meta)
        meta.start()
        with meta_rpc(meta.address) as stub:
            stub.SaveOffsetData(_save("moved", 5, 3), timeout=PATIENCE_S)
            stub.SaveOffsetData(_save("ahead", 50, 3), timeout=PATIENCE_S)
        meta.kill()
        adapter.start()
        with rpc(adapter.address) as stubs:
            _commit(stubs, {"moved": 9, "ahead": 9})
            code, text = _refused(lambda: _commit(stubs, {"moved": 4}, overwrite=True))
            assert code is UNAVAILABLE
            assert text.startswith("default/g/moved: cannot be rewound now")
            meta.start()
            wait_until(lambda: status_of(adapter).recovery.done, "recovered")
            wait_until(lambda: not status_of(adapter).dirty_keys, "all is pushed")
            _commit(stubs, {"moved": 4}, overwrite=True)
            stubs.admin.Flush(offsets_pb.FlushRequest(), timeout=PATIENCE_S)
        found = stored_in(meta)
        assert (found[key("moved")], found[key("ahead")]) == ((4, 4), (3, 50))


def _save(shard: str, offset: int, epoch: int) -> meta_pb.SaveOffsetDataRequest:
    row = meta_pb.SaveOffsetDataRequestOffset(namespace="default", shard_name=shard, offset=offset, epoch=epoch)
    return meta_pb.SaveOffsetDataRequest(cluster_name="default", offsets=[meta_pb.SaveOffsetData(group="g", offsets=[row])])


def test_dirty_keys_grow_with_the_keys_and_not_with_the_commits(directory: Path, meta: ServiceProcess) -> None:
    """The Meta Service is gone from the middle: every commit is acknowledged, and only the newest of a key waits (4)."""
    adapter = adapter_process(directory, meta.address, extra=SETTINGS)
    keys, rounds = 300, 60
    with ended(adapter):
        adapter.start()
        with rpc(adapter.address) as stubs:
            _commit(stubs, dict.fromkeys((f"s{at}" for at in range(keys)), 1))
            meta.kill()
            for offset in range(2, rounds + 2):
                _commit(stubs, dict.fromkeys((f"s{at}" for at in range(keys)), offset))
        status = status_of(adapter)
        assert (status.state, status.dirty_keys, status.commits) == (STATE.SERVING, keys, keys * (rounds + 1))
        wait_until(lambda: not status_of(adapter).meta_available, "the outage is noticed")
        assert status_of(adapter).last_flush_error
        meta.start()
        wait_until(lambda: not status_of(adapter).dirty_keys, "all is pushed")
        assert stored_in(meta) == {key(f"s{at}"): (1, rounds + 1) for at in range(keys)}
        status = status_of(adapter)
        assert (status.meta_available, status.last_flush_error) == (True, "")
        assert adapter.stop() == 0


def test_a_hanging_meta_service_does_not_hold_up_commits(directory: Path, meta: ServiceProcess) -> None:
    """New keys of new groups wait for `load_timeout_ms` at most, once; then everything is acknowledged at once (4)."""
    limits = "[meta]\nload_timeout_ms = 200\ntimeout_ms = 500\n"
    adapter = adapter_process(directory, meta.address, extra=SETTINGS)
    adapter.settings = adapter.settings.replace("[meta]\n", limits)
    with ended(adapter):
        adapter.start()
        with rpc(adapter.address) as stubs:
            _commit(stubs, {"s": 1})
            meta.freeze()
            for at in range(100):
                stubs.store.CommitOffsets(commits({"s": 1}, f"g{at}"), timeout=PATIENCE_S)
            assert status_of(adapter).dirty_keys >= 100
            meta.thaw()
        wait_until(lambda: not status_of(adapter).dirty_keys, "all is pushed")
        assert len(stored_in(meta)) == 101


async def test_a_meta_service_restored_from_a_backup_is_repaired_at_the_next_start(directory: Path, meta: ServiceProcess) -> None:
    """Even after a clean stop every key is compared: nothing was dirty here, and yet it is pushed (9)."""
    adapter = adapter_process(directory, meta.address, extra=SETTINGS)
    restored = meta_process(directory / "restored")
    with ended(adapter, restored):
        adapter.start()
        with rpc(adapter.address) as stubs:
            _commit(stubs, {"a": 5, "b": 5})
        assert adapter.stop() == 0
        restored.start()
        async with GrpcMetaClient.open(meta_section(restored.address)) as client:
            saved = await client.save([SaveEntry(key("a"), record(3)), SaveEntry(key("b"), record(7))])
            assert [outcome.status for outcome in saved] == [Status.APPLIED, Status.APPLIED]
        adapter.settings = adapter.settings.replace(meta.address, restored.address)
        adapter.start()
        wait_until(lambda: status_of(adapter).recovery.done, "recovered")
        recovery = status_of(adapter).recovery
        assert (recovery.compared, recovery.pushed, recovery.adopted) == (2, 1, 1)
        assert stored_in(restored) == {key("a"): (1, 5), key("b"): (1, 7)}
        with rpc(adapter.address) as stubs:
            assert [row.offset for row in _read(stubs, "", offsets_pb.MEMORY)] == [5, 7]
        assert adapter.stop() == 0
