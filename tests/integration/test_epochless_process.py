"""Real adapter processes before servers without epochs: `kill -9`, a degraded start, a stop before the recovery, and failover."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from adapter.rpc import offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended
from tests.dialect import Failure, RobustMeta, failing, robust_meta
from tests.integration.helpers import PATIENCE_S, commits, key, rpc, status_of, stored_in, wait_until

A, B = key("a"), key("b")
STATE = offsets_pb.StatusReply
QUICK = (
    "[meta]\ntimeout_ms = 2000\n[recovery]\ntimeout_ms = 1000\n"
    "[flush]\nbackoff_max_ms = 200\nrefused_retry_ms = 200\n[stop]\ndrain_timeout_ms = 1000"
)


@pytest.fixture
def robust() -> Iterator[RobustMeta]:
    """A running server without epochs."""
    with robust_meta() as service:
        yield service


def _adapter(directory: Path, *endpoints: str) -> ServiceProcess:
    # The last section of the settings is [meta] with its endpoints.
    return adapter_process(directory, "', '".join(endpoints), extra=QUICK.removeprefix("[meta]\n"))


def _commit(adapter: ServiceProcess, offsets: dict[str, int], *, overwrite: bool = False) -> None:
    with rpc(adapter.address) as stubs:
        stubs.store.CommitOffsets(commits(offsets, overwrite=overwrite), timeout=PATIENCE_S)


def _local(adapter: ServiceProcess) -> dict[str, int]:
    wanted = [offsets_pb.GroupShards(group="g")]
    with rpc(adapter.address) as stubs:
        reply = stubs.store.ReadOffsets(offsets_pb.ReadOffsetsRequest(groups=wanted, mode=offsets_pb.MEMORY), timeout=PATIENCE_S)
    return {row.shard: row.offset for row in reply.offsets}


def _refusing_shard(shard: str) -> Callable[[str, Any], None]:
    """Refuse saves of a shard."""

    def before(_: str, request: Any) -> None:
        if any(row.shard_name == shard for group in getattr(request, "offsets", ()) for row in group.offsets):
            raise Failure(grpc.StatusCode.INVALID_ARGUMENT, "no by the test")

    return before


def _is_clean(adapter: ServiceProcess) -> bool:
    return not status_of(adapter).dirty_keys


def _killed_with(adapter: ServiceProcess, robust: RobustMeta, dirty: dict[str, int]) -> None:
    """Run; be killed with these commits acknowledged and not flushed."""
    adapter.start()
    _commit(adapter, {"a": 1, "b": 1})
    wait_until(lambda: _is_clean(adapter), "the first commits are flushed")
    robust.before = failing(*[grpc.StatusCode.UNAVAILABLE] * 1000)
    _commit(adapter, dirty)
    adapter.kill()
    robust.before = failing()


def test_what_was_acknowledged_survives_a_kill_and_takes_nothing_back(directory: Path, robust: RobustMeta) -> None:
    """Dirty and larger here: pushed. Another broker went on meanwhile: adopted (1, 2)."""
    adapter = _adapter(directory, robust.address)
    with ended(adapter):
        _killed_with(adapter, robust, {"a": 5, "b": 5})
        robust.offsets[B] = 9
        adapter.start()
        recovery = status_of(adapter).recovery
        assert (recovery.pushed, recovery.adopted, recovery.failed) == (1, 1, 0)
        assert _local(adapter) == {"a": 5, "b": 9}
        assert robust.offsets == {A: 5, B: 9}
        assert adapter.stop() == 0
        assert "meta.no_epochs" in adapter.log


def test_a_degraded_start_compares_before_it_flushes(directory: Path, robust: RobustMeta) -> None:
    """What a former process left dirty, and what was committed meanwhile: none of it is saved unseen (2, 9)."""
    adapter = _adapter(directory, robust.address)
    with ended(adapter):
        _killed_with(adapter, robust, {"a": 5, "b": 5})
        robust.stop()
        adapter.start()
        assert status_of(adapter).state == STATE.DEGRADED
        _commit(adapter, {"a": 6, "c": 6, "d": 6})
        robust.offsets |= {A: 9, key("c"): 100}
        robust.start()
        wait_until(lambda: status_of(adapter).state == STATE.SERVING and _is_clean(adapter), "recovered and flushed")
        expected = {"a": 9, "b": 5, "c": 100, "d": 6}
        assert _local(adapter) == expected
        assert robust.offsets == {key(shard): offset for shard, offset in expected.items()}
        assert adapter.stop() == 0


def test_a_stop_before_the_recovery_is_done_compares_too(directory: Path, robust: RobustMeta) -> None:
    """It drains what a former process left, without having compared all keys: these it does compare (2, 8)."""
    adapter = _adapter(directory, robust.address)
    with ended(adapter):
        _killed_with(adapter, robust, {"a": 5, "b": 5})
        robust.offsets[B] = 9
        robust.before = failing(*[grpc.StatusCode.UNAVAILABLE] * 8, rpc="GetOffsetData")
        adapter.launch()
        wait_until(lambda: "retry" in adapter.log.rsplit("store.opened", 1)[-1], "the recovery failed once")
        assert adapter.stop() in {0, 1}
        assert robust.offsets[B] == 9
        robust.before = failing()
        adapter.start()
        assert robust.offsets == {A: 5, B: 9}
        assert adapter.stop() == 0


def test_a_shard_that_was_stored_beside_a_refused_one_is_not_taken_back(directory: Path, robust: RobustMeta) -> None:
    """Written through, in one request: a is saved, b is refused; a consumer of a goes on from an older position (2)."""
    through = f"{QUICK.removeprefix('[meta]')}\n[[policy]]\ngroups = 'g'\nmode = 'write_through'"
    adapter = adapter_process(directory, robust.address, extra=through.lstrip())
    with ended(adapter):
        adapter.start()
        _commit(adapter, {"a": 1})
        robust.before = _refusing_shard("b")
        with pytest.raises(grpc.RpcError, match="no by the test"):
            _commit(adapter, {"a": 2, "b": 7})
        assert robust.offsets == {A: 2}
        _commit(adapter, {"a": 1})
        assert robust.offsets == {A: 2}
        assert _local(adapter) == {"a": 2}
        adapter.kill()
        adapter.start()
        assert _local(adapter) == {"a": 2}
        assert adapter.stop() == 0


def test_a_failover_from_a_server_without_epochs_to_one_with_them_and_back(
    directory: Path, robust: RobustMeta, meta: ServiceProcess
) -> None:
    """Commits go on, epochs and all, and nothing acknowledged is missing where the adapter ends up (3, 4)."""
    adapter = _adapter(directory, robust.address, meta.address)
    meta.kill()  # the adapter has an order of its own, and shall begin at the other one
    with ended(adapter):
        adapter.start()
        _commit(adapter, {"a": 160, "b": 1})
        wait_until(lambda: _is_clean(adapter), "flushed to the first")
        assert (status_of(adapter).meta_endpoint, robust.offsets) == (robust.address, {A: 160, B: 1})
        meta.start()
        robust.stop()
        _commit(adapter, {"a": 30}, overwrite=True)
        wait_until(lambda: _is_clean(adapter), "flushed to the second")
        assert status_of(adapter).meta_endpoint == meta.address
        assert stored_in(meta) == {A: (2, 30)}
        robust.start()
        meta.kill()
        _commit(adapter, {"a": 31, "c": 3})
        wait_until(lambda: _is_clean(adapter), "flushed to the first again")
        assert status_of(adapter).meta_endpoint == robust.address
        assert robust.offsets == {A: 31, B: 1, key("c"): 3}
        assert adapter.stop() == 0
