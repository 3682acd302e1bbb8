"""Health per service, and what is said before the recovery (invariant 9); reflection."""

from pathlib import Path

import anyio
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from adapter.client.broker_log import NoBrokerLog
from adapter.errors import MetaUnavailableError
from adapter.sidecar.process import Sidecar
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import eventually
from tests.integration.helpers import PATIENCE_S, key, serving


async def _health(sidecar: Sidecar, service: str) -> int:
    async with grpc.aio.insecure_channel(sidecar.addresses[0]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
    return int(reply.status)


@pytest.mark.parametrize("service", ["", "offsets.v1.OffsetStore", "offsets.v1.OffsetAdmin"])
async def test_each_service_is_serving_only_after_the_recovery(directory: Path, service: str) -> None:
    """NOT_SERVING while the recovery waits for the Meta Service, SERVING when it is done (9)."""
    async with serving(directory, FakeMeta()) as (_, client):
        await client.commit("g", {"s": 1})
    meta = FakeMeta()
    meta.down = MetaUnavailableError("gone")
    sidecar = Sidecar(adapter_config(directory), meta, NoBrokerLog())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sidecar.run)
        await eventually(lambda: bool(sidecar.addresses), PATIENCE_S)
        assert await _health(sidecar, service) == health_pb2.HealthCheckResponse.NOT_SERVING
        with anyio.fail_after(PATIENCE_S):
            meta.down = None
            await sidecar.ready.wait()
        assert await _health(sidecar, service) == health_pb2.HealthCheckResponse.SERVING
        sidecar.stop()
    assert meta.records[key()].position == (1, 1)


async def test_what_no_servicer_implements_is_unimplemented(directory: Path) -> None:
    """The proto of the health service has a method that its package leaves out."""
    async with (
        running_sidecar(adapter_config(directory), FakeMeta()) as sidecar,
        grpc.aio.insecure_channel(sidecar.addresses[0]) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(channel).List(health_pb2.HealthListRequest(), timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_reflection_lists_the_services(directory: Path) -> None:
    """For grpcurl and its like."""
    async with (
        running_sidecar(adapter_config(directory), FakeMeta()) as sidecar,
        grpc.aio.insecure_channel(sidecar.addresses[0]) as channel,
    ):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = {service.name async for reply in call for service in reply.list_services_response.service}
    assert names == {
        "offsets.v1.OffsetStore",
        "offsets.v1.OffsetAdmin",
        "offsets.v1.OffsetLag",
        "offsets.v1.StoreBackup",
        "externalscaler.ExternalScaler",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
