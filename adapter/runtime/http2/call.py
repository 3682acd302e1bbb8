"""A call as its servicer sees it: what it uses of gRPC's context and request iterator, its deadline, its end.

Servicers are those of grpc.aio; what none of ours uses of a context is not here.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, NamedTuple, Protocol

import grpc.aio
import structlog

from adapter.errors import AdapterError
from adapter.runtime.http2.connection import Connection
from adapter.runtime.http2.frames import Code
from adapter.runtime.http2.headers import Metadata
from adapter.runtime.http2.streams import Stream
from adapter.runtime.statuses import status_of, trailing_of

log = structlog.get_logger(__name__)

OUT_MAX = 65_536  # bytes of replies that wait; beyond, a servicer that streams waits

Done = Callable[[int, AdapterError | None], None]


class Take(NamedTuple):
    """How the small requests of a unary method are handled together: those of all connections, at the end of an iteration.

    `offer` gets parsed requests, here always one, and calls the function once: with how many of them are done, for which an empty
    message is the reply, or with an error. `call_left` is called, in place of the method, with a request that is not done.
    Requests of more than `max_bytes` are not offered: for them the method is called.
    """

    offer: Callable[[Sequence[Any], Done], None]
    call_left: Callable[[Any, Any], Any]
    max_bytes: int


class Peer(Protocol):
    """What a call needs of the connection that it came by."""

    name: str
    connection: Connection
    can_write: asyncio.Event

    @property
    def may_start(self) -> bool:
        """False while the peer leaves too much unread."""

    def start_soon(self, call: "Call") -> None:
        """Call the servicer in one of the next turns."""

    def begun(self, task: asyncio.Task[None]) -> None:
        """Keep the task of a call that waits for something."""

    def flush_soon(self) -> None:
        """Write what is due at the end of this turn."""

    async def until_it_reads(self) -> None:
        """Wait until the peer has taken most of what there is."""


class Method(NamedTuple):
    """One of a servicer's."""

    behavior: Callable[[Any, Any], Any]
    parse: Callable[[bytes], Any]
    serialize: Callable[[Any], bytes]
    takes_stream: bool
    gives_stream: bool
    take: Take | None = None

    @classmethod
    def of(cls, handler: "grpc.RpcMethodHandler[Any, Any]") -> "Method":
        """As the generated code registers it."""
        kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
        behavior = next(behavior for behavior in kinds if behavior)
        parse, serialize = handler.request_deserializer or bytes, handler.response_serializer or bytes
        return cls(behavior, parse, serialize, handler.request_streaming, handler.response_streaming)


class Requests:
    """The messages of a call, in their order. What is not taken keeps its room in the window, and so stops the sender."""

    def __init__(self, call: "Call") -> None:
        self._call = call
        self._waiting: deque[bytes] = deque()
        self._ended = False
        self._changed = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[Any]:
        """Itself."""
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - whatever the method takes
        """The next one."""
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._take()

    def arrived(self, at_most: int) -> list[Any]:
        """Those that are here already, up to one that cannot be parsed."""
        found: list[Any] = []
        with suppress(Exception):  # the next one asked for says so
            while self._waiting and len(found) < at_most:
                found.append(self._take())
        return found

    def put(self, message: bytes) -> None:
        """One has come."""
        self._waiting.append(message)
        self._changed.set()

    def end(self) -> None:
        """No more will come."""
        self._ended = True
        self._changed.set()

    def _take(self) -> Any:  # noqa: ANN401
        request = self._call.method.parse(self._waiting[0])
        self._call.consumed(self._waiting.popleft())
        return request


