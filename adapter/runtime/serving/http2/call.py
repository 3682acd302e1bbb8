"""One call as its servicer sees it: the part of grpc.aio's context and request iterator that our servicers use; its deadline."""

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, NamedTuple, Protocol

import grpc.aio
import structlog

from adapter.errors import AdapterError
from adapter.runtime.serving.http2.connection import Connection
from adapter.runtime.serving.http2.frames import Code
from adapter.runtime.serving.http2.headers import Metadata
from adapter.runtime.serving.http2.streams import Stream
from adapter.runtime.serving.request_sizes import Sizes
from adapter.runtime.serving.statuses import status_of, trailing_of

log = structlog.get_logger(__name__)

OUT_MAX = 65_536  # bytes of replies that wait to be sent; beyond, `write` waits

Done = Callable[[int, AdapterError | None], None]


class Take(NamedTuple):
    """How the small requests of a unary method are handled together: those of all connections, at the end of an iteration.

    `offer` gets parsed requests, here always one, and calls the function once: with how many of them are done, for which an empty
    message is the reply, or with an error. `call_left` is called, in place of the method, with a request that is not done.
    Requests of more than `max_bytes` are not offered: for them the method is called. `done`, if there is one, is called with each
    request that is done, and its headers.
    """

    offer: Callable[[Sequence[Any], Done], None]
    call_left: Callable[[Any, Any], Any]
    max_bytes: int
    done: Callable[[Any, Metadata], None] | None = None


class Peer(Protocol):
    """What a call needs of its connection."""

    name: str

    @property
    def uid(self) -> int | None:
        """The user of the client's process; None if the kernel does not tell."""

    @property
    def certificate(self) -> dict[str, list[bytes]]:
        """The names in the client's certificate, as grpc.aio tells them; empty without one."""

    connection: Connection
    can_write: asyncio.Event

    @property
    def may_start(self) -> bool:
        """False while too many answers wait for the peer to read them."""

    def start_soon(self, call: "Call") -> None:
        """Queue a call to be started in one of the next iterations of the event loop."""

    def begun(self, task: asyncio.Task[None]) -> None:
        """Keep the task of a call that was started."""

    def flush_soon(self) -> None:
        """Write pending output at the end of this iteration of the event loop."""

    async def until_read(self) -> None:
        """Wait until `may_start`."""


class ServedCall(Protocol):
    """A call as its connection sees it: a `Call`, or one that is relayed."""

    def put(self, message: bytes) -> None:
        """Take a message that was received; of a call that is relayed, bytes."""

    def end(self) -> None:
        """Handle the end of the request."""

    def watch_deadline(self) -> None:
        """Start the timer that ends the call, if it has a timeout and is still open."""

    def cancel(self) -> None:
        """Release the call: its client has given it up."""

    def finish(self, code: grpc.StatusCode, text: str = "") -> None:
        """End the call with a status."""

    def wrote(self) -> None:
        """All output of the call has been sent."""


class Method(NamedTuple):
    """One method of a servicer: its function, how to parse requests and serialize replies, and what it streams."""

    behavior: Callable[[Any, Any], Any]
    parse: Callable[[bytes], Any]
    serialize: Callable[[Any], bytes]
    takes_stream: bool
    gives_stream: bool
    call: "type[Call]"
    take: Take | None = None

    @classmethod
    def of(cls, handler: "grpc.RpcMethodHandler[Any, Any]", path: str, sizes: Sizes) -> "Method":
        """Convert what generated code registers."""
        kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
        behavior = next(behavior for behavior in kinds if behavior)
        parse = sizes.parse(path, handler.request_deserializer or bytes)
        serialize = handler.response_serializer or bytes
        return cls(behavior, parse, serialize, handler.request_streaming, handler.response_streaming, Call)

    def taken_together(self, take: Take) -> "Method":
        """The same method, with its small requests handled together."""
        return self._replace(take=take, call=_ToldCall if take.done else Call)


