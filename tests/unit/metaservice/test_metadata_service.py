"""The gRPC service of metadata: it refuses bad requests by the name of the field, and maps the store's results (10)."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from adapter.errors import MetaUnavailableError
from adapter.metaservice.limits import Limit
from adapter.metaservice.metadata import MAX_PAGE, REVISION_MAX, VALUE_MAX_BYTES, Entry, Page, PageBuilder, conflict
from adapter.metaservice.metadata_service import MetadataMetrics, MetadataService
from adapter.rpc import metadata_pb
from tests.unit.calls import AbortedError, context


class MemoryStore:
    """Entries in a dictionary, and a record of the calls."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], Entry] = {}
        self.calls: list[tuple[object, ...]] = []
        self.error: Exception | None = None

    async def put(self, cluster: str, key: str, value: bytes, expected: int | None = None) -> int:
        """Write an entry; every compare-and-set fails."""
        self._check("put", cluster, key, value, expected)
        if expected is not None:
            raise conflict(key, expected, 7)
        self.entries[cluster, key] = Entry(key, value, len(self.calls))
        return len(self.calls)

    async def get(self, cluster: str, key: str) -> Entry | None:
        """Read an entry."""
        self._check("get", cluster, key)
        return self.entries.get((cluster, key))

    async def delete(self, cluster: str, key: str, expected: int | None = None) -> bool:
        """Delete an entry; every compare-and-set fails."""
        self._check("delete", cluster, key, expected)
        if expected is not None:
            raise conflict(key, expected, 0)
        return self.entries.pop((cluster, key), None) is not None

    async def list_page(self, cluster: str, prefix: str, size: int, after: str) -> Page:
        """All entries, with `more` set."""
        self._check("list", cluster, prefix, size, after)
        builder = PageBuilder(size)
        for entry in self.entries.values():
            builder.add(entry)
        return builder.page(more=bool(self.entries))

    def _check(self, *call: object) -> None:
        self.calls.append(call)
        if self.error:
            raise self.error


class Service:
    """The service over such a store, with at most `most` calls in progress."""

    def __init__(self, most: int = 10) -> None:
        self.store = MemoryStore()
        self.registry = CollectorRegistry()
        self.refused = 0
        self._service = MetadataService(self.store, Limit("metadata calls", most, self._refuse), MetadataMetrics(self.registry))

    async def __call__(self, request: Message) -> Any:
        """Call the method for a request."""
        rpc = type(request).__name__.removesuffix("Request")
        method: Callable[..., Awaitable[Message]] = getattr(self._service, rpc)
        return await method(request, context())

    async def refusal(self, request: Message) -> tuple[grpc.StatusCode, str]:
        """The status with which a request is refused."""
        with pytest.raises(AbortedError) as caught:
            await self(request)
        code, text = caught.value.args[:2]
        return code, text

    def counted(self, name: str, rpc: str) -> float | None:
        """A metric of an RPC."""
        return self.registry.get_sample_value(f"offset_meta_metadata_{name}", {"rpc": rpc})

    def _refuse(self) -> None:
        self.refused += 1


async def test_put_get_delete_and_list() -> None:
    """The cluster is `default` if none is named; the reply for an absent entry has none."""
    service = Service()
    assert (await service(metadata_pb.PutRequest(key="k", value=b"v"))).revision == 1
    entry = metadata_pb.Entry(key="k", value=b"v", revision=1)
    assert await service(metadata_pb.GetRequest(key="k")) == metadata_pb.GetReply(entry=entry)
    assert await service(metadata_pb.GetRequest(cluster_name="c", key="k")) == metadata_pb.GetReply()
    assert await service(metadata_pb.ListRequest(page_size=1)) == metadata_pb.ListReply(entries=[entry], next_page_token=b"k")
    assert (await service(metadata_pb.DeleteRequest(key="k"))).deleted
    assert not (await service(metadata_pb.DeleteRequest(key="k"))).deleted
    assert await service(metadata_pb.ListRequest(prefix="k", page_token=b"kk")) == metadata_pb.ListReply()
    assert service.store.calls == [
        ("put", "default", "k", b"v", None),
        ("get", "default", "k"),
        ("get", "c", "k"),
        ("list", "default", "", 1, ""),
        ("delete", "default", "k", None),
        ("delete", "default", "k", None),
        ("list", "default", "k", 100, "kk"),
    ]


