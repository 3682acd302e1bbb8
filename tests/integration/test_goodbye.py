"""A peer in the place of a service that a process calls, which says goodbye (GOAWAY) and stays connected."""

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from adapter.cli.doctor.findings import FAIL
from adapter.cli.doctor.services import meta_services
from adapter.client.broker_log import BrokerLogSection, GrpcBrokerLog
from adapter.errors import BrokerLogError, MetaUnavailableError
from adapter.meta.blocking import MetaCalls
from adapter.meta.config import MetaSection
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.channels import open_channel
from adapter.testing.processes import ended
from benchmarks.worst_peers import IN_PLACE_OF, goodbyes
from tests.integration.helpers import wait_until
from tests.integration.honest import MIB, Held, Honest, HonestAdapter, HonestConsumer

CALLS = 300
UNTIL_MS = 3_000  # for a call: with gRPC's own retries it is repeated so long


@pytest.mark.parametrize("what", IN_PLACE_OF)
def test_a_peer_that_says_goodbye_and_stays_costs_no_memory_and_no_time(what: str, directory: Path) -> None:
    """GRPC repeated the calls without a pause: hundreds of megabytes for each, and commits waited for seconds."""
    with goodbyes() as address:
        service = IN_PLACE_OF[what](directory, address)
        with ended(service):
            service.start()
            honest: Honest = HonestConsumer(service) if service.command == "serve" else HonestAdapter(service)
            honest.start()
            wait_until(lambda: honest.acknowledged >= CALLS or bool(honest.refused), "commits and saves go on")
            honest.stop()
            assert Held(service).memory("VmHWM") < 200 * MIB  # since its start, when the first calls were made
            assert honest.worst_cpu_s < 5.0


async def test_a_call_to_such_a_peer_is_not_repeated() -> None:
    """It ends, and our own retries have a pause; gRPC's went on until the deadline."""
    with goodbyes() as address:
        async with open_channel(address, None, ()) as channel:
            stub: Any = offsets_grpc.OffsetStoreStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.ListOffsets(offsets_pb.ListOffsetsRequest(), timeout=UNTIL_MS / 1_000)
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        section = BrokerLogSection(address=address, timeout_ms=UNTIL_MS)
        async with GrpcBrokerLog.open(section) as log:
            with pytest.raises(BrokerLogError, match="cannot be reached"):
                await log.bounds("default", ["s"])


def test_a_call_of_a_job_to_such_a_peer_is_not_repeated() -> None:
    """The same, of Spark's tasks."""
    with goodbyes() as address:
        calls = MetaCalls(MetaSection(endpoints=(address,), timeout_ms=UNTIL_MS), retry_s=0)
        with pytest.raises(MetaUnavailableError, match="UNAVAILABLE"):
            calls.split("default", "", 1)
        calls.close()


def test_a_call_of_the_doctor_to_such_a_peer_is_not_repeated() -> None:
    """It says at once what is wrong."""
    with goodbyes() as address:
        (finding,) = meta_services(MetaSection(endpoints=(address,)))
    assert finding.state == FAIL
    assert "UNAVAILABLE" in finding.seen
