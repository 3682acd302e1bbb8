"""The metadata that the Meta Service keeps beside the offsets, as far as an adapter uses it: small values that are written once.

A server may serve none (`serve = ["offsets"]`, RobustMQ): then every method raises UnknownCallError.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc
import grpc.aio

from adapter.meta.endpoints import Endpoints
from adapter.rpc import metadata_pb

if TYPE_CHECKING:  # exists only in the stubs
    from adapter.rpc.metadata_pb2_grpc import MetadataStoreAsyncStub as Stub

R = TypeVar("R")


class MetadataClient(Protocol):
    """Values of the cluster by key. Every method raises MetaUnavailableError, and RefusedError or its UnknownCallError."""

    async def get(self, key: str) -> bytes | None:
        """The value; None if there is none."""

    async def put_new(self, key: str, value: bytes) -> bool:
        """Store a value, unless there is one. False: there is one, which may be this one, from an attempt without an answer."""

    async def first_keys(self, prefix: str) -> list[str]:
        """Some of the first keys that begin so, in order."""

    async def delete(self, key: str) -> None:
        """Remove a value, if there is one."""


class GrpcMetadata:
    """The metadata behind the endpoints of a Meta Service."""

    def __init__(self, endpoints: Endpoints, cluster: str, timeout_s: float) -> None:
        self._endpoints = endpoints
        self._cluster = cluster
        self._timeout_s = timeout_s

    async def get(self, key: str) -> bytes | None:
        """The value; None if there is none."""
        request = metadata_pb.GetRequest(cluster_name=self._cluster, key=key)
        reply = await self._call(lambda stub: stub.Get(request, timeout=self._timeout_s))
        return reply.entry.value if reply.HasField("entry") else None

    async def put_new(self, key: str, value: bytes) -> bool:
        """Store a value, unless there is one."""
        request = metadata_pb.PutRequest(cluster_name=self._cluster, key=key, value=value, expected_revision=0)

        async def put(stub: "Stub") -> bool:
            try:
                await stub.Put(request, timeout=self._timeout_s)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.ABORTED:
                    return False
                raise
            return True

        return await self._call(put)

    async def first_keys(self, prefix: str) -> list[str]:
        """The keys of the first page."""
        request = metadata_pb.ListRequest(cluster_name=self._cluster, prefix=prefix)
        reply = await self._call(lambda stub: stub.List(request, timeout=self._timeout_s))
        return [entry.key for entry in reply.entries]

    async def delete(self, key: str) -> None:
        """Remove a value, if there is one."""
        request = metadata_pb.DeleteRequest(cluster_name=self._cluster, key=key)
        await self._call(lambda stub: stub.Delete(request, timeout=self._timeout_s))

    async def _call(self, call: "Callable[[Stub], Awaitable[R]]") -> R:
        return await self._endpoints.call(
            lambda stub: call(self._endpoints.metadata(stub)), timeout_s=self._timeout_s, needed=False
        )
