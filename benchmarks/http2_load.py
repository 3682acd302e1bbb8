"""Lone commits that rise, as bytes that are ready before the clock starts: h2load sends the same offset again and again.

    python -m benchmarks.http2_load '{"address": "127.0.0.1:9520", "commits": 20000, "connections": 64, "in_flight": 1}'

64 keys in turn; each answer lets the next one go. Speaks gRPC, or with `redis` HSETs. Prints one line of JSON.
"""

import json
import selectors
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, repeat

from hpack import Encoder

from adapter.rpc import offsets_pb
from benchmarks import h2load

UNARY = "/offsets.v1.OffsetStore/CommitOffsets"

KEYS = 64
GROUP = "rising"
TIMEOUT_S = 60.0

# RFC 9113
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
HEADER_BYTES = 9
WIDE = 2**30  # what we let the server send at once: no update is needed later


@dataclass(frozen=True)
class Lone:
    """So many commits whose offsets begin with `first`. `in_flight` are those of each connection."""

    address: str
    commits: int
    connections: int = 1
    in_flight: int = 64
    first: int = 1
    redis: bool = False


Rising = Iterable[tuple[str, int]]  # shard and offset of each


def rising(lone: Lone, connection: int = 0) -> Rising:
    """Those of one connection."""
    numbers = range(connection, lone.commits, lone.connections)
    return ((f"queue-{number % KEYS}", lone.first + number // KEYS) for number in numbers)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def opening() -> bytes:
    """What a client says first."""
    return PREFACE + frame(SETTINGS, 0, 0, b"") + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WIDE))


def calls(commits: Rising) -> list[bytes]:
    """A call for each commit, on one connection: from the second one on the whole header block is indexed, as by most clients."""
    encoder = Encoder()
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": UNARY,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "bench",
    }
    ready = []
    for number, (shard, offset) in enumerate(commits):
        group = offsets_pb.GroupCommits(group=GROUP, shards=[offsets_pb.ShardCommit(shard=shard, offset=offset)])
        message = offsets_pb.CommitOffsetsRequest(groups=[group]).SerializeToString()
        stream = 1 + 2 * number
        block = frame(HEADERS, END_HEADERS, stream, encoder.encode(headers.items()))
        ready.append(block + frame(DATA, END_STREAM, stream, h2load.frame(message)))
    return ready


def hsets(commits: Rising) -> list[bytes]:
    """The same for Redis."""
    words = ((b"HSET", GROUP.encode(), shard.encode(), b"%d" % offset) for shard, offset in commits)
    return [b"*4\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in four) for four in words]


class GrpcAnswers:
    """Counts answers in what a server sends, and acknowledges what has to be. Raises RuntimeError when it ends a call early."""

    def __init__(self, reply: Callable[[bytes], None]) -> None:
        self._reply = reply
        self._rest = b""

    def count(self, data: bytes) -> int:
        """How many calls end in these bytes."""
        data = self._rest + data
        ended = at = 0
        while at + HEADER_BYTES <= len(data):
            end = at + HEADER_BYTES + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            kind, flags = data[at + 3], data[at + 4]
            if kind == HEADERS:
                ended += flags & END_STREAM
            elif kind in {RST_STREAM, GOAWAY}:
                raise RuntimeError(f"the server ended a call with a frame of type {kind}: {data[at:end]!r}")
            elif kind in {SETTINGS, PING} and not flags & ACK:
                self._reply(frame(kind, ACK, 0, data[at + HEADER_BYTES : end] if kind == PING else b""))
            at = end
        self._rest = data[at:]
        return ended


def redis_answers(data: bytes) -> int:
    """How many HSETs are answered in these bytes; half an answer has no line end."""
    if b"-" in data:
        raise RuntimeError(f"Redis refused: {data!r}")
    return data.count(b"\n")


def connected(address: str) -> socket.socket:
    """A connection to a port or a Unix socket."""
    host, _, port = address.rpartition(":")
    if host == "unix":
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(TIMEOUT_S)
        made.connect(port)
        return made
    made = socket.create_connection((host, int(port)), TIMEOUT_S)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class Connection:
    """Sends what is ready, so many at a time. `latencies_s` of answers that are in order, as all these servers' are."""

    def __init__(self, lone: Lone, number: int) -> None:
        self._ready = iter((hsets if lone.redis else calls)(rising(lone, number)))
        self.socket = connected(lone.address)
        self._count = redis_answers if lone.redis else GrpcAnswers(self.socket.sendall).count
        if not lone.redis:
            self.socket.sendall(opening())
        self._sent: deque[float] = deque()
        self.latencies_s: list[float] = []

    def send(self, room: int) -> None:
        """Send the next ones."""
        if data := b"".join(islice(self._ready, room)):
            self._sent.extend(repeat(time.perf_counter(), room))
            self.socket.sendall(data)

    def receive(self) -> None:
        """Take answers, and send as many again. Raises RuntimeError when the server closes."""
        data = self.socket.recv(2**18)
        if not data:
            raise RuntimeError(f"the server closed the connection after {len(self.latencies_s)} answers")
        if answered := self._count(data):
            now, pop = time.perf_counter(), self._sent.popleft
            self.latencies_s += [now - pop() for _ in range(answered)]
            self.send(answered)


def send(lone: Lone, connections: Sequence[Connection]) -> float:
    """Send all; returns the seconds until the last answer."""
    started = time.perf_counter()
    for connection in connections:
        connection.send(lone.in_flight)
    if len(connections) == 1:  # a selector would only add to it
        only = connections[0]
        while len(only.latencies_s) < lone.commits:
            only.receive()
        return time.perf_counter() - started
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection.receive)
        while sum(len(connection.latencies_s) for connection in connections) < lone.commits:
            for key, _ in selector.select(TIMEOUT_S):
                key.data()
    return time.perf_counter() - started


def main(lone: Lone) -> dict[str, float]:
    """Commits per second, latencies in ms."""
    connections = [Connection(lone, number) for number in range(min(lone.connections, lone.commits))]
    took = send(lone, connections)
    latencies = sorted(latency for connection in connections for latency in connection.latencies_s)
    for connection in connections:
        connection.socket.close()
    p50, p99 = (latencies[len(latencies) * percent // 100] * 1e3 for percent in (50, 99))
    return {"per_s": lone.commits / took, "p50_ms": p50, "p99_ms": p99}


if __name__ == "__main__":
    print(json.dumps(main(Lone(**json.loads(sys.argv[1])))))
