"""Bad input in the fields of epochs, fencing, bounds and expiry, on both services: the field is named, nothing is stored (10)."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import pytest

from adapter.metaservice.bulk_checks import NO_RECORD
from adapter.model.codec import encode_key, encode_record
from adapter.model.records import EPOCH_LIMIT, EPOCH_MAX, U64_MAX, next_era, taken_up
from adapter.rpc import meta_grpc, meta_pb, offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from tests.integration.helpers import PATIENCE_S, Rpc, commits, key, meta_rpc, record, rpc, stored_in

BAD, UNAVAILABLE = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE
INVALID, APPLIED = meta_pb.SaveOffsetResult.INVALID, meta_pb.SaveOffsetResult.APPLIED
LONG, TOO_LONG = "x" * 256, "is 256 bytes long; at most 255 are allowed"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    """An adapter and its Meta Service, which have to survive everything here."""
    directory = tmp_path_factory.mktemp("bade")
    meta = meta_process(directory)
    adapter = adapter_process(directory, meta.address)
    with ended(adapter, meta):
        meta.start()
        adapter.start()
        yield adapter, meta
        assert adapter.stop() == 0
        assert meta.stop() == 0
        assert "Traceback" not in adapter.log + meta.log


@pytest.fixture
def stubs(services: tuple[ServiceProcess, ServiceProcess]) -> Iterator[Rpc]:
    """Stubs of the adapter; after the test it still takes good requests."""
    with rpc(services[0].address) as made:
        yield made
        made.store.CommitOffsets(commits({"good": 1}), timeout=PATIENCE_S)


@pytest.fixture
def stub(services: tuple[ServiceProcess, ServiceProcess]) -> Iterator[meta_grpc.MetaServiceServiceStub]:
    """A stub of the Meta Service."""
    with meta_rpc(services[1].address) as made:
        yield made


class Row(NamedTuple):
    """Two groups of a commit, of which the second is bad, and what is said of it."""

    name: str
    group: dict[str, Any]
    shard: dict[str, Any]
    message: str
    code: grpc.StatusCode = BAD


ROWS = [
    Row("member_long", {"member_id": LONG}, {}, f"groups[1].member_id {TOO_LONG}"),
    Row("member_control", {"member_id": "a\nb"}, {}, "groups[1].member_id has the control character U+000A at position 1"),
    Row("member_long_fenced", {"member_id": LONG, "generation": 3}, {}, f"groups[1].member_id {TOO_LONG}"),
    Row(
        "two_generations",
        {"group": "good", "generation": 2},
        {"shard": "other"},
        "groups[1].generation: default/good is in the request with another member or generation",
    ),
    Row("epoch", {}, {"epoch": EPOCH_MAX + 1}, f"groups[1].shards[1].epoch: {EPOCH_MAX + 1} is over {EPOCH_MAX}"),
    Row("epoch_largest", {}, {"epoch": U64_MAX}, f"groups[1].shards[1].epoch: {U64_MAX} is over {EPOCH_MAX}"),
    Row(
        "bounds",
        {},
        {"low_watermark": 6, "high_watermark": 5},
        "groups[1].shards[1].low_watermark: 6 is over high_watermark, 5",
    ),
    Row("low_alone", {}, {"low_watermark": 0}, "groups[1].shards[1].high_watermark is missing; low_watermark alone says nothing"),
    Row(
        "epoch_unknown",
        {},
        {"epoch": EPOCH_MAX},
        f"default/bad/s: epoch {EPOCH_MAX} is not known here",
        UNAVAILABLE,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_bad_commit_is_refused_by_the_name_of_the_field_and_the_entry(stubs: Rpc, row: Row) -> None:
    """Neither its offsets nor a generation are kept, also not of the good group before it (10)."""
    fine = offsets_pb.ShardCommit(shard="fine", offset=1, low_watermark=0, high_watermark=9)
    bad = offsets_pb.ShardCommit(**{"shard": "s", "offset": 1, **row.shard})
    groups = [
        offsets_pb.GroupCommits(group="good", generation=7, shards=[fine]),
        offsets_pb.GroupCommits(**{"group": "bad", "shards": [offsets_pb.ShardCommit(shard="t", offset=1), bad], **row.group}),
    ]
    with pytest.raises(grpc.RpcError) as caught:
        stubs.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=groups), timeout=PATIENCE_S)
    assert caught.value.code() is row.code
    assert (caught.value.details() or "").startswith(row.message)
    assert row.code is not BAD or caught.value.details() == row.message
    for group in ("good", "bad"):
        described = stubs.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group=group), timeout=PATIENCE_S)
        assert not described.shards
        assert not described.HasField("generation")


def test_the_limits_themselves_are_good(stubs: Rpc) -> None:
    """The largest generation, the longest member, empty bounds; an absent epoch is 0."""
    shard = offsets_pb.ShardCommit(shard="s", offset=U64_MAX, epoch=0, low_watermark=U64_MAX, high_watermark=U64_MAX)
    group = offsets_pb.GroupCommits(group="limits", member_id="é" * 127, generation=U64_MAX, shards=[shard])
    stubs.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=[group]), timeout=PATIENCE_S)
    described = stubs.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group="limits"), timeout=PATIENCE_S)
    assert (described.generation, described.member_id) == (U64_MAX, "é" * 127)
    assert (described.shards[0].low_watermark, described.shards[0].high_watermark, described.shards[0].lag) == (
        U64_MAX,
        U64_MAX,
        0,
    )


def _save(*entries: dict[str, Any], cluster: str) -> meta_pb.SaveOffsetDataRequest:
    offsets = [meta_pb.SaveOffsetDataRequestOffset(**{"namespace": "default", "offset": 1, **entry}) for entry in entries]
    return meta_pb.SaveOffsetDataRequest(cluster_name=cluster, offsets=[meta_pb.SaveOffsetData(group="g", offsets=offsets)])


@pytest.mark.parametrize("epoch", [EPOCH_MAX + 1, U64_MAX])
@pytest.mark.parametrize("tombstone", [False, True])
def test_a_saved_epoch_that_could_not_be_raised_is_invalid(
    services: tuple[ServiceProcess, ServiceProcess], stub: meta_grpc.MetaServiceServiceStub, epoch: int, tombstone: bool
) -> None:
    """In its row, which says why; its neighbours are saved (10)."""
    cluster = f"e{epoch}-{tombstone}"
    bad = {"shard_name": "s", "epoch": epoch, "tombstone": tombstone}
    reply = stub.SaveOffsetData(_save({"shard_name": "a"}, bad, {"shard_name": "b"}, cluster=cluster), timeout=PATIENCE_S)
    assert [row.status for row in reply.results] == [APPLIED, INVALID, APPLIED]
    assert reply.results[1].message == f"entry 1: epoch {epoch} is over {EPOCH_MAX}"
    assert stored_in(services[1], cluster) == {key("a"): (1, 1), key("b"): (1, 1)}


def test_the_largest_epoch_that_is_accepted_can_be_deleted_and_committed_again(
    services: tuple[ServiceProcess, ServiceProcess], stub: meta_grpc.MetaServiceServiceStub
) -> None:
    """There is an era above it, in which a writer without an epoch goes on."""
    largest = {"shard_name": "s", "epoch": EPOCH_LIMIT}
    stub.SaveOffsetData(_save(largest, cluster="edge"), timeout=PATIENCE_S)
    request = meta_pb.DeleteOffsetDataRequest(cluster_name="edge", namespace="default", group="g")
    stub.DeleteOffsetData(request, timeout=PATIENCE_S)
    assert stored_in(services[1], "edge") == {}
    reply = stub.SaveOffsetData(_save({"shard_name": "s", "committed_at_ms": 2**62}, cluster="edge"), timeout=PATIENCE_S)
    assert (reply.results[0].status, reply.results[0].epoch) == (APPLIED, taken_up(next_era(EPOCH_LIMIT)))


@pytest.mark.parametrize("epoch", [EPOCH_LIMIT + 1, EPOCH_MAX])
def test_an_epoch_that_would_leave_no_room_for_resets_is_invalid(
    services: tuple[ServiceProcess, ServiceProcess], stub: meta_grpc.MetaServiceServiceStub, epoch: int
) -> None:
    """In a save, whose row names epoch and limit, and in a merge, whose answer has the place in the request (10)."""
    cluster = f"high{epoch}"
    reply = stub.SaveOffsetData(
        _save({"shard_name": "a"}, {"shard_name": "s", "epoch": epoch}, cluster=cluster), timeout=PATIENCE_S
    )
    why = f"epoch {epoch} is over {EPOCH_LIMIT}, the largest for a key that is not there"
    assert [(row.status, row.message) for row in reply.results] == [(APPLIED, ""), (INVALID, why)]
    records = [b"", encode_record(record(1, epoch)), encode_record(record(1))]
    merged = stub.MergeOffsetData(
        meta_pb.MergeOffsetDataRequest(
            cluster_name=cluster, keys=[encode_key(key(name)) for name in ("x", "y", "z")], records=records
        ),
        timeout=PATIENCE_S,
    )
    assert [(row.index, row.message) for row in merged.rejected] == [(0, NO_RECORD), (1, why)]
    assert stored_in(services[1], cluster) == {key("a"): (1, 1), key("z"): (1, 1)}


GOOD_EXPIRY = {"cluster_name": "x", "namespace": "default", "group": "g", "before_ms": 10, "now_ms": 20}
EXPIRIES = [
    ({"cluster_name": LONG}, f"cluster_name {TOO_LONG}"),
    ({"namespace": LONG}, f"namespace {TOO_LONG}"),
    ({"group": ""}, "group is empty"),
    ({"group": "a\0"}, "group has the control character U+0000 at position 1"),
    ({"before_ms": 0}, "before_ms: 0 is not between 1 and now_ms, 20"),
    ({"before_ms": 21}, "before_ms: 21 is not between 1 and now_ms, 20"),
    ({"now_ms": 0}, "before_ms: 10 is not between 1 and now_ms, 0"),
]


@pytest.mark.parametrize(("fields", "message"), EXPIRIES, ids=[message for _, message in EXPIRIES])
def test_a_bad_expiry_is_refused_and_takes_nothing_away(
    services: tuple[ServiceProcess, ServiceProcess], stub: meta_grpc.MetaServiceServiceStub, fields: dict[str, Any], message: str
) -> None:
    """A time that is not set must not mean everything (10)."""
    stub.SaveOffsetData(_save({"shard_name": "s", "committed_at_ms": 1}, cluster="x"), timeout=PATIENCE_S)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ExpireOffsetData(meta_pb.ExpireOffsetDataRequest(**{**GOOD_EXPIRY, **fields}), timeout=PATIENCE_S)
    assert (caught.value.code(), caught.value.details()) == (BAD, message)
    assert stored_in(services[1], "x") == {key(): (1, 1)}
