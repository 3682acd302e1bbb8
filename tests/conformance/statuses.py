"""A server whose CommitOffsets answers every call with the status that a case sets, and keeps what it was asked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from adapter.rpc import offsets_pb

COMMIT = "/offsets.v1.OffsetStore/CommitOffsets"


class Answering(grpc.GenericRpcHandler):
    """Commits alone."""

    def __init__(self) -> None:
        self.address = ""
        self.status = (grpc.StatusCode.OK, "")
        self.requests: list[offsets_pb.CommitOffsetsRequest] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """The one method."""
        return grpc.unary_unary_rpc_method_handler(self._answer) if handler_call_details.method == COMMIT else None

    async def _answer(self, request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        self.requests.append(offsets_pb.CommitOffsetsRequest.FromString(request))
        if self.status[0] is not grpc.StatusCode.OK:
            await context.abort(*self.status)
        return offsets_pb.CommitOffsetsReply().SerializeToString()


@asynccontextmanager
async def answering() -> AsyncIterator[Answering]:
    """A server that runs."""
    server, handler = grpc.aio.server(), Answering()
    server.add_generic_rpc_handlers([handler])
    handler.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield handler
    finally:
        await server.stop(None)
