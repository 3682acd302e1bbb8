"""Calls to single adapters that a fleet does not make: what a group's shards are, and what changed them.

One channel for each adapter, opened when it is first asked, and closed when the fleet does not have its address any more. A token
that was refused is read again for the next call.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio.lowlevel
import grpc
import grpc.aio

from adapter.client.client import CHANNEL_OPTIONS, OffsetClient
from adapter.errors import AdapterError, ConfigError
from adapter.fleet.discovery import server_name
from adapter.fleet.link import NotUnderstoodError, understood
from adapter.fleet.section import FleetSection
from adapter.fleet.views import AdapterView
from adapter.rpc import offsets_pb
from adapter.runtime.channels import RetiredChannels, close_channels, open_channel
from adapter.runtime.settings.reading import soon
from adapter.runtime.settings.secret_files import read_token

CHANGES_MAX = 200  # of one adapter, for one group
_NO_ACCESS = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


class NotToldError(AdapterError):
    """An adapter did not answer; the message says why, without its address. `refused`: the token was not taken."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class _Opened(NamedTuple):
    channel: grpc.aio.Channel
    client: OffsetClient


class AdminCalls:
    """The adapters by their addresses."""

    def __init__(self, section: FleetSection, adapters: Callable[[], Sequence[AdapterView]]) -> None:
        self._section = section
        self._adapters = adapters
        self._timeout_s = section.timeout_ms / 1000
        self._opened: dict[str, _Opened] = {}
        self._retired = RetiredChannels(self._timeout_s)

    @classmethod
    @asynccontextmanager
    async def open(cls, section: FleetSection, adapters: Callable[[], Sequence[AdapterView]]) -> AsyncIterator["AdminCalls"]:
        """Close the channels at the end. Raises ConfigError for a token that cannot be used."""
        if section.token_file:
            read_token(section.token_file, "fleet.token_file")
        calls = cls(section, adapters)
        try:
            yield calls
        finally:
            await calls._retired.close()
            await close_channels(opened.channel for opened in calls._opened.values())

    def client(self, address: str) -> OffsetClient:
        """The client of an adapter, with the token if there is one. Raises ConfigError."""
        opened = self._opened.get(address)
        if opened is None:
            path = self._section.token_file
            token = soon(lambda: read_token(path, "fleet.token_file")) if path else ""
            names = {view.address: server_name(view.configured) for view in self._adapters()}
            self._keep({address, *names})
            channel = open_channel(
                address, self._section.tls, CHANNEL_OPTIONS, name="fleet.tls", server_name=names.get(address, "")
            )
            opened = self._opened[address] = _Opened(channel, OffsetClient(channel, token=token))
        return opened.client

    def _keep(self, addresses: Collection[str]) -> None:
        """Close the channels to all other adapters, once their calls are over: a name in DNS has new addresses all the time."""
        if gone := set(self._opened) - set(addresses):
            self._retired.add([self._opened.pop(address).channel for address in gone])

    async def describe(self, address: str, namespace: str, group: str) -> offsets_pb.DescribeGroupReply:
        """DescribeGroup of one adapter. Raises NotToldError."""
        request = offsets_pb.DescribeGroupRequest(namespace=namespace, group=group)
        try:
            return understood(await self.client(address).admin.DescribeGroup(request, timeout=self._timeout_s))
        except (grpc.aio.AioRpcError, ConfigError, NotUnderstoodError) as error:
            raise self._not_told(address, error) from error
        except asyncio.CancelledError:
            await anyio.lowlevel.checkpoint_if_cancelled()  # grpc.aio drops the mark of the scope that cancels
            raise

    async def changes(self, address: str, namespace: str, group: str) -> offsets_pb.ListChangesReply:
        """ListChanges of one adapter. Raises NotToldError."""
        request = offsets_pb.ListChangesRequest(namespace=namespace, group=group, limit=CHANGES_MAX)
        try:
            return understood(await self.client(address).admin.ListChanges(request, timeout=self._timeout_s))
        except (grpc.aio.AioRpcError, ConfigError, NotUnderstoodError) as error:
            raise self._not_told(address, error) from error
        except asyncio.CancelledError:
            await anyio.lowlevel.checkpoint_if_cancelled()  # grpc.aio drops the mark of the scope that cancels
            raise

    def _not_told(self, address: str, error: grpc.aio.AioRpcError | AdapterError) -> NotToldError:
        if isinstance(error, AdapterError):
            return NotToldError(str(error))
        if error.code() in {grpc.StatusCode.UNAVAILABLE, *_NO_ACCESS}:  # the next call reads the TLS files and the token anew
            self._keep(set(self._opened) - {address})
        if error.code() in _NO_ACCESS:
            return NotToldError("needs the adapter's admin token: set fleet.token_file", refused=True)
        return NotToldError(f"{error.code().name}: {error.details()}")
