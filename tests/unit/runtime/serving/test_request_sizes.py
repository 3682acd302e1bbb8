"""How large a request may be before it is parsed: small ones, large ones by their fields."""

import traceback
from typing import cast

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import AdapterError, InvalidInputError, TooLargeError
from adapter.fleet.scaler import SERVICE, ExternalScaler
from adapter.metaservice import process as meta_process
from adapter.metaservice.metadata_service import SERVICE as METADATA_SERVICE
from adapter.rpc import meta_pb, offsets_grpc, offsets_pb, scaler_grpc, scaler_pb
from adapter.runtime.serving import request_sizes
from adapter.runtime.serving.listener import listening
from adapter.runtime.serving.request_sizes import NAMES, SMALL, Sizes
from adapter.runtime.serving.store_backup import SERVICE as BACKUP_SERVICE
from adapter.runtime.settings.config import ServerSection
from adapter.sidecar import process as adapter_process
from tests.unit.fleet.test_scaler import Source, known

READ = "/offsets.v1.OffsetStore/ReadOffsets"
COMMIT = "/offsets.v1.OffsetStore/CommitOffsets"
SIZES = Sizes({READ: NAMES, COMMIT: 25_000})
SERVICES = {
    "adapter": (*adapter_process.SERVICES, SERVICE),
    "meta": (meta_process.SERVICE, METADATA_SERVICE, BACKUP_SERVICE, SERVICE),
}
KNOWN_SMALL = {f"/{SERVICE}/{method.name}" for method in scaler_pb.DESCRIPTOR.services_by_name["ExternalScaler"].methods}
# A store names its last 16 starts.
KNOWN_SMALL |= {f"/{meta_process.SERVICE}/ReportStore"}
# A place for each Raft group.
KNOWN_SMALL |= {f"/{meta_process.SERVICE}/ListChangedGroups"}


def refused(path: str, data: bytes) -> AdapterError | None:
    """What is said of a request that must not be parsed; None for one that is parsed."""
    parsed: list[bytes] = []
    try:
        SIZES.parse(path, parsed.append)(data)
    except AdapterError as error:
        assert not parsed
        return error
    assert parsed == [data]
    return None


def test_a_method_without_lists_takes_64_kib() -> None:
    """More is refused without a look at it."""
    path = "/offsets.v1.OffsetStore/ListOffsets"
    assert refused(path, bytes(SMALL)) is None
    assert isinstance(refused(path, bytes(SMALL + 1)), TooLargeError)


@pytest.mark.parametrize(
    "entry", [b"\x0a\x00", b"\x8a\x00\x00", b"\x0a\x02\x0a\x00", b"\x7a\x00", b"\x78\x01", b"\x7b\x7c", b"\x7d\0\0\0\0"]
)
def test_fields_of_a_large_request_are_counted_before_it_is_parsed(entry: bytes) -> None:
    """Empty groups, in a longer form as well, groups with names, and fields that nobody knows, of each wire type."""
    of_entry = 2 if entry[:2] in {b"\x0a\x02", b"\x7b\x7c"} else 1
    allowed = entry * (NAMES // of_entry)
    assert refused(READ, allowed) is None
    assert isinstance(refused(READ, allowed + entry), InvalidInputError)


def test_names_in_groups_are_counted() -> None:
    """In a message within the request."""
    group = offsets_pb.GroupShards(group="g", shards=[""] * (NAMES - 2))
    assert refused(READ, offsets_pb.ReadOffsetsRequest(groups=[group]).SerializeToString()) is None
    group.shards.append("")
    assert refused(READ, offsets_pb.ReadOffsetsRequest(groups=[group]).SerializeToString()) is not None


@pytest.mark.parametrize(
    "data",
    [b"\n\0" * 200_000, b"\n" * (SIZES.most + 1), b"\x0c" * 100_000],
    ids=["too many fields", "too large", "broken"],
)
def test_what_is_raised_keeps_nothing_of_the_request(data: bytes) -> None:
    """Its frames live until a garbage collection: 64 refused requests of 4 MiB at a time took 900 MiB."""
    with pytest.raises((AdapterError, DecodeError)) as raised:
        SIZES.parse(COMMIT, offsets_pb.CommitOffsetsRequest.FromString)(data)
    frames = [frame for frame, _ in traceback.walk_tb(raised.tb) if frame.f_code.co_filename == request_sizes.__file__]
    assert frames
    assert not [name for frame in frames for name, value in frame.f_locals.items() if isinstance(value, bytes) and value]


def test_what_a_method_may_take_is_not_refused() -> None:
    """The largest commit, read, save and merge that the services allow."""
    shards = [offsets_pb.ShardCommit(shard=f"s{at}", offset=1, metadata="m" * 500) for at in range(5_000)]
    groups = [offsets_pb.GroupShards(namespace="n", group=f"g{at}") for at in range(50_000)]
    saves = [
        meta_pb.SaveOffsetData(group=f"g{at}", tenant="t", offsets=[meta_pb.SaveOffsetDataRequestOffset(shard_name="s")])
        for at in range(25_000)
    ]
    assert (
        refused(COMMIT, offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(shards=shards)]).SerializeToString())
        is None
    )
    assert refused(READ, offsets_pb.ReadOffsetsRequest(groups=groups).SerializeToString()) is None
    path = f"/{meta_process.SERVICE}/SaveOffsetData"
    data = meta_pb.SaveOffsetDataRequest(offsets=saves).SerializeToString()
    assert meta_process.SIZES.parse(path, len)(data) == len(data)


