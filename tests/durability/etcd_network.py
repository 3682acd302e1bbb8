"""The network between the members of an etcd cluster: TCP proxies before their peer ports, which cut a member off.

Then no connection and no byte is lost, but nothing arrives until it is healed, as in a network that drops all packets.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import anyio
import anyio.abc
import psutil
from anyio.from_thread import BlockingPortal, start_blocking_portal

from adapter.testing.etcd import LocalCluster, LocalMember
from tests.durability.proxy import Proxy


class PeerNetwork:
    """Who can reach whom. Clients reach every member all the time."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.members = cluster.members
        self._isolated: frozenset[str] = frozenset()
        self._changed = asyncio.Event()
        self._portal: BlockingPortal | None = None

    @contextmanager
    def running(self) -> Iterator["PeerNetwork"]:
        """Carry what the members send each other, in a thread. Enter this before the cluster starts."""
        with ExitStack() as stack:
            self._portal = portal = stack.enter_context(start_blocking_portal())
            for member in self.members:
                proxy = _PeerProxy(self, member)
                stack.enter_context(portal.wrap_async_context_manager(proxy.listening()))
                member.peer_address = proxy.address
            yield self
            self.heal()

    def isolate(self, *members: LocalMember) -> None:
        """From now on, until the next such call, these members reach each other, and no others; and are reached so."""
        assert self._portal
        self._portal.call(self._set, frozenset(member.name for member in members))

    def heal(self) -> None:
        """Everybody reaches everybody, and what was held back arrives."""
        self.isolate()

    async def reaching(self, *ends: str) -> None:
        """Return when these two members reach each other."""
        while len({end in self._isolated for end in ends}) > 1:
            await self._changed.wait()

    def owner(self, port: int) -> str:
        """The member that has a connection from this port."""
        for member in self.members:
            try:
                connections = psutil.Process(member.pid).net_connections("tcp4")
            except psutil.Error:  # it was killed just now
                continue
            if any(connection.laddr.port == port for connection in connections):
                return member.name
        return ""

    def _set(self, isolated: frozenset[str]) -> None:
        self._isolated = isolated
        self._changed.set()
        self._changed = asyncio.Event()


class _PeerProxy(Proxy):
    """Before the peer port of one member."""

    def __init__(self, network: PeerNetwork, member: LocalMember) -> None:
        super().__init__(f"127.0.0.1:{member.peer_port}")
        self._network = network
        self._member = member.name

    async def _connect(self, client: anyio.abc.SocketStream) -> None:
        port = client.extra(anyio.abc.SocketAttribute.remote_port)  # noqa: S610 - no database here
        ends = self._network.owner(port), self._member
        async with client:
            await self._network.reaching(*ends)
            try:
                server = await anyio.connect_tcp(*self._target)
            except OSError:
                return
            carry: Callable[[anyio.abc.SocketStream, anyio.abc.SocketStream], Awaitable[None]] = partial(self._pass_on, ends)
            async with server, anyio.create_task_group() as tasks:
                for source, sink in ((client, server), (server, client)):
                    tasks.start_soon(self._carry, carry, source, sink, tasks.cancel_scope)

    async def _pass_on(self, ends: tuple[str, str], source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream) -> None:
        async for data in source:
            await self._network.reaching(*ends)
            await sink.send(data)
