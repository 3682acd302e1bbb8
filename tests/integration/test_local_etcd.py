"""Etcd clusters on this machine: they start, survive what is done to their members, and end with their owner."""

import contextlib
import signal
import sys
from pathlib import Path

import anyio
import grpc
import psutil
import pytest
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from adapter.rpc import etcd_grpc, etcd_pb
from adapter.testing import etcd as local_etcd
from adapter.testing.etcd import CHANNEL_OPTIONS, EtcdMissingError, LocalCluster, etcd_binary
from adapter.testing.waiting import PATIENCE_S, eventually
from tests.durability.etcd_cluster import etcd
from tests.durability.machine import require

CALL_S = PATIENCE_S
OWNER = """
import sys
from pathlib import Path
from adapter.testing.etcd import LocalCluster
cluster = LocalCluster("owned", 1, directory=Path(sys.argv[1]))
cluster.start()
print(cluster.members[0].pid, flush=True)
sys.stdin.read()
"""


def _is_unavailable(error: BaseException) -> bool:
    """True for what a member answers between two leaders."""
    return isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.UNAVAILABLE


def _put(endpoint: str, value: bytes) -> None:
    with grpc.insecure_channel(endpoint, CHANNEL_OPTIONS) as channel:
        etcd_grpc.KVStub(channel).Put(etcd_pb.PutRequest(key=b"k", value=value), timeout=CALL_S)


@retry(stop=stop_after_delay(PATIENCE_S), wait=wait_fixed(0.05), retry=retry_if_exception(_is_unavailable), reraise=True)
def _get(endpoint: str) -> bytes:
    """The value there, once the member follows a leader again."""
    with grpc.insecure_channel(endpoint, CHANNEL_OPTIONS) as channel:
        return etcd_grpc.KVStub(channel).Range(etcd_pb.RangeRequest(key=b"k"), timeout=CALL_S).kvs[0].value


def test_a_killed_or_frozen_leader_is_followed_by_another_and_keeps_its_data(tmp_path: Path) -> None:
    """Three members: each in turn leads, is taken away, and comes back with what was written meanwhile."""
    require("an etcd cluster of three", etcd)
    with LocalCluster("three", directory=tmp_path, fast=True) as cluster:
        first = cluster.leader()
        _put(first.endpoint, b"1")
        first.kill()
        second = cluster.leader()
        assert second is not first
        _put(second.endpoint, b"2")
        first.start()
        assert _get(first.endpoint) == b"2"
        second.freeze()
        third = cluster.leader()
        assert third is not second
        second.thaw()
        assert _get(second.endpoint) == b"2"
        assert {member.name for member in cluster.members} == {"three-1", "three-2", "three-3"}
        assert cluster.endpoints == tuple(member.endpoint for member in cluster.members)


def test_a_stopped_cluster_starts_again_with_its_data_and_the_recommended_flags(tmp_path: Path) -> None:
    """One member, stopped in both ways. More operations than etcd's default of 128 go into one Txn."""
    require("an etcd of one member", etcd)
    cluster = LocalCluster("one", 1, directory=tmp_path, options={"quota-backend-bytes": "16777216"})
    with cluster:
        _put(cluster.leader().endpoint, b"1")
        cluster.stop()
        assert cluster.members[0].status() is None
        cluster.start()
        assert cluster.members[0].stop() == -signal.SIGTERM
        cluster.start()
        assert _get(cluster.endpoints[0]) == b"1"
        puts = [etcd_pb.RequestOp(request_put=etcd_pb.PutRequest(key=f"k{number}".encode(), value=b"1")) for number in range(512)]
        with grpc.insecure_channel(cluster.endpoints[0], CHANNEL_OPTIONS) as channel:
            etcd_grpc.KVStub(channel).Txn(etcd_pb.TxnRequest(success=puts), timeout=CALL_S)
        assert '"quota-size-bytes":16777216' in cluster.members[0].log
    assert cluster.members[0].status() is None


async def test_members_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    """Nobody is left to stop them then."""
    require("an etcd whose owner is killed", etcd)
    async with await anyio.open_process([sys.executable, "-c", OWNER, str(tmp_path)]) as owner:
        assert owner.stdout is not None
        member = psutil.Process(int(await owner.stdout.receive()))
        assert member.name() == "etcd"
        owner.kill()
    await eventually(lambda: _gone(member))


def _gone(process: psutil.Process) -> bool:
    # Nobody may be there to reap it.
    with contextlib.suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def test_a_member_that_cannot_start_says_why(tmp_path: Path) -> None:
    """With its log."""
    require("an etcd with an unknown flag", etcd)
    with (
        pytest.raises(RuntimeError, match="no-such-flag"),
        LocalCluster("bad", 1, directory=tmp_path, options={"no-such-flag": "1"}),
    ):
        pass


def test_without_an_etcd_the_error_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's name is in it; what the script unpacks is found without being on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(local_etcd, "UNPACKED", tmp_path / "unpacked")
    with pytest.raises(EtcdMissingError, match=r"demo/install-etcd\.sh"):
        etcd_binary()
    (tmp_path / "unpacked").touch()
    assert etcd_binary() == tmp_path / "unpacked"
