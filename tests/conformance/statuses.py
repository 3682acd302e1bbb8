"""A server whose CommitOffsets answers every call with the status that a case sets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from adapter.rpc import offsets_grpc, offsets_pb


class Answering(offsets_grpc.OffsetStoreServicer):
    """Commits alone."""

    def __init__(self) -> None:
        self.address = ""
        self.status = (grpc.StatusCode.OK, "")
        self.calls = 0

    async def CommitOffsets(  # type: ignore[override]  # noqa: N802 - gRPC's name; the stubs are of the blocking kind
        self, _: offsets_pb.CommitOffsetsRequest, context: "grpc.aio.ServicerContext[object, object]"
    ) -> offsets_pb.CommitOffsetsReply:
        """Refuse it."""
        self.calls += 1
        await context.abort(*self.status)


@asynccontextmanager
async def answering() -> AsyncIterator[Answering]:
    """A server that runs."""
    server, servicer = grpc.aio.server(), Answering()
    offsets_grpc.add_OffsetStoreServicer_to_server(servicer, server)
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield servicer
    finally:
        await server.stop(None)
