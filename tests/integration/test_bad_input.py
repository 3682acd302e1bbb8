"""Bad input to the adapter: the status and the message that each gets. Nothing of such a request is stored (invariant 10)."""

import random
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.message import Message

from adapter.model.records import U64_MAX
from adapter.rpc import offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from tests.integration.helpers import PATIENCE_S, Rpc, commits, each, rpc

BAD = grpc.StatusCode.INVALID_ARGUMENT
LONG = "x" * 256

# How a name is bad, and what is said of it.
BAD_NAMES = {
    "over_long": (LONG, "is 256 bytes long; at most 255 are allowed"),
    "over_long_in_bytes": ("é" * 128, "is 256 bytes long; at most 255 are allowed"),
    "zero": ("a\0b", "has the control character U+0000 at position 1"),
    "newline": ("ab\n", "has the control character U+000A at position 2"),
    "delete": ("\x7f", "has the control character U+007F at position 0"),
    "c1": ("a\x85", "has the control character U+0085 at position 1"),
}
EMPTY_NAME = {"empty": ("", "is empty")}


class Row(NamedTuple):
    """A request, and what it is answered with."""

    name: str
    method: str
    request: Message
    message: str
    code: grpc.StatusCode = BAD


def _shard(**fields: Any) -> offsets_pb.ShardCommit:
    return offsets_pb.ShardCommit(**{"shard": "s", "offset": 1, **fields})


def _commit(*shards: offsets_pb.ShardCommit, mode: int = 0, **group: Any) -> offsets_pb.CommitOffsetsRequest:
    made = offsets_pb.GroupCommits(**{"group": "bad", "shards": shards, **group})
    return offsets_pb.CommitOffsetsRequest(groups=[made], mode=offsets_pb.CommitMode.ValueType(mode))


def _wanted(**fields: Any) -> list[offsets_pb.GroupShards]:
    return [offsets_pb.GroupShards(**{"group": "bad", **fields})]


def _name_rows() -> Iterator[Row]:
    for how, (name, why) in {**BAD_NAMES, **EMPTY_NAME}.items():
        yield Row(f"group_{how}", "CommitOffsets", _commit(_shard(), group=name), f"groups[0].group {why}")
        yield Row(f"shard_{how}", "CommitOffsets", _commit(_shard(shard=name)), f"groups[0].shards[0].shard {why}")
        read = offsets_pb.ReadOffsetsRequest(groups=_wanted(group=name))
        yield Row(f"read_group_{how}", "ReadOffsets", read, f"groups[0].group {why}")
        read = offsets_pb.ReadOffsetsRequest(groups=_wanted(shards=["s", name]))
        yield Row(f"read_shard_{how}", "ReadOffsets", read, f"groups[0].shards[1] {why}")
    for how, (name, why) in BAD_NAMES.items():
        yield Row(f"namespace_{how}", "CommitOffsets", _commit(_shard(), namespace=name), f"groups[0].namespace {why}")
        yield Row(f"topic_{how}", "CommitOffsets", _commit(_shard(topic=name)), f"groups[0].shards[0].topic {why}")
        persist = offsets_pb.PersistOffsetsRequest(groups=_wanted(namespace=name))
        yield Row(f"persist_namespace_{how}", "PersistOffsets", persist, f"groups[0].namespace {why}")
        remove = offsets_pb.RemoveOffsetsRequest(groups=_wanted(shards=[name]))
        yield Row(f"remove_shard_{how}", "RemoveOffsets", remove, f"groups[0].shards[0] {why}")
        listing = offsets_pb.ListOffsetsRequest(namespace=name)
        yield Row(f"list_namespace_{how}", "ListOffsets", listing, f"namespace {why}")


