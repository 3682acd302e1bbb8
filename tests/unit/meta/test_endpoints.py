"""The endpoints of a Meta Service, and the leaders that RobustMQ names."""

from collections.abc import Sequence

import grpc.aio

from adapter.meta.endpoints import MAX_NAMED, Endpoints
from adapter.runtime.channels import close_channels

CONFIGURED = "127.0.0.1:1"


def address(number: int) -> str:
    """Where a leader has been."""
    return f"127.0.0.1:{2 + number}"


async def test_leaders_are_followed_however_often_their_addresses_change() -> None:
    """As of pods, which get another one with each restart. The channels to former ones are closed."""
    opened: list[grpc.aio.Channel] = []
    retired: list[grpc.aio.Channel] = []

    def channel(name: str) -> grpc.aio.Channel:
        opened.append(grpc.aio.insecure_channel(name))
        return opened[-1]

    def retire(channels: Sequence[grpc.aio.Channel]) -> None:
        retired.extend(channels)

    endpoints = Endpoints([CONFIGURED], {CONFIGURED: channel(CONFIGURED)}, channel, retire)
    for number in range(MAX_NAMED + 3):
        assert endpoints.reaches(address(number))
        assert endpoints.reaches(address(0))  # it leads other groups all the time
    assert [*endpoints.opened] == [*map(address, range(4, MAX_NAMED + 3)), address(0)]
    assert [*endpoints.opened.values(), *retired] == [*opened[5:], opened[1], *opened[2:5]]
    endpoints.current = address(1)
    assert endpoints.current == CONFIGURED
    await close_channels(opened)
