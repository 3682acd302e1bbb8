"""Bad input to the Meta Service: a bad entry gets INVALID in its row, a bad request INVALID_ARGUMENT; the rest goes on (10)."""

import re
import socket
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.message import Message

from adapter.rpc import meta_grpc, meta_pb
from adapter.testing.processes import ServiceProcess, ended, meta_process
from tests.integration.helpers import PATIENCE_S, key, meta_rpc, stored_in

BAD = grpc.StatusCode.INVALID_ARGUMENT
INVALID, APPLIED = meta_pb.SaveOffsetResult.INVALID, meta_pb.SaveOffsetResult.APPLIED
LONG = "x" * 256
TOO_LONG = "is 256 bytes long; at most 255 are allowed"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One process that has to survive everything here."""
    meta = meta_process(tmp_path_factory.mktemp("badmeta"))
    with ended(meta):
        meta.start()
        yield meta
        assert meta.stop() == 0
        assert "Traceback" not in meta.log


@pytest.fixture
def stub(service: ServiceProcess) -> Iterator[meta_grpc.MetaServiceServiceStub]:
    """A stub of it; after the test it still saves."""
    with meta_rpc(service.address) as made:
        yield made
        reply = made.SaveOffsetData(_save(_entry()), timeout=PATIENCE_S)
        assert reply.results[0].status in {APPLIED, meta_pb.SaveOffsetResult.SUPERSEDED}


def _entry(**fields: Any) -> meta_pb.SaveOffsetDataRequestOffset:
    return meta_pb.SaveOffsetDataRequestOffset(**{"namespace": "default", "shard_name": "s", "offset": 1, "epoch": 1, **fields})


def _save(*entries: meta_pb.SaveOffsetDataRequestOffset, cluster: str = "", group: str = "g") -> meta_pb.SaveOffsetDataRequest:
    return meta_pb.SaveOffsetDataRequest(cluster_name=cluster, offsets=[meta_pb.SaveOffsetData(group=group, offsets=entries)])


ENTRIES = [
    ({"namespace": LONG}, f"namespace {TOO_LONG}"),
    ({"shard_name": ""}, "shard_name is empty"),
    ({"shard_name": LONG}, f"shard_name {TOO_LONG}"),
    ({"shard_name": "a\nb"}, "shard_name has the control character U+000A at position 1"),
    ({"topic": LONG}, f"topic {TOO_LONG}"),
    ({"metadata": "m" * 4097}, "metadata is 4097 bytes long; at most 4096 are allowed"),
]


@pytest.mark.parametrize(("fields", "why"), ENTRIES, ids=[why.split(" are")[0] for _, why in ENTRIES])
def test_a_bad_entry_is_invalid_and_its_neighbours_are_saved(
    service: ServiceProcess, stub: meta_grpc.MetaServiceServiceStub, fields: dict[str, Any], why: str
) -> None:
    """One row for each entry, in their order; the bad one says why (10)."""
    cluster = f"c{ENTRIES.index((fields, why))}"
    request = _save(_entry(shard_name="a"), _entry(**fields), _entry(shard_name="b"), cluster=cluster)
    reply = stub.SaveOffsetData(request, timeout=PATIENCE_S)
    assert [row.status for row in reply.results] == [APPLIED, INVALID, APPLIED]
    assert reply.results[1].message == f"entry 1: {why}"
    assert not reply.committed
    assert stored_in(service, cluster) == {key("a"): (1, 1), key("b"): (1, 1)}


@pytest.mark.parametrize(("group", "why"), [("", "is empty"), (LONG, TOO_LONG)])
def test_a_bad_group_makes_each_of_its_entries_invalid(
    service: ServiceProcess, stub: meta_grpc.MetaServiceServiceStub, group: str, why: str
) -> None:
    """The other groups of the request are saved (10)."""
    cluster = f"group{len(group)}"
    request = _save(_entry(), _entry(shard_name="t"), cluster=cluster, group=group)
    request.offsets.add(group="good", offsets=[_entry()])
    reply = stub.SaveOffsetData(request, timeout=PATIENCE_S)
    assert [row.status for row in reply.results] == [INVALID, INVALID, APPLIED]
    assert reply.results[1].message == f"entry 1: group {why}"
    assert stored_in(service, cluster) == {key("s", "good"): (1, 1)}


class Row(NamedTuple):
    """A request that is bad as a whole."""

    name: str
    method: str
    request: Message
    message: str


def _batch(**fields: Any) -> meta_pb.BatchGetOffsetDataRequest:
    good = meta_pb.BatchGetOffsetDataRequest.Group(namespace="default", group="g")
    bad = meta_pb.BatchGetOffsetDataRequest.Group(**{"namespace": "default", "group": "g", **fields})
    return meta_pb.BatchGetOffsetDataRequest(groups=[good, bad])


def _expire(**fields: Any) -> meta_pb.ExpireOffsetDataRequest:
    return meta_pb.ExpireOffsetDataRequest(**{"namespace": "default", "group": "g", "before_ms": 1, "now_ms": 5, **fields})


NAMED = {"namespace": "default", "group": "g"}
ROWS = [
    Row("save_cluster", "SaveOffsetData", _save(_entry(), cluster=LONG), f"cluster_name {TOO_LONG}"),
    Row(
        "save_many_groups",  # of which not even the entries are counted: 60 MiB of empty ones took 7 s
        "SaveOffsetData",
        meta_pb.SaveOffsetDataRequest(offsets=[meta_pb.SaveOffsetData(group="g")] * 25_001),
        "offsets: are 25001, over 25000; send several requests",
    ),
    Row(
        "save_cluster_control",
        "SaveOffsetData",
        _save(_entry(), cluster="a\0"),
        "cluster_name has the control character U+0000 at position 1",
    ),
    Row("get_cluster", "GetOffsetData", meta_pb.GetOffsetDataRequest(cluster_name=LONG, **NAMED), f"cluster_name {TOO_LONG}"),
    Row("get_group", "GetOffsetData", meta_pb.GetOffsetDataRequest(namespace="default"), "group is empty"),
    Row("get_tenant", "GetOffsetData", meta_pb.GetOffsetDataRequest(tenant=LONG, group="g"), f"namespace {TOO_LONG}"),
    Row("delete_group", "DeleteOffsetData", meta_pb.DeleteOffsetDataRequest(namespace="default"), "group is empty"),
    Row(
        "delete_shard",
        "DeleteOffsetData",
        meta_pb.DeleteOffsetDataRequest(shard_names=["s", LONG], **NAMED),
        f"shard_names[1] {TOO_LONG}",
    ),
    Row("batch_group", "BatchGetOffsetData", _batch(group=LONG), f"groups[1].group {TOO_LONG}"),
    Row(
        "batch_namespace",
        "BatchGetOffsetData",
        _batch(namespace="\n"),
        "groups[1].namespace has the control character U+000A at position 0",
    ),
    Row("batch_shard", "BatchGetOffsetData", _batch(shard_names=["s", LONG]), f"groups[1].shard_names[1] {TOO_LONG}"),
    Row("page_size", "ListOffsetData", meta_pb.ListOffsetDataRequest(page_size=10_001), "page_size: 10001 is over 10000"),
    Row("list_cluster", "ListOffsetData", meta_pb.ListOffsetDataRequest(cluster_name=LONG), f"cluster_name {TOO_LONG}"),
    Row(
        "group_alone",
        "ListOffsetData",
        meta_pb.ListOffsetDataRequest(group="g"),
        "namespace: is empty, but a group is named; name both",
    ),
    Row("expire_cluster", "ExpireOffsetData", _expire(cluster_name=LONG), f"cluster_name {TOO_LONG}"),
    Row("expire_namespace", "ExpireOffsetData", _expire(namespace=LONG), f"namespace {TOO_LONG}"),
    Row("expire_group", "ExpireOffsetData", _expire(group=""), "group is empty"),
    Row("expire_never", "ExpireOffsetData", _expire(before_ms=0), "before_ms: 0 is not between 1 and now_ms, 5"),
    Row("expire_future", "ExpireOffsetData", _expire(before_ms=6), "before_ms: 6 is not between 1 and now_ms, 5"),
    Row("expire_no_time", "ExpireOffsetData", _expire(now_ms=0), "before_ms: 1 is not between 1 and now_ms, 0"),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_request_that_is_bad_as_a_whole_is_refused(stub: meta_grpc.MetaServiceServiceStub, row: Row) -> None:
    """INVALID_ARGUMENT by the name of the field (10)."""
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stub, row.method)(row.request, timeout=PATIENCE_S)
    assert (caught.value.code(), caught.value.details()) == (BAD, row.message)


@pytest.mark.parametrize(("off_ms", "where"), [(60_000, "ahead of"), (-60_000, "behind")])
def test_an_expiry_by_a_clock_that_is_off_is_refused(
    service: ServiceProcess, stub: meta_grpc.MetaServiceServiceStub, off_ms: int, where: str
) -> None:
    """An adapter whose clock is days ahead would take away what is in use. Half a minute is forgiven."""
    stub.SaveOffsetData(_save(_entry(), cluster="clock"), timeout=PATIENCE_S)
    now_ms = time.time_ns() // 1_000_000
    with pytest.raises(grpc.RpcError) as caught:
        stub.ExpireOffsetData(_expire(cluster_name="clock", now_ms=now_ms + off_ms), timeout=PATIENCE_S)
    assert caught.value.code() is BAD
    assert re.fullmatch(rf"now_ms: is \d+ ms {where} this server's clock; one of both is wrong", caught.value.details() or "")
    assert stored_in(service, "clock") == {key(): (1, 1)}
    stub.ExpireOffsetData(_expire(cluster_name="clock", now_ms=now_ms + off_ms // 6), timeout=PATIENCE_S)


@pytest.mark.parametrize("token", [b"garbage", b"\xff", b"\x07default\x01a", b"\x05other\x07default\x01g\x01s"])
def test_a_page_token_that_was_never_given_out_is_refused(stub: meta_grpc.MetaServiceServiceStub, token: bytes) -> None:
    """An empty last page would end a listing early, in silence (10)."""
    with pytest.raises(grpc.RpcError) as caught:
        stub.ListOffsetData(meta_pb.ListOffsetDataRequest(page_token=token), timeout=PATIENCE_S)
    assert caught.value.code() is BAD
    assert (caught.value.details() or "").startswith("page_token")


def test_an_empty_save_is_answered_with_no_rows(stub: meta_grpc.MetaServiceServiceStub) -> None:
    """There is nothing in it that could be bad."""
    assert not stub.SaveOffsetData(meta_pb.SaveOffsetDataRequest(), timeout=PATIENCE_S).results


def test_the_largest_epoch_does_not_break_a_delete(service: ServiceProcess, stub: meta_grpc.MetaServiceServiceStub) -> None:
    """No epoch stands above it: the delete is refused in words, or the save was."""
    reply = stub.SaveOffsetData(_save(_entry(epoch=2**64 - 1), cluster="edge"), timeout=PATIENCE_S)
    if reply.results[0].status == INVALID:
        assert reply.results[0].message.startswith("entry 0: epoch")
        assert not stored_in(service, "edge")
        return
    with pytest.raises(grpc.RpcError) as caught:
        stub.DeleteOffsetData(meta_pb.DeleteOffsetDataRequest(cluster_name="edge", **NAMED), timeout=PATIENCE_S)
    assert caught.value.code() is not grpc.StatusCode.UNKNOWN


def test_http1_on_the_port_disturbs_nobody(service: ServiceProcess, stub: meta_grpc.MetaServiceServiceStub) -> None:
    """The connection ends; the open channel goes on (10)."""
    stub.SaveOffsetData(_save(_entry()), timeout=PATIENCE_S)
    with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_S) as wrong:
        wrong.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while wrong.recv(4096):
            pass
    stub.SaveOffsetData(_save(_entry()), timeout=PATIENCE_S)


STORE: dict[str, Any] = {"broker": "b", "path": "/p", "store_id": bytes(16), "flushed_seq": 1}
STORES: list[tuple[dict[str, Any], str]] = [
    ({"broker": ""}, "store.broker is empty"),
    ({"broker": LONG}, f"store.broker {TOO_LONG}"),
    ({"path": ""}, "store.path is 0 bytes long; it must be 1 to 4096"),
    ({"path": "p" * 4097}, "store.path is 4097 bytes long; it must be 1 to 4096"),
    ({"store_id": b"short"}, "store.store_id is 5 bytes long; it must be 16"),
    ({"store_id": b""}, "store.store_id is 0 bytes long; it must be 16"),
]


@pytest.mark.parametrize(("fields", "why"), STORES, ids=[why for _, why in STORES])
def test_a_bad_local_store_refuses_the_request_by_its_field(
    stub: meta_grpc.MetaServiceServiceStub, fields: dict[str, Any], why: str
) -> None:
    """In each call that carries one; nothing of a save with one is stored."""
    store = meta_pb.LocalStore(**{**STORE, **fields})
    saving = _save(_entry(), cluster="bad-store")
    saving.store.CopyFrom(store)
    calls: list[tuple[Any, Message]] = [
        (stub.ReportStore, meta_pb.ReportStoreRequest(store=store)),
        (stub.SaveOffsetData, saving),
        (stub.MergeOffsetData, meta_pb.MergeOffsetDataRequest(store=store)),
    ]
    for call, request in calls:
        with pytest.raises(grpc.RpcError, match=re.escape(why)) as error:
            call(request, timeout=PATIENCE_S)
        assert error.value.code() is BAD
    assert not stub.ListOffsetData(meta_pb.ListOffsetDataRequest(cluster_name="bad-store"), timeout=PATIENCE_S).entries


def test_what_a_store_replaces_is_the_id_of_one(stub: meta_grpc.MetaServiceServiceStub) -> None:
    """Or nothing."""
    request = meta_pb.ReportStoreRequest(store=meta_pb.LocalStore(**STORE), replaces=b"x")
    with pytest.raises(grpc.RpcError, match=re.escape("replaces is 1 bytes long; it must be 16")) as error:
        stub.ReportStore(request, timeout=PATIENCE_S)
    assert error.value.code() is BAD


def test_a_report_is_remembered_and_each_reply_has_the_mark_and_the_time(stub: meta_grpc.MetaServiceServiceStub) -> None:
    """Whether it comes by itself, with a save, or with a merge; the mark only grows."""
    report = meta_pb.ReportStoreRequest(store=meta_pb.LocalStore(**STORE), cluster_name="reports")
    replies: list[Any] = [stub.ReportStore(report, timeout=PATIENCE_S)]
    assert not replies[0].HasField("known")
    saving = _save(_entry(), cluster="reports")
    saving.store.CopyFrom(meta_pb.LocalStore(**{**STORE, "flushed_seq": 2}))
    replies.append(stub.SaveOffsetData(saving, timeout=PATIENCE_S))
    told = meta_pb.LocalStore(**{**STORE, "flushed_seq": 3})
    merging = meta_pb.MergeOffsetDataRequest(store=told, cluster_name="reports")
    replies += [stub.MergeOffsetData(merging, timeout=PATIENCE_S), stub.ReportStore(report, timeout=PATIENCE_S)]
    assert replies[-1].known == told
    assert 0 < replies[-1].known_at_ms <= replies[-1].now_ms
    replies.append(stub.GetStoreStatus(meta_pb.GetStoreStatusRequest(), timeout=PATIENCE_S))
    assert (replies[-1].engine, replies[-1].HasField("loss")) == ("rocksdb", False)
    assert replies[-1].version
    marks = [mark for reply in replies for mark in reply.marks]
    assert len(marks) == len(replies)
    assert len({(mark.name, mark.store_id, mark.incarnation) for mark in marks}) == 1
    assert [mark.revision for mark in marks] == sorted(mark.revision for mark in marks)
    assert marks[1].revision > marks[0].revision
    assert all(reply.now_ms > 0 for reply in replies)