LONG = "x" * 1025
TOKEN = "page_token: is not the next_page_token of a page of this list"  # noqa: S105 - not a secret
BAD: list[tuple[Message, str]] = [
    (metadata_pb.PutRequest(), "key is empty"),
    (metadata_pb.PutRequest(key=LONG), "key is 1025 bytes long; at most 1024 are allowed"),
    (metadata_pb.PutRequest(key="a\nb"), "key has the control character U+000A at position 1"),
    (metadata_pb.PutRequest(key="k", cluster_name="c" * 256), "cluster_name is 256 bytes long; at most 255 are allowed"),
    (
        metadata_pb.PutRequest(key="k", value=bytes(VALUE_MAX_BYTES + 1)),
        "value is 1048577 bytes long; at most 1048576 are allowed",
    ),
    (metadata_pb.PutRequest(key="k", expected_revision=2**63), f"expected_revision {2**63} is over {REVISION_MAX}"),
    (metadata_pb.GetRequest(), "key is empty"),
    (metadata_pb.GetRequest(key="k", cluster_name="\0"), "cluster_name has the control character U+0000 at position 0"),
    (metadata_pb.DeleteRequest(), "key is empty"),
    (metadata_pb.DeleteRequest(key="k", expected_revision=2**64 - 1), f"expected_revision {2**64 - 1} is over {REVISION_MAX}"),
    (metadata_pb.DeleteRequest(key="k", cluster_name="\x7f"), "cluster_name has the control character U+007F at position 0"),
    (metadata_pb.ListRequest(prefix=LONG), "prefix is 1025 bytes long; at most 1024 are allowed"),
    (metadata_pb.ListRequest(prefix="\t"), "prefix has the control character U+0009 at position 0"),
    (metadata_pb.ListRequest(page_size=MAX_PAGE + 1), "page_size: 1001 is over 1000"),
    (metadata_pb.ListRequest(page_token=b"\xff"), TOKEN),
    (metadata_pb.ListRequest(page_token=b"a\0"), TOKEN),
    (metadata_pb.ListRequest(prefix="b", page_token=b"a"), TOKEN),
    (metadata_pb.ListRequest(page_token=LONG.encode()), TOKEN),
    (metadata_pb.ListRequest(cluster_name="c" * 256), "cluster_name is 256 bytes long; at most 255 are allowed"),
]


@pytest.mark.parametrize(("request_", "text"), BAD, ids=[f"{type(bad).__name__}-{text[:20]}" for bad, text in BAD])
async def test_a_bad_request_is_refused_by_the_name_of_its_field(request_: Message, text: str) -> None:
    """The store is not asked."""
    service = Service()
    assert await service.refusal(request_) == (grpc.StatusCode.INVALID_ARGUMENT, text)
    assert service.store.calls == []


@pytest.mark.parametrize("size", [0, 1, MAX_PAGE])
async def test_the_sizes_of_pages_up_to_the_largest_are_allowed(size: int) -> None:
    """0 is the default."""
    service = Service()
    await service(metadata_pb.ListRequest(page_size=size))
    assert service.store.calls == [("list", "default", "", size or 100, "")]


async def test_a_conflict_is_aborted_and_tells_what_stands() -> None:
    """An expected 0 is an expectation too: the key must be absent."""
    service = Service()
    assert await service.refusal(metadata_pb.PutRequest(key="k", expected_revision=5)) == (
        grpc.StatusCode.ABORTED,
        "key 'k': revision 7 stands, expected was revision 5; nothing was written",
    )
    assert await service.refusal(metadata_pb.PutRequest(key="k", expected_revision=0)) == (
        grpc.StatusCode.ABORTED,
        "key 'k': revision 7 stands, expected was that it is absent; nothing was written",
    )
    assert await service.refusal(metadata_pb.DeleteRequest(key="k", expected_revision=5)) == (
        grpc.StatusCode.ABORTED,
        "key 'k': it is absent, expected was revision 5; nothing was written",
    )


async def test_what_is_over_the_limit_is_refused_before_the_store_is_asked() -> None:
    """For every call. A failed call frees its place."""
    service = Service(most=1)
    service.store.error = MetaUnavailableError("gone")
    requests = [Message(key="k") for Message in (metadata_pb.PutRequest, metadata_pb.GetRequest, metadata_pb.DeleteRequest)]
    for request in (*requests, metadata_pb.ListRequest()):
        assert await service.refusal(request) == (grpc.StatusCode.UNAVAILABLE, "gone")
    asked = len(service.store.calls)
    with service._service._limit.admit(1):
        for request in (*requests, metadata_pb.ListRequest()):
            code, _ = await service.refusal(request)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (service.refused, len(service.store.calls)) == (4, asked)


async def test_calls_are_counted_and_those_that_were_answered_are_timed() -> None:
    """For each RPC; the metrics exist from the start."""
    service = Service()
    await service(metadata_pb.PutRequest(key="k"))
    await service.refusal(metadata_pb.PutRequest(key="k", expected_revision=5))
    await service.refusal(metadata_pb.PutRequest())
    counted = {
        rpc: (service.counted("calls_total", rpc), service.counted("seconds_count", rpc)) for rpc in ("Put", "Get", "List")
    }
    assert counted == {"Put": (3, 1), "Get": (0, 0), "List": (0, 0)}
