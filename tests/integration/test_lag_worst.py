"""The live lag under its worst callers, in a real process: pages of 10,000 groups, 100 watchers, beside an honest client."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from adapter.rpc import lag_pb, offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended
from tests.integration.helpers import PATIENCE_S, rpc, wait_until
from tests.integration.honest import MIB, undisturbed

pytestmark = pytest.mark.timeout(900)

GROUPS = 12_000
KILLED = 3_000  # groups of an adapter that is killed
AT_ONCE = 2_500  # groups of a commit
WATCHERS = 100
HELD_CPU_S = 5.0  # as in test_worst_requests
SETTINGS = "[lag]\ninterval_ms = 100"

Reply = lag_pb.ListGroupLagReply


def _listing(channel: grpc.Channel, **fields: object) -> Reply:
    call = channel.unary_unary(
        "/offsets.v1.OffsetLag/ListGroupLag",
        request_serializer=lag_pb.ListGroupLagRequest.SerializeToString,
        response_deserializer=Reply.FromString,
    )
    reply: Reply = call(lag_pb.ListGroupLagRequest(**fields), timeout=PATIENCE_S)  # type: ignore[arg-type]
    return reply


def _commit_all(adapter: ServiceProcess, offset: int, count: int = GROUPS) -> None:
    with rpc(adapter.address) as stubs:
        for first in range(0, count, AT_ONCE):
            groups = [
                offsets_pb.GroupCommits(
                    group=f"group-{at:06}",
                    shards=[offsets_pb.ShardCommit(shard=f"s{at}", offset=offset, low_watermark=0, high_watermark=offset + at)],
                )
                for at in range(first, min(first + AT_ONCE, count))
            ]
            stubs.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=groups), timeout=PATIENCE_S)


@pytest.mark.parametrize("of_all", [2, pytest.param(10, marks=pytest.mark.release)])
def test_pages_and_watchers_hold_up_nobody(directory: Path, meta: ServiceProcess, of_all: int) -> None:
    """Each of 100 watchers gets all groups, and one more is refused; a page has 10,000 groups; commits go on meanwhile."""
    adapter = adapter_process(directory, meta.address, extra=SETTINGS)
    with ended(adapter):
        adapter.start()
        _commit_all(adapter, 1)
        options = (("grpc.use_local_subchannel_pool", 1),)
        with grpc.insecure_channel(adapter.address, options) as channel:
            wait_until(lambda: _listing(channel).groups_kept == GROUPS, "all groups are kept")
            with undisturbed(adapter, grows=400 * MIB) as honest, ThreadPoolExecutor(WATCHERS) as threads:
                watch = channel.unary_stream(
                    "/offsets.v1.OffsetLag/WatchGroupLag",
                    request_serializer=lag_pb.WatchGroupLagRequest.SerializeToString,
                    response_deserializer=lag_pb.WatchGroupLagReply.FromString,
                )
                # Most of them want a part: else it is this process that takes longest.
                some = lag_pb.LagFilter(pattern="group-0001*")
                wants = [lag_pb.LagFilter()] * of_all + [some] * (WATCHERS - of_all)
                calls = [watch(lag_pb.WatchGroupLagRequest(filter=want), timeout=10 * PATIENCE_S) for want in wants]

                def told(call: grpc.Call, wanted: int) -> int:
                    seen: set[str] = set()
                    for reply in call:  # type: ignore[attr-defined]
                        seen |= {one.group for one in reply.groups}
                        if len(seen) >= wanted:
                            break
                    return len(seen)

                counts = [GROUPS] * of_all + [100] * (WATCHERS - of_all)
                found = [threads.submit(told, call, count) for call, count in zip(calls, counts, strict=True)]
                pages = [_listing(channel, page_size=10_000, order=order) for order in lag_pb.LagOrder.values()]
                assert {len(page.groups) for page in pages} == {10_000}
                assert {page.matching for page in pages} >= {GROUPS}
                by_lag = _listing(channel, page_size=3, order=lag_pb.LAG)
                assert [one.lag for one in by_lag.groups] == [GROUPS - 1, GROUPS - 2, GROUPS - 3]
                _commit_all(adapter, 2)
                with pytest.raises(grpc.RpcError) as refused:
                    next(watch(lag_pb.WatchGroupLagRequest(), timeout=PATIENCE_S))
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert [one.result() for one in found] == counts
                for call in calls:
                    call.cancel()
                honest.goes_on()
            assert honest.worst_cpu_s < HELD_CPU_S
        assert adapter.stop(PATIENCE_S) == 0


def test_a_kill_loses_no_commit_while_lag_is_kept(directory: Path, meta: ServiceProcess) -> None:
    """Acknowledged commits survive kill -9 in the middle of evaluations, and the lag is that of what survived."""
    adapter = adapter_process(directory, meta.address, extra=SETTINGS)
    with ended(adapter):
        for offset in (1, 2, 3):
            adapter.start()
            _commit_all(adapter, offset, KILLED)
            assert adapter.process is not None
            adapter.process.send_signal(signal.SIGKILL)
            adapter.process.wait()
        adapter.start()
        with rpc(adapter.address) as stubs:
            wanted = [offsets_pb.GroupShards(group=f"group-{at:06}") for at in range(KILLED)]
            reply = stubs.store.ReadOffsets(offsets_pb.ReadOffsetsRequest(groups=wanted), timeout=PATIENCE_S)
            assert [row.offset for row in reply.offsets] == [3] * KILLED
            wait_until(lambda: _listing(stubs.channel).groups_kept == KILLED, "all groups are read from the store")
