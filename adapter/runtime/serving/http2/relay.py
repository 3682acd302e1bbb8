"""Relays calls of any method to other gRPC servers, byte by byte: messages are neither cut nor parsed, only passed on.

What one side sends keeps its room in that side's window until the other side has taken it: a slow reader stops the sender, and a
call holds at most a window in each direction. A call goes on to the next node only while no node can have begun it.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import cast

import grpc

from adapter.runtime.serving.http2 import frames
from adapter.runtime.serving.http2.call import Peer
from adapter.runtime.serving.http2.client import Http2Client, Node
from adapter.runtime.serving.http2.frames import Code
from adapter.runtime.serving.http2.headers import Answer, Metadata, encoded
from adapter.runtime.serving.http2.streams import Stream

CALLS_MAX = 1_000  # that are relayed at a time, of all connections: each may hold two windows of 64 KiB
KEPT_MAX = frames.WINDOW  # bytes of a request that are kept, to send them to another node
TIMEOUT = "grpc-timeout"

# Clients of RobustMQ tell by words of the text whether to call the next address; tonic says these of the code UNAVAILABLE.
UNAVAILABLE = "The service is currently unavailable"

Seen = Callable[[str, str, float], None]


class Relay:
    """Where calls are relayed to: the first of `nodes` that can be reached. `seen` gets each one's path, code and seconds.

    `limit_s` tells for how long a call of a path may last, whatever its client allows; None: as long as it likes. `admit` tells
    why no call may begin now; empty: it may.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        seen: Seen = lambda *_: None,
        limit_s: Callable[[str], float | None] = lambda _: None,
        admit: Callable[[], str] = lambda: "",
    ) -> None:
        self.nodes = list(nodes)
        self.seen = seen
        self.limit_s = limit_s
        self.admit = admit
        self.open = 0

    def refusal(self, peer: Peer) -> str:
        """Why no call may begin now; empty if it may."""
        if self.open > CALLS_MAX:
            return "too many calls are relayed already"
        return self.admit() or ("" if peer.may_start else "too many answers wait to be read")

    def replace(self, nodes: Sequence[Node]) -> None:
        """Relay to these from now on. Calls that are under way at the former ones end there."""
        former, self.nodes = self.nodes, list(nodes)
        for node in former:
            node.retire()

    def close(self) -> None:
        """End all connections to the nodes."""
        for node in self.nodes:
            node.close()

    def __call__(self, peer: Peer, stream: Stream) -> "RelayedCall":
        """Begin to relay a call."""
        return RelayedCall(self, peer, stream)


