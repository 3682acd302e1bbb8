"""A consumer's own time limit around a call of the client, by asyncio or by anyio."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import grpc.aio
import pytest

from adapter.client import OffsetClient

Call = Callable[[OffsetClient], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "commit": lambda client: client.commit("g", {"s": 1}),
    "read": lambda client: client.read("g"),
    "persist": lambda client: client.persist("g"),
    "remove": lambda client: client.remove("g"),
    "list": lambda client: anext(aiter(client.list())),
    "status": lambda client: client.status(),
    "flush": lambda client: client.flush(),
    "watch": lambda client: anext(aiter(client.watch())),
    "watch_group_lag": lambda client: anext(aiter(client.watch_group_lag())),
    "group_lag": lambda client: client.group_lag("g"),
}


class Silent(grpc.GenericRpcHandler):
    """An adapter that answers nothing."""

    def service(self, _: Any) -> Any:
        """Every call hangs."""

        async def hang(_: Any, __: Any) -> None:
            await asyncio.Event().wait()

        return grpc.unary_unary_rpc_method_handler(hang)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_time_limit_around_a_call_is_one(call: Call) -> None:
    """grpc.aio raises a cancellation that no scope of anyio knows (findings/grpcio-cancel-escapes-anyio-scopes.sh)."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Silent(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with OffsetClient.connect(f"127.0.0.1:{port}", 0.5) as client:
        with anyio.move_on_after(0.05) as scope:
            await call(client)
        assert scope.cancelled_caught
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.05):
                await call(client)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await call(client)
    await server.stop(0)
