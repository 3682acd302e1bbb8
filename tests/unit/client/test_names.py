"""What a caller gives as names and offsets: a mistake is refused before anything is sent, and names its field."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from tests.unit.links import virtual

Call = Callable[[OffsetClient], Awaitable[Any]]


class NoChannel:
    """A channel over which nothing may be sent."""

    def __getattr__(self, name: str) -> Any:
        """The stubs ask for their methods."""
        return lambda *_, **__: self._send

    async def _send(self, *_: Any, **__: Any) -> None:
        raise AssertionError("it was sent")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda client: client.read("billing", "orders/0"), "shards: 'orders/0' is one name; give a list: ['orders/0']"),
        (lambda client: client.read("billing", b"orders/0"), "shards: b'orders/0' is one name; give a list: [b'orders/0']"),
        (lambda client: client.persist("billing", "orders/0"), "shards: 'orders/0' is one name; give a list: ['orders/0']"),
        (lambda client: client.remove("billing", "orders/0"), "shards: 'orders/0' is one name; give a list: ['orders/0']"),
        (lambda client: client.read_broadcast("billing", "o/0"), "shards: 'o/0' is one name; give a list: ['o/0']"),
        (lambda client: client.read("billing", [b"orders/0"]), "shards: b'orders/0' is not a string"),
        (lambda client: client.read("billing", ["orders/0", ""]), "shards is empty"),
        (lambda client: client.read(b"billing"), "group: b'billing' is not a string"),
        (lambda client: client.read(""), "group is empty"),
        (lambda client: client.read("billing", namespace=7), "namespace: 7 is not a string"),
        (lambda client: client.commit(b"billing", {"s": 1}), "group: b'billing' is not a string"),
        (lambda client: client.commit("billing", {b"s": 1}), "shard: b's' is not a string"),
        (lambda client: client.commit("billing", {"s": 1.5}), "offset of s: 1.5 is not a number from 0 to 18446744073709551615"),
        (lambda client: client.commit("billing", {"s": "1"}), "offset of s: '1' is not a number from 0 to 18446744073709551615"),
        (lambda client: client.commit("billing", {"s": -1}), "offset of s: -1 is not a number from 0 to 18446744073709551615"),
        (
            lambda client: client.commit("billing", [("s", 1)]),
            "offsets: [('s', 1)] is no mapping of shards to offsets, such as a dict",
        ),
    ],
)
@virtual
async def test_a_mistake_is_refused_by_its_name(call: Call, said: str) -> None:
    """With the code that the adapter would answer."""
    client = OffsetClient(NoChannel())  # type: ignore[arg-type]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(client)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, said)
