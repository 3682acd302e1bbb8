"""Connections to etcd: a busy member takes its time."""

from pathlib import Path

import anyio
import anyio.abc

from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.rpc import etcd_pb
from adapter.testing.etcd import LocalCluster
from tests.durability.etcd_cluster import etcd
from tests.durability.machine import require
from tests.durability.proxy import Proxy

HANDSHAKE_S = 0.7  # longer than the deadline of a call, and than the longest pause between two attempts to connect


class _Busy(Proxy):
    """Lets every new connection wait."""

    async def _connect(self, client: anyio.abc.SocketStream) -> None:
        await anyio.sleep(HANDSHAKE_S)
        await super()._connect(client)


async def test_a_member_with_a_slow_handshake_is_connected_to(tmp_path: Path) -> None:
    """The calls before that fail by their own deadlines, and do not end the attempt."""
    require("an etcd behind a slow handshake", etcd)
    with LocalCluster("busy", 1, directory=tmp_path) as cluster:
        proxy = _Busy(cluster.endpoints[0])
        members = MembersSection(endpoints=(proxy.address,))
        async with proxy.listening(), EtcdCluster.open("busy", members, EtcdSection()) as client:
            assert (await client.range(etcd_pb.RangeRequest(key=b"k"))).count == 0
