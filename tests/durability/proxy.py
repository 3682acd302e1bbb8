"""A TCP proxy before the Meta Service that disturbs its answers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from adapter.runtime.settings.addresses import split_address
from adapter.testing.processes import free_port


class Proxy:
    """Knows where in HTTP/2 the body of an answer is: delays it, or ends the connection in the middle of it."""

    HEAD_BYTES, DATA = 9, 0  # RFC 9113, section 4.1: the head of a frame; section 6.1: the type of a body's frame

    def __init__(self, target: str) -> None:
        self._target = split_address(target)
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.delay_s = 0.0
        self.bytes_per_s = 0.0  # of the bodies of answers; 0: as fast as it goes
        self.cutting = False
        self.disturbed = 0  # answers that were delayed or cut

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Proxy"]:
        """Carry connections until the end of this context."""
        listening = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=self._port)
        async with listening as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, self._connect, name="proxy")
            yield self
            tasks.cancel_scope.cancel()

    async def _connect(self, client: anyio.abc.SocketStream) -> None:
        async with client:
            try:
                server = await anyio.connect_tcp(*self._target)
            except OSError:
                return
            async with server, anyio.create_task_group() as tasks:
                for way, source, sink in ((self._requests, client, server), (self._answers, server, client)):
                    tasks.start_soon(self._carry, way, source, sink, tasks.cancel_scope)

    async def _carry(
        self,
        way: Callable[[anyio.abc.SocketStream, anyio.abc.SocketStream], Awaitable[None]],
        source: anyio.abc.SocketStream,
        sink: anyio.abc.SocketStream,
        connection: anyio.CancelScope,
    ) -> None:
        with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await way(source, sink)
        connection.cancel()

    async def _requests(self, client: anyio.abc.SocketStream, server: anyio.abc.SocketStream) -> None:
        async for data in client:
            await server.send(data)

    async def _answers(self, server: anyio.abc.SocketStream, client: anyio.abc.SocketStream) -> None:
        frames = BufferedByteReceiveStream(server)
        while True:
            head = await frames.receive_exactly(self.HEAD_BYTES)
            body = await frames.receive_exactly(int.from_bytes(head[:3]))
            if head[3] == self.DATA:
                self.disturbed += self.cutting or self.delay_s > 0
                await anyio.sleep(self.delay_s + (len(body) / self.bytes_per_s if self.bytes_per_s else 0.0))
                if self.cutting:
                    await client.send(head + body[: len(body) // 2])
                    return
            await client.send(head + body)
