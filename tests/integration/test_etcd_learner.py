"""A learner among the endpoints of an etcd cluster: it answers for nothing, and another member is asked."""

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.model.codec import encode_key, encode_record
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.rpc import etcd_pb, meta_grpc, meta_pb
from adapter.testing.etcd import LocalCluster
from adapter.testing.waiting import PATIENCE_S
from tests.durability.etcd_cluster import etcd, meta_process
from tests.durability.machine import require


def served(answer: Callable[[Any, Any], Awaitable[etcd_pb.RangeResponse]]) -> grpc.GenericRpcHandler:
    """A member whose reads are answered so."""
    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=etcd_pb.RangeRequest.FromString,
        response_serializer=etcd_pb.RangeResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler("etcdserverpb.KV", {"Range": handler})


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION], ids=lambda code: str(code.name)
)
async def test_the_member_behind_a_learner_is_asked_and_stays_the_one_that_is(code: grpc.StatusCode) -> None:
    """UNAVAILABLE is etcd 3.4's and 3.5's code, FAILED_PRECONDITION that of 3.6 and 3.7."""
    asked = 0

    async def refuse(_request: Any, context: Any) -> etcd_pb.RangeResponse:
        nonlocal asked
        asked += 1
        await context.abort(code, "etcdserver: rpc not supported for learner")
        raise AssertionError

    async def answer(_request: Any, _context: Any) -> etcd_pb.RangeResponse:
        return etcd_pb.RangeResponse(count=7)

    servers, endpoints = [], []
    for answers in (refuse, answer):
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([served(answers)])
        endpoints.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        servers.append(server)
    try:
        async with EtcdCluster.open("fake", MembersSection(endpoints=tuple(endpoints)), EtcdSection()) as client:
            for _ in range(3):
                assert (await client.range(etcd_pb.RangeRequest(key=b"k"))).count == 7
            assert (client.current, asked) == (endpoints[1], 1)
    finally:
        for server in servers:
            await server.stop(None)


def test_a_meta_service_starts_with_a_learner_first_among_its_endpoints(tmp_path: Path) -> None:
    """In each of its Raft groups. It serves: an offset is stored and read again."""
    require("an etcd cluster with a learner", etcd)
    with (
        LocalCluster("metadata", 1, directory=tmp_path) as metadata,
        LocalCluster("offsets", 1, directory=tmp_path) as offsets,
        contextlib.ExitStack() as stops,
    ):
        endpoints = []
        for cluster in (metadata, offsets):
            learner = cluster.start_learner(tmp_path)
            stops.callback(learner.kill)
            endpoints.append([learner.endpoint, *cluster.endpoints])
        of_metadata, of_offsets = endpoints
        meta = meta_process(tmp_path / "meta", of_metadata, of_offsets)
        stops.callback(meta.kill)
        meta.start()
        keys, records = [encode_key(OffsetKey("n", "g", "t/0"))], [encode_record(OffsetRecord(1, 5))]
        with grpc.insecure_channel(meta.address) as channel:
            stub = meta_grpc.MetaServiceServiceStub(channel)
            request = meta_pb.MergeOffsetDataRequest(cluster_name="default", keys=keys, records=records)
            assert stub.MergeOffsetData(request, timeout=PATIENCE_S).applied == 1