NO_OFFSET = "groups: no offset is in the request; at least one is needed"
NO_GROUP = "groups: is empty; at least one group is needed"
UNKNOWN_COMMIT_MODE = "mode: 7 is unknown; 0 is INCREASE_ONLY, 1 is OVERWRITE"
UNKNOWN_READ_MODE = "mode: 9 is unknown; 0 is MEMORY_FIRST_THEN_STORE, 1 is MEMORY, 2 is STORE"
TWICE = offsets_pb.CommitOffsetsRequest(
    groups=[
        offsets_pb.GroupCommits(group="bad", shards=[_shard(shard="a"), _shard(shard="s")]),
        offsets_pb.GroupCommits(namespace="default", group="bad", shards=[_shard(shard="s", offset=2)]),
    ]
)
MISSING = offsets_pb.ShardCommit(shard="s")

ROWS = [
    *_name_rows(),
    Row("no_groups", "CommitOffsets", offsets_pb.CommitOffsetsRequest(), NO_OFFSET),
    Row("no_shards", "CommitOffsets", _commit(), NO_OFFSET),
    Row("no_offset", "CommitOffsets", _commit(MISSING), "groups[0].shards[0].offset is missing; absent does not mean 0"),
    Row("commit_mode", "CommitOffsets", _commit(_shard(), mode=7), UNKNOWN_COMMIT_MODE),
    Row("twice", "CommitOffsets", TWICE, "groups[1].shards[0].shard: default/bad/s is in the request twice"),
    Row(
        "metadata",
        "CommitOffsets",
        _commit(_shard(metadata="m" * 4097)),
        "groups[0].shards[0].metadata is 4097 bytes long; at most 4096 are allowed",
    ),
    Row(
        "metadata_in_bytes",
        "CommitOffsets",
        _commit(_shard(metadata="é" * 2049)),
        "groups[0].shards[0].metadata is 4098 bytes long; at most 4096 are allowed",
    ),
    Row(
        "read_mode",
        "ReadOffsets",
        offsets_pb.ReadOffsetsRequest(groups=_wanted(), mode=offsets_pb.ReadMode.ValueType(9)),
        UNKNOWN_READ_MODE,
    ),
    Row("read_nothing", "ReadOffsets", offsets_pb.ReadOffsetsRequest(), NO_GROUP),
    Row("persist_nothing", "PersistOffsets", offsets_pb.PersistOffsetsRequest(), NO_GROUP),
    Row("remove_nothing", "RemoveOffsets", offsets_pb.RemoveOffsetsRequest(), NO_GROUP),
    Row("page_size", "ListOffsets", offsets_pb.ListOffsetsRequest(page_size=10_001), "page_size: 10001 is over 10000"),
    Row(
        "group_alone",
        "ListOffsets",
        offsets_pb.ListOffsetsRequest(group="g"),
        "namespace: is empty, but a group is named; name both",
    ),
]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One pair of processes that has to survive everything here."""
    directory = tmp_path_factory.mktemp("bad")
    meta = meta_process(directory)
    service = adapter_process(directory, meta.address)
    with ended(service, meta):
        meta.start()
        service.start()
        yield service
        assert service.stop() == 0
        assert "Traceback" not in service.log


@pytest.fixture
def stubs(adapter: ServiceProcess) -> Iterator[Rpc]:
    """Stubs of the adapter; after the test it still takes good requests."""
    with rpc(adapter.address) as made:
        yield made
        made.store.CommitOffsets(commits({"good": 1}), timeout=PATIENCE_S)


def _stored(stubs: Rpc, group: str = "bad") -> list[offsets_pb.ShardOffset]:
    request = offsets_pb.ListOffsetsRequest(namespace="default", group=group, page_size=10_000)
    return list(stubs.store.ListOffsets(request, timeout=PATIENCE_S).offsets)


def _details(error: grpc.RpcError) -> str:
    return error.details() or ""


def _call_raw(stubs: Rpc, method: str, data: bytes) -> bytes:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = stubs.channel.unary_unary(f"/offsets.v1.OffsetStore/{method}")
    return call(data, timeout=PATIENCE_S)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_bad_request_is_refused_by_the_name_of_the_field(stubs: Rpc, row: Row) -> None:
    """Status and whole message; nothing is stored (10)."""
    method = getattr(stubs.store, row.method)
    with pytest.raises(grpc.RpcError) as caught:
        method(row.request, timeout=PATIENCE_S)
    assert (caught.value.code(), caught.value.details()) == (row.code, row.message)
    assert not _stored(stubs)


@pytest.mark.parametrize("token", [b"garbage", b"\xff", b"\x01a", b"\x01a\x01b\x01c\x01d", b"\x01\xff\x01b\x01c"])
def test_a_page_token_that_was_never_given_out_is_refused(stubs: Rpc, token: bytes) -> None:
    """It is bad input, not a damaged store, and not the end of the list (10)."""
    with pytest.raises(grpc.RpcError) as caught:
        stubs.store.ListOffsets(offsets_pb.ListOffsetsRequest(page_token=token), timeout=PATIENCE_S)
    assert caught.value.code() is BAD
    assert _details(caught.value).startswith("page_token")


def test_a_page_token_of_another_list_is_refused(stubs: Rpc) -> None:
    """It would begin among names that were not asked for (10)."""
    for group in ("a", "b", "c"):
        stubs.store.CommitOffsets(commits({"s": 1, "t": 1}, group), timeout=PATIENCE_S)
    for group in ("a", "c"):
        first = offsets_pb.ListOffsetsRequest(namespace="default", group=group, page_size=1)
        token = stubs.store.ListOffsets(first, timeout=PATIENCE_S).next_page_token
        with pytest.raises(grpc.RpcError) as caught:
            stubs.store.ListOffsets(
                offsets_pb.ListOffsetsRequest(namespace="default", group="b", page_token=token), timeout=PATIENCE_S
            )
        assert (caught.value.code(), _details(caught.value)[:10]) == (BAD, "page_token")


def test_the_largest_values_that_are_allowed_are_stored(stubs: Rpc) -> None:
    """The limits themselves are good."""
    shard = _shard(shard="y" * 255, offset=U64_MAX, metadata="m" * 4096, topic="t" * 255, partition=2**32 - 1)
    stubs.store.CommitOffsets(_commit(shard, namespace="n" * 255, group="z" * 255), timeout=PATIENCE_S)
    request = offsets_pb.ReadOffsetsRequest(groups=_wanted(namespace="n" * 255, group="z" * 255, shards=["y" * 255]))
    found = stubs.store.ReadOffsets(request, timeout=PATIENCE_S).offsets[0]
    assert (found.offset, found.metadata, found.topic, found.partition) == (U64_MAX, "m" * 4096, "t" * 255, 2**32 - 1)


@pytest.mark.parametrize("offset", [U64_MAX + 1, -1])
def test_an_offset_beyond_u64_never_leaves_the_client(offset: int) -> None:
    """The wire has no room for it: protobuf refuses it where the request is made."""
    with pytest.raises(ValueError, match="out of range"):
        offsets_pb.ShardCommit(shard="s", offset=offset)


def test_one_bad_entry_in_a_big_batch_stores_nothing_of_it(stubs: Rpc) -> None:
    """2,000 good entries before the bad one, and none of them is there (10)."""
    shards = [_shard(shard=f"s{at}") for at in range(2_000)]
    with pytest.raises(grpc.RpcError) as caught:
        stubs.store.CommitOffsets(_commit(*shards, MISSING, group="big"), timeout=PATIENCE_S)
    assert caught.value.details() == "groups[0].shards[2000].offset is missing; absent does not mean 0"
    assert not _stored(stubs, "big")
    stubs.store.CommitOffsets(_commit(*shards, group="big"), timeout=PATIENCE_S)
    assert len(_stored(stubs, "big")) == len(shards)


def test_a_request_of_10_mb_is_refused(stubs: Rpc) -> None:
    """Refused by gRPC before it is read whole."""
    shards = [_shard(shard=f"s{at}", metadata="m" * 4096) for at in range(2_560)]
    with pytest.raises(grpc.RpcError) as caught:
        stubs.store.CommitOffsets(_commit(*shards), timeout=PATIENCE_S)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in _details(caught.value)
    assert "4194304" in _details(caught.value)
    assert not _stored(stubs)


def test_a_bad_request_on_a_stream_does_not_end_the_stream(stubs: Rpc) -> None:
    """It is answered in its place with its status and message; its neighbours are committed (10)."""
    requests = [_commit(_shard(shard="a"), group="stream"), _commit(MISSING), _commit(_shard(shard="b"), group="stream")]
    stream = (offsets_pb.StreamCommitsRequest(id=at, commit=request) for at, request in enumerate(requests))
    replies = list(stubs.store.StreamCommits(stream, timeout=PATIENCE_S))
    assert [(reply.id, reply.code) for reply in each(replies)] == [(0, 0), (1, BAD.value[0]), (2, 0)]
    assert replies[1].message == "groups[0].shards[0].offset is missing; absent does not mean 0"
    assert [row.shard for row in _stored(stubs, "stream")] == ["a", "b"]
    assert not _stored(stubs)


def test_a_stream_request_without_a_commit_is_answered_as_bad(stubs: Rpc) -> None:
    """An absent message is an empty one."""
    replies = list(stubs.store.StreamCommits(iter([offsets_pb.StreamCommitsRequest(id=5)]), timeout=PATIENCE_S))
    assert [(reply.id, reply.code, reply.message) for reply in replies] == [(5, BAD.value[0], NO_OFFSET)]


def test_a_10_mb_request_on_a_stream_ends_that_stream_with_its_status(stubs: Rpc) -> None:
    """Its id is unknown, so it cannot be answered in place; the commits before it are answered or counted as unanswered."""
    big = _commit(*[_shard(shard=f"s{at}", metadata="m" * 4096) for at in range(2_560)])
    requests = [offsets_pb.StreamCommitsRequest(id=1, commit=big)]
    with pytest.raises(grpc.RpcError) as caught:
        list(stubs.store.StreamCommits(iter(requests), timeout=PATIENCE_S))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not _stored(stubs)


@pytest.mark.parametrize("data", [b"\xff" * 40, b"\x0a\x05ab", b"\x0a\x03\x12\x01\xff"], ids=["garbage", "cut_off", "not_utf8"])
def test_bytes_that_are_no_request_are_refused(stubs: Rpc, data: bytes) -> None:
    """Answered by gRPC, which cannot know a field to name; nothing is stored."""
    with pytest.raises(grpc.RpcError) as caught:
        _call_raw(stubs, "CommitOffsets", data)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert "Error parsing message with type 'offsets.v1.CommitOffsetsRequest'" in _details(caught.value)
    assert not _stored(stubs)


def test_an_unknown_rpc_is_unimplemented(stubs: Rpc) -> None:
    """As gRPC says it."""
    with pytest.raises(grpc.RpcError) as caught:
        _call_raw(stubs, "Nonsense", b"")
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", random.Random(1).randbytes(4096), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64],
    ids=["http1", "random", "broken_http2"],
)
def test_another_protocol_on_the_port_disturbs_nobody(adapter: ServiceProcess, stubs: Rpc, data: bytes) -> None:
    """The connection ends, with or without an error of HTTP; open and new ones go on (10)."""
    stubs.store.CommitOffsets(commits({"before": 1}), timeout=PATIENCE_S)
    with socket.create_connection(("127.0.0.1", adapter.port), timeout=PATIENCE_S) as wrong:
        wrong.sendall(data)
        while wrong.recv(4096):
            pass
    stubs.store.CommitOffsets(commits({"after": 1}), timeout=PATIENCE_S)
    with rpc(adapter.address) as fresh:
        fresh.store.CommitOffsets(commits({"fresh": 1}), timeout=PATIENCE_S)