class Requests:
    """The messages of a call, in their order. Those that are not taken keep their room in the window, and so stop the sender."""

    def __init__(self, call: "Call") -> None:
        self._call = call
        self._waiting: deque[bytes] = deque()
        self._ended = False
        self._changed = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[Any]:
        """Return itself."""
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - whatever the method takes
        """Wait for the next message. Raises StopAsyncIteration at the end, or what the parser raises."""
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._take()

    def arrived(self, at_most: int) -> list[Any]:
        """Return at most `at_most` messages that have arrived already, up to one that cannot be parsed. Does not wait."""
        found: list[Any] = []
        with suppress(Exception):  # the next `__anext__` raises it
            while self._waiting and len(found) < at_most:
                found.append(self._take())
        return found

    def put(self, message: bytes) -> None:
        """Add a message that was received."""
        self._waiting.append(message)
        self._changed.set()

    def end(self) -> None:
        """Note that the client will send no more."""
        self._ended = True
        self._changed.set()

    def drop(self) -> None:
        """Forget what has arrived: the call is over, and what still refers to this until a collection would keep megabytes."""
        self._waiting.clear()

    def _take(self) -> Any:  # noqa: ANN401
        request = self._call.method.parse(self._waiting[0])
        self._call.consumed(self._waiting.popleft())
        return request


