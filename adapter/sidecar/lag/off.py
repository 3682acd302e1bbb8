"""`offsets.v1.OffsetLag` of an adapter that keeps no lag: every call says which setting to change. Loads nothing of the rest."""

from collections.abc import AsyncIterator
from typing import NoReturn

from adapter.errors import SwitchedOffError
from adapter.rpc import lag_grpc, lag_pb
from adapter.runtime.statuses import Context, answering, status_of

OFF = "this adapter keeps no lag: lag.shards = 0 in its configuration; set it to the number of shards to keep, and start it again"


class NoOffsetLag(lag_grpc.OffsetLagServicer):
    """Refuses every call with FAILED_PRECONDITION."""

    @answering
    async def ListGroupLag(self, request: lag_pb.ListGroupLagRequest, context: Context) -> lag_pb.ListGroupLagReply:  # noqa: ARG002, D102
        _refuse()

    @answering
    async def GetGroupLag(self, request: lag_pb.GetGroupLagRequest, context: Context) -> lag_pb.GetGroupLagReply:  # noqa: ARG002, D102
        _refuse()

    async def WatchGroupLag(  # noqa: D102
        self,
        request: lag_pb.WatchGroupLagRequest,  # noqa: ARG002 - as the contract says
        context: Context,
    ) -> AsyncIterator[lag_pb.WatchGroupLagReply]:
        yield await context.abort(status_of(SwitchedOffError(OFF)), OFF)


def _refuse() -> NoReturn:
    raise SwitchedOffError(OFF)
