"""What adapters, imports and Spark's bulk merges send to a Meta Service in one call: up to 64 MiB."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import grpc
import pytest

from adapter.metaservice.process import MAX_REQUEST_BYTES
from adapter.rpc import meta_grpc, meta_pb
from adapter.testing.processes import ServiceProcess, ended, meta_process
from tests.integration.helpers import PATIENCE_S, meta_rpc, wait_until
from tests.integration.honest import Held

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
ROWS = 17_000


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A Meta Service."""
    service = meta_process(tmp_path_factory.mktemp("d"))
    with ended(service):
        service.start()
        yield service


def saved(size: int) -> meta_pb.SaveOffsetDataRequest:
    """A save of exactly so many bytes, of many rows with long metadata."""
    each = size // ROWS - 100
    rows = [meta_pb.SaveOffsetDataRequestOffset(shard_name=f"s-{at:05}", offset=1, metadata="m" * each) for at in range(ROWS)]
    request = meta_pb.SaveOffsetDataRequest(offsets=[meta_pb.SaveOffsetData(group="large", offsets=rows)])
    lacks = size - request.ByteSize()
    for row in request.offsets[0].offsets:
        more = min(lacks, 90)
        row.metadata += "m" * more
        lacks -= more
    return request


def test_a_save_of_64_mib_is_taken_and_one_of_more_is_not(meta: ServiceProcess) -> None:
    """RESOURCE_EXHAUSTED names the limit; the connection goes on, and what a message took is given back."""
    held = Held(meta)
    with grpc.insecure_channel(meta.tcp_address, UNLIMITED) as channel:
        stub = meta_grpc.MetaServiceServiceStub(channel)
        for _ in range(2):
            assert stub.SaveOffsetData(saved(MAX_REQUEST_BYTES - 4_096), timeout=PATIENCE_S).committed
        before = held.memory()
        with pytest.raises(grpc.RpcError) as caught:
            stub.SaveOffsetData(saved(MAX_REQUEST_BYTES + 4_096), timeout=PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"vs. {MAX_REQUEST_BYTES}" in (caught.value.details() or "")
        assert stub.SaveOffsetData(saved(2**20), timeout=PATIENCE_S).committed
    assert held.memory() - before < MAX_REQUEST_BYTES


def test_a_stop_answers_or_refuses_each_save_and_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    """Many large ones are under way at SIGTERM, on many connections (1, 8)."""
    service = meta_process(tmp_path)
    acknowledged, refused = dict.fromkeys(range(8), 0), set[grpc.StatusCode]()

    def rows(offset: int) -> list[meta_pb.SaveOffsetDataRequestOffset]:
        return [meta_pb.SaveOffsetDataRequestOffset(shard_name=f"s-{at}", offset=offset) for at in range(2_000)]

    def save(number: int) -> None:
        with grpc.insecure_channel(service.tcp_address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = meta_grpc.MetaServiceServiceStub(channel)
            for offset in count(1):
                group = meta_pb.SaveOffsetData(group=f"g-{number}", offsets=rows(offset))
                try:
                    reply = stub.SaveOffsetData(meta_pb.SaveOffsetDataRequest(offsets=[group]), timeout=PATIENCE_S)
                except grpc.RpcError as error:
                    refused.add(error.code())
                    return
                assert reply.committed
                acknowledged[number] = offset

    with ended(service), ThreadPoolExecutor(len(acknowledged)) as threads:
        service.start()
        saving = [threads.submit(save, number) for number in acknowledged]
        wait_until(lambda: min(acknowledged.values()) >= 2, "all save")
        assert service.stop() == 0
        for each in saving:
            each.result()
        assert refused == {grpc.StatusCode.UNAVAILABLE}
        service.start()
        with meta_rpc(service.address) as stub:
            for number, offset in acknowledged.items():
                found = stub.GetOffsetData(meta_pb.GetOffsetDataRequest(group=f"g-{number}"), timeout=PATIENCE_S).offsets
                assert len(found) == 2_000
                assert min(row.offset for row in found) >= offset