class RelayedCall:
    """One call: a stream of its client, and one of the node that has it. Stands where a `Call` does, without a task."""

    __slots__ = (
        "_answering", "_began", "_client", "_deadline", "_ended", "_kept", "_left", "_loop", "_node", "_out", "_owed_down",
        "_owed_up", "_passed", "_peer", "_problem", "_relay", "_stream", "_up",
    )  # fmt: skip

    def __init__(self, relay: Relay, peer: Peer, stream: Stream) -> None:
        self._loop = asyncio.get_running_loop()
        self._relay = relay
        self._peer = peer
        self._stream: Stream | None = stream
        self._began = self._loop.time()
        self._deadline: asyncio.TimerHandle | None = None
        self._kept: bytearray | None = bytearray()  # what came of the request; None once it cannot be sent again
        self._ended = False  # the request
        self._answering = False
        self._owed_up = 0  # bytes of the client that wait to be sent on
        self._passed = 0  # bytes of the client that were sent on
        self._owed_down = 0  # bytes of the node, likewise
        self._client: Http2Client | None = None
        self._up: Stream | None = None
        self._node: Node | None = None
        self._left = list(relay.nodes)
        self._problem = ""
        relay.open += 1
        if reason := relay.refusal(peer):
            self._refuse(reason)
        else:
            self._next_node()

    # From the client.

    def put(self, data: bytes) -> None:
        """Pass bytes of the request on."""
        if self._kept is not None:
            self._kept += data
            if len(self._kept) > KEPT_MAX:  # no client may send as much before any was sent on
                self._kept = None
        if self._client and self._up:
            self._send(data)

    def end(self) -> None:
        """Pass the end of the request on."""
        self._ended = True
        if self._client and self._up:
            self._client.connection.end_request(self._up)
            self._client.flush_soon()

    def wrote(self) -> None:
        """Take more of the answer: what there was of it has been sent."""
        stream, client, up = self._stream, self._client, self._up
        if stream and client and up and self._owed_down and not stream.out and self._peer.can_write.is_set():
            client.connection.passed_on(up, self._owed_down)
            client.flush_soon()
            self._owed_down = 0

    def watch_deadline(self) -> None:
        """Start the timer that ends the call, if it has a timeout or a limit."""
        stream = self._stream
        if stream is None or self._deadline:
            return
        given, limit = stream.head.timeout_s, self._relay.limit_s(stream.head.path)
        timeout_s = min((each for each in (given, limit) if each is not None), default=None)
        if timeout_s is not None:
            self._deadline = self._loop.call_later(timeout_s, self._expire)

    def cancel(self) -> None:
        """Cancel the call at the node: its client has given it up."""
        self._over("CANCELLED")

    def finish(self, code: grpc.StatusCode, text: str = "", metadata: Metadata = ()) -> None:
        """End the call with a status of ours."""
        if stream := self._stream:
            self._peer.connection.finish(stream, code.value[0], text, metadata)
            self._peer.flush_soon()
            self._over(code.name)

    # From the node.

    def answered(self, answer: Answer) -> None:
        """Pass the headers on."""
        if self._stream:
            self._kept, self._answering = None, True
            self._peer.connection.begin(self._stream, answer.block)
            self._peer.flush_soon()

    def got(self, data: bytes) -> None:
        """Pass bytes of the answer on."""
        if self._stream:
            self._peer.connection.send_bytes(self._stream, data)
            self._peer.flush_soon()
            self._owed_down += len(data)
            self.wrote()

    def ended(self, answer: Answer | None) -> None:
        """Pass the end on."""
        self._up = None
        if stream := self._stream:
            if answer:
                self._peer.connection.end(stream, answer.block)
                self._peer.flush_soon()
                self._over(_code_name(answer.status))
            else:
                self.finish(grpc.StatusCode.INTERNAL, "the node ended the answer without a status")

    def broke_off(self, code: int) -> None:
        """Go on to the next node if this one has not begun the call; else reset it as the node did."""
        self._up = None
        if code == Code.REFUSED_STREAM and self._kept is not None and not self._answering:
            self._problem = f"{self._node.name if self._node else ''} has refused the call"
            self._next_node()
        elif stream := self._stream:
            self._peer.connection.cut_off(stream, code or Code.INTERNAL_ERROR)
            self._peer.flush_soon()
            self._over("RESET")

    def lost(self, reason: str) -> None:
        """End the call, which the node may have done: nobody may repeat it but its client."""
        self._up = None
        name = self._node.name if self._node else ""
        self.finish(grpc.StatusCode.UNKNOWN, f"transport error: the connection with {name} was lost: {reason}")

    def sent(self) -> None:
        """Take more of the request: what there was of it has been sent on."""
        client, up, stream = self._client, self._up, self._stream
        if client and up and stream and self._owed_up > 0 and not up.out and client.can_write:
            self._peer.connection.passed_on(stream, self._owed_up)
            self._peer.flush_soon()
            self._passed += self._owed_up
            self._owed_up = 0

    def _send(self, data: bytes) -> None:
        client, up = cast("Http2Client", self._client), cast("Stream", self._up)
        client.connection.send_bytes(up, data)
        client.flush_soon()
        self._owed_up += len(data)
        self.sent()

    def _next_node(self) -> None:
        """Wait for a connection with the next node."""
        while self._left:
            node = self._left.pop(0)
            if node.rests:
                self._problem = self._problem or f"{node.name}: {node.problem}"
                continue
            self._node = node
            node.when_ready(self._ready)
            return
        self._refuse(self._problem or "no node is known")

    def _ready(self, client: Http2Client | None) -> None:
        stream, node = self._stream, self._node
        if stream is None or node is None:
            return
        if client is None:
            self._problem = f"{node.name}: {node.problem}"
            self._next_node()
            return
        self._client = client
        self._up = up = client.begin(self, _block_of(stream, node))
        if self._kept:
            self._owed_up = -self._passed  # of what is sent again
            self._send(bytes(self._kept))
        if self._ended:
            client.connection.end_request(up)

    def _refuse(self, reason: str) -> None:
        self.finish(grpc.StatusCode.UNAVAILABLE, f"{UNAVAILABLE}: tcp connect error: {reason}")

    def _expire(self) -> None:
        stream = self._stream
        if stream and stream.out:
            self._peer.connection.cut_off(stream, Code.CANCEL)  # the client does not read the answer that there is
        self.finish(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _over(self, code: str) -> None:
        """Release the call, once."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        stream.call = None
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None
        if self._client and self._up:
            self._client.give_up(self._up)
        elif self._node and not self._client:
            self._node.forget(self._ready)
        self._up = self._client = self._kept = None
        self._relay.open -= 1
        self._relay.seen(stream.head.path, code, self._loop.time() - self._began)


def _block_of(stream: Stream, node: Node) -> bytes:
    """The headers of a request, for a node."""
    head = stream.head
    given = next((value for name, value in head.metadata if name == TIMEOUT), None)
    block = _encoded_head(node.scheme, head.path, node.name, tuple(each for each in head.metadata if each[0] != TIMEOUT))
    return block + encoded([(TIMEOUT, given)]) if given is not None else block


@lru_cache(maxsize=256)
def _encoded_head(scheme: str, path: str, authority: str, metadata: Metadata) -> bytes:
    pseudo = ((":method", "POST"), (":scheme", scheme), (":path", path), (":authority", authority))
    return encoded((*pseudo, *metadata))


def _code_name(status: int | None) -> str:
    return next((code.name for code in grpc.StatusCode if code.value[0] == status), "UNKNOWN")