@given(st.binary(max_size=200), st.integers(min_value=0, max_value=200))
def test_any_bytes_are_counted_or_left_to_the_parser(data: bytes, at: int) -> None:
    """Nothing else is raised, whatever is cut off."""
    refused(READ, data[:at] * (SMALL // max(at, 1) + 1))


@pytest.mark.parametrize("process", ["adapter", "meta"])
def test_every_method_that_takes_a_list_is_large(process: str) -> None:
    """A method that is added has to be put there: else its lists end at 64 KiB."""
    sizes = (adapter_process if process == "adapter" else meta_process).SIZES
    paths = {
        f"/{service}/{method.name}"
        for service in SERVICES[process]
        for method in descriptor_pool.Default().FindServiceByName(service).methods
        if has_lists(method.input_type)
    }
    values = {f"/{METADATA_SERVICE}/Put"} if process == "meta" else set()
    assert set(sizes.large) == paths - KNOWN_SMALL | values


class _Store:
    """A servicer whose methods are never called."""

    def __getattr__(self, name: str) -> object:
        async def never(*_: object) -> None:
            raise AssertionError(name)

        return never


def has_lists(message: Descriptor) -> bool:
    """Whether there is a list anywhere in a message."""
    return any(field.is_repeated or (field.message_type and has_lists(field.message_type)) for field in message.fields)


async def test_the_server_refuses_with_a_status() -> None:
    """By the size, and by the fields; a small request is answered."""

    def add(server: grpc.aio.Server) -> None:
        ExternalScaler(Source(known(1))).add_to(server)
        offsets_grpc.add_OffsetStoreServicer_to_server(cast("offsets_grpc.OffsetStoreServicer", _Store()), server)

    too_large = scaler_pb.ScaledObjectRef(scalerMetadata={"topics": "," * SMALL})
    many = offsets_pb.ReadOffsetsRequest(groups=[offsets_pb.GroupShards()] * (NAMES + 1))
    section = ServerSection(listen="127.0.0.1:0")
    async with listening(section, [SERVICE], add, sizes=SIZES) as server:
        await server.accept_waiting()
        async with grpc.aio.insecure_channel(server.addresses[0]) as channel:
            scaler = scaler_grpc.ExternalScalerStub(channel)
            for call in (scaler.IsActive(too_large), scaler.StreamIsActive(too_large).read()):
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await call
                assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await offsets_grpc.OffsetStoreStub(channel).ReadOffsets(many)
            assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "160,000 fields" in (raised.value.details() or "")
            few = scaler_pb.ScaledObjectRef(scalerMetadata={"group": "g", "lagThreshold": "1"})
            assert (await scaler.IsActive(few)).result