class Call:
    """One call."""

    __slots__ = ("_code", "_deadline", "_message", "_offered", "_peer", "_requests", "_stream", "_task", "_writable", "method")

    def __init__(self, peer: Peer, stream: Stream, method: Method) -> None:
        self.method = method
        self._code = grpc.StatusCode.UNKNOWN
        self._peer = peer
        self._stream = stream
        self._message: bytes | None = None
        self._offered: Any = None  # the parsed message, once it was offered to `method.take`
        self._requests: Requests | None = None
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._writable: asyncio.Event | None = None
        if method.takes_stream:
            self._requests = Requests(self)
            peer.start_soon(self)

    def put(self, message: bytes) -> None:
        """A message has come."""
        if self._requests:
            self._requests.put(message)
        elif self._message is None:
            self._message = message
        else:
            self.finish(grpc.StatusCode.UNIMPLEMENTED, "the method takes one message; more were sent")

    def end(self) -> None:
        """No more messages will come."""
        if self._requests:
            self._requests.end()
        elif self._message is None:
            self.finish(grpc.StatusCode.UNIMPLEMENTED, "the method takes one message; none was sent")
        elif self.method.take and len(self._message) <= self.method.take.max_bytes:
            self._offer(self.method.take, self._message)
        else:
            self._peer.start_soon(self)

    def start(self) -> bool:
        """Call the method; False when it is not to be called any more."""
        if not self._is_open:
            return False
        behavior, request = self.method.behavior, self._requests or self._offered
        if self._offered is not None and self.method.take:
            behavior = self.method.take.call_left
        elif request is None and (request := self._parse(self._message or b"")) is None:
            return False
        self._task = asyncio.get_running_loop().create_task(self._run(behavior, request), name=self._stream.head.path)
        self._peer.begun(self._task)
        return True

    def watch_deadline(self) -> None:
        """End the call with DEADLINE_EXCEEDED in its time, unless it is over by then."""
        timeout_s = self._stream.head.timeout_s
        if timeout_s is not None and self._deadline is None and self._is_open:
            self._deadline = asyncio.get_running_loop().call_later(timeout_s, self._expire)

    def cancel(self) -> None:
        """It is over: who handles it is told so."""
        if self._task:
            self._task.cancel()
        self._over()

    def finish(self, code: grpc.StatusCode, text: str = "", metadata: Iterable[tuple[str, str]] = ()) -> None:
        """End it with a status."""
        self._peer.connection.finish(self._stream, code.value[0], text, metadata)
        self._peer.flush_soon()
        self.cancel()

    def consumed(self, message: bytes) -> None:
        """A message has been taken."""
        self._peer.connection.consumed(self._stream, message)
        self._peer.flush_soon()

    def wrote(self) -> None:
        """What was to be sent is out."""
        if self._writable:
            self._writable.set()

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """As grpc.aio's. Raises grpc.aio.AbortError."""
        self._peer.connection.finish(self._stream, code.value[0], details, trailing_metadata)
        raise grpc.aio.AbortError

    def set_code(self, code: grpc.StatusCode) -> None:
        """As grpc.aio's: the status if the method raises, which generated code does where a servicer lacks a method."""
        self._code = code

    def set_details(self, details: str) -> None:
        """As grpc.aio's: of no use, since what is raised is told."""

    def peer(self) -> str:
        """As grpc.aio's."""
        return self._peer.name

    def invocation_metadata(self) -> Metadata:
        """As grpc.aio's, with the headers of HTTP that are no metadata."""
        return self._stream.head.metadata

    def auth_context(self) -> dict[str, Any]:
        """As grpc.aio's: empty without TLS."""
        return {}

    @property
    def is_read(self) -> bool:
        """Not of grpc.aio: False while the peer leaves too much unread; nothing large should be made for it then."""
        return self._peer.may_start

    async def until_read(self) -> None:
        """Not of grpc.aio: wait until it does not."""
        await self._peer.until_it_reads()

    async def write(self, reply: Any) -> None:  # noqa: ANN401 - whatever the method answers
        """As grpc.aio's: send a reply; returns when there is room for another."""
        self._peer.connection.send_message(self._stream, self.method.serialize(reply))
        self._peer.flush_soon()
        await self._peer.can_write.wait()
        while self._is_open and self._stream.out and len(self._stream.out) > OUT_MAX:
            self._writable = self._writable or asyncio.Event()
            self._writable.clear()
            await self._writable.wait()

    @property
    def _is_open(self) -> bool:
        return self._stream.id in self._peer.connection.streams

    def _offer(self, take: Take, message: bytes) -> None:
        self._offered = self._parse(message)
        if self._offered is not None:
            take.offer((self._offered,), self._taken)

    def _parse(self, message: bytes) -> Any:  # noqa: ANN401 - whatever the method takes
        """The request; None when it cannot be parsed: then the call ends as grpcio's does, whatever the parser raises."""
        try:
            return self.method.parse(message)
        except Exception as error:  # noqa: BLE001
            self.finish(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")
            return None

    def _taken(self, count: int, error: AdapterError | None) -> None:
        if error:
            self.finish(status_of(error), str(error), trailing_of(error))
        elif count:
            self._peer.connection.answer(self._stream, b"")
            self._peer.flush_soon()  # mostly it is due already; it may have been before this
            self._over()
        else:
            self._peer.start_soon(self)

    async def _run(self, behavior: Callable[[Any, Any], Any], request: object) -> None:
        try:
            result = behavior(request, self)
            if not inspect.isasyncgen(result):
                reply = await result
                if self.method.gives_stream:
                    self._peer.connection.finish(self._stream, 0)
                else:
                    self._peer.connection.answer(self._stream, self.method.serialize(reply))
            else:
                async with aclosing(result):
                    async for each in result:
                        await self.write(each)
                self._peer.connection.finish(self._stream, 0)
        except grpc.aio.AbortError:
            pass
        except Exception as error:  # noqa: BLE001 - servicers log theirs
            self._peer.connection.finish(self._stream, self._code.value[0], f"Unexpected {type(error)}: {error}")
        finally:
            self._peer.flush_soon()
            if not self._is_open:
                self._over()

    def _over(self) -> None:
        """Nothing that still comes matters. Cycles end here: nobody collects them (see `process`)."""
        self._stream.call = self._requests = self._offered = self._task = None
        if self._deadline:
            self._deadline.cancel()

    def _expire(self) -> None:
        if self._stream.out:
            self._peer.connection.cut_off(self._stream, Code.CANCEL)  # the peer does not take what there is
        self.finish(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