class Call:
    """One call, from its headers to its status. It is the servicer's context."""

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
        """Take a message that was received."""
        if self._requests:
            self._requests.put(message)
        elif self._message is None:
            self._message = message
        else:
            self.finish(grpc.StatusCode.UNIMPLEMENTED, "the method takes one message; more were sent")

    def end(self) -> None:
        """Handle the end of the request."""
        if self._requests:
            self._requests.end()
        elif self._message is None:
            self.finish(grpc.StatusCode.UNIMPLEMENTED, "the method takes one message; none was sent")
        elif self.method.take and len(self._message) <= self.method.take.max_bytes:
            self._offer(self.method.take, self._message)
        else:
            self._peer.start_soon(self)

    def start(self) -> bool:
        """Call the method, or refuse the request; False if the call has ended already, which takes no time."""
        if not self.is_open:
            return False
        behavior, request = self.method.behavior, self._requests or self._offered
        if self._offered is not None and self.method.take:
            behavior = self.method.take.call_left
        elif request is None and (request := self._parse(self._message or b"")) is None:
            return True  # parsing takes time, also where it fails: others have their turn
        self._task = asyncio.get_running_loop().create_task(self._run(behavior, request), name=self._stream.head.path)
        self._peer.begun(self._task)
        return True

    def watch_deadline(self) -> None:
        """Start the timer that ends the call with DEADLINE_EXCEEDED, if it has a timeout and is still open."""
        timeout_s = self._stream.head.timeout_s
        if timeout_s is not None and self._deadline is None and self.is_open:
            self._deadline = asyncio.get_running_loop().call_later(timeout_s, self._expire)

    def cancel(self) -> None:
        """Cancel the handler and release the call."""
        if self._task:
            self._task.cancel()
        self._over()

    def finish(self, code: grpc.StatusCode, text: str = "", metadata: Iterable[tuple[str, str]] = ()) -> None:
        """End the call with a status, and cancel its handler."""
        self._peer.connection.finish(self._stream, code.value[0], text, metadata)
        self._peer.flush_soon()
        self.cancel()

    def consumed(self, message: bytes) -> None:
        """Let the client send more: the servicer has taken a message."""
        self._peer.connection.consumed(self._stream, message)
        self._peer.flush_soon()

    def wrote(self) -> None:
        """Wake up `write`: the output of the call has been sent."""
        if self._writable:
            self._writable.set()

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> None:
        """End the call with a status, as grpc.aio's context does. Raises grpc.aio.AbortError."""
        self._peer.connection.finish(self._stream, code.value[0], details, trailing_metadata)
        raise grpc.aio.AbortError

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the status that is sent if the method raises. Generated code uses it for methods that a servicer lacks."""
        self._code = code

    def set_details(self, details: str) -> None:
        """Do nothing: the text of what the method raises is sent."""

    def peer(self) -> str:
        """Return the client's address, in the form of grpc.aio."""
        return self._peer.name

    def peer_uid(self) -> int | None:
        """Return the user id of the client's process, which the kernel tells for a Unix socket; else None. Not in grpc.aio."""
        return self._peer.uid

    def invocation_metadata(self) -> Metadata:
        """Return the request's headers: the metadata, and unlike grpc.aio also those of HTTP, such as content-type."""
        return self._stream.head.metadata

    def auth_context(self) -> dict[str, Any]:
        """Return the names in the client's certificate, as grpc.aio does; an empty dict without one."""
        return self._peer.certificate

    @property
    def is_read(self) -> bool:
        """False while too many answers wait for the client to read them: make no large reply then. Not in grpc.aio."""
        return self._peer.may_start

    async def until_read(self) -> None:
        """Wait until `is_read`. Not in grpc.aio."""
        await self._peer.until_read()

    async def write(self, reply: Any) -> None:  # noqa: ANN401 - whatever the method answers
        """Send a reply; return when there is room for another."""
        self._peer.connection.send_message(self._stream, self.method.serialize(reply))
        self._peer.flush_soon()
        await self._peer.can_write.wait()
        while self.is_open and self._stream.out and len(self._stream.out) > OUT_MAX:
            self._writable = self._writable or asyncio.Event()
            self._writable.clear()
            await self._writable.wait()

    @property
    def is_open(self) -> bool:
        """False once the call has ended, by either side."""
        return self._stream.id in self._peer.connection.streams

    def _offer(self, take: Take, message: bytes) -> None:
        self._offered = self._parse(message)
        if self._offered is not None:
            take.offer((self._offered,), self._taken)

    def _parse(self, message: bytes) -> Any:  # noqa: ANN401 - whatever the method takes
        """The request; None when it cannot be parsed: then the call ends as grpcio's does, whatever the parser raises."""
        try:
            return self.method.parse(message)
        except AdapterError as error:
            self.finish(status_of(error), str(error))
            return None
        except Exception as error:  # noqa: BLE001
            self.finish(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")
            return None

    def _taken(self, count: int, error: AdapterError | None) -> None:
        if error:
            self.finish(status_of(error), str(error), trailing_of(error))
        elif count:
            self._peer.connection.answer(self._stream, b"")
            self._peer.flush_soon()  # a write is usually scheduled already, but it may have run before this
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
        except AdapterError as error:
            self._peer.connection.finish(self._stream, status_of(error).value[0], str(error), trailing_of(error))
        except Exception as error:  # noqa: BLE001 - servicers log theirs
            self._peer.connection.finish(self._stream, self._code.value[0], f"Unexpected {type(error)}: {error}")
        finally:
            self._peer.flush_soon()
            if not self.is_open:
                self._over()

    def _over(self) -> None:
        """Release the call. Breaks its reference cycles, which would not be collected (see `runtime.process`)."""
        if self._requests:
            self._requests.drop()
        self._stream.call = self._message = self._requests = self._offered = self._task = None
        if self._deadline:
            self._deadline.cancel()

    def _expire(self) -> None:
        if self._stream.out:
            self._peer.connection.cut_off(self._stream, Code.CANCEL)  # the client does not read the answers that there are
        self.finish(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


class _ToldCall(Call):
    """A call of a method whose `Take.done` is told what is done. A class of its own: other calls do not even look for it."""

    __slots__ = ()

    def _taken(self, count: int, error: AdapterError | None) -> None:
        request, take = self._offered, self.method.take
        super()._taken(count, error)
        if take and take.done and count and not error and request is not None:  # it is None if the client has given up the call
            take.done(request, self._stream.head.metadata)
