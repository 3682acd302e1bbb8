"""No-op servers for the adapter's calls, to measure the cost of gRPC itself: raw bytes in, an empty reply out.

    python -m benchmarks.noop aio-uvloop [PORT [DIRECTORY]]

Prints its port when it serves. With PORT, it shares that port with other processes (SO_REUSEPORT). With DIRECTORY, it writes the
offset of each unary call to a store there, and also listens on the Unix socket `a.sock` there.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import uvloop

from adapter.model.codec import encode_plain, pack_names
from adapter.rpc import offsets_pb
from adapter.runtime.durable import rocks
from benchmarks.machine import ROOT, cpu_s

UNARY = "/offsets.v1.OffsetStore/CommitOffsets"
STREAM = "/offsets.v1.OffsetStore/StreamCommits"
LIKE_THE_ADAPTER = "aio-uvloop"
TWO_PROCESSES = "aio-uvloop, two processes"
KINDS = ("aio", "aio-uvloop", "threads-4", "threads-16")
SOCKET = "a.sock"


@dataclass(frozen=True)
class NoOp:
    """A running server: one process, or two that share a port."""

    name: str
    address: str
    pids: Sequence[int]
    unix: str = ""  # the Unix socket of a server that writes

    def cpu_s(self) -> float:
        """CPU seconds, user and system, so far."""
        return sum(map(cpu_s, self.pids))


@contextlib.contextmanager
def running(name: str) -> Iterator[NoOp]:
    """Start a server of one of KINDS, or TWO_PROCESSES."""
    kind, _, two = name.partition(",")
    with contextlib.ExitStack() as processes:
        first, port = processes.enter_context(_process(kind, "0"))
        pids = [first]
        if two:
            pids.append(processes.enter_context(_process(kind, port))[0])
        yield NoOp(name, f"127.0.0.1:{port}", pids)


@contextlib.contextmanager
def writing(kind: str, directory: Path) -> Iterator[NoOp]:
    """Start a server of one of KINDS that writes each offset to a store in `directory`."""
    directory.mkdir(parents=True)
    with _process(kind, "0", str(directory)) as (pid, port):
        yield NoOp(kind, f"127.0.0.1:{port}", [pid], f"unix:{directory / SOCKET}")


@contextlib.contextmanager
def _process(kind: str, *arguments: str) -> Iterator[tuple[int, str]]:
    command = [sys.executable, "-m", "benchmarks.noop", kind, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.kill()


class _Handler(grpc.GenericRpcHandler):
    """The handlers of the calls, without serializers."""

    def __init__(self, unary: Any, stream: Any) -> None:  # noqa: ANN401 - gRPC's behaviours
        self._methods: dict[str, Any] = {
            UNARY: grpc.unary_unary_rpc_method_handler(unary, None, None),
            STREAM: grpc.stream_stream_rpc_method_handler(stream, None, None),
        }

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # noqa: ANN401
        return self._methods.get(handler_call_details.method)


async def _answer_later(_request: bytes, _context: object) -> bytes:
    return b""


async def _echo_later(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
    async for _ in requests:
        yield b""


def _answer(_request: bytes, _context: object) -> bytes:
    return b""


def _echo(requests: Iterator[bytes], _context: object) -> Iterator[bytes]:
    return (b"" for _ in requests)


def _written_in(directory: Path) -> Callable[[bytes, object], bytes]:
    """A handler that writes one offset to a store with the adapter's options, and then answers.

    Without a WriteBatch, which is not needed for a single key and would be slower.
    """
    put, numbers = rocks.open_store(directory / "db", ("default",), "").db.put, count(1)

    def answer(request: bytes, _context: object) -> bytes:
        group = offsets_pb.CommitOffsetsRequest.FromString(request).groups[0]
        commit = group.shards[0]
        value = encode_plain(next(numbers), 1, commit.offset, time.time_ns() // 1_000_000)
        put(pack_names("default", group.group, commit.shard), value)
        return b""

    return answer


OPTIONS = (("grpc.so_reuseport", 1), ("grpc.max_receive_message_length", -1))


def _listen(server: grpc.aio.Server | grpc.Server, port: str, directory: str) -> None:
    print(server.add_insecure_port(f"127.0.0.1:{port}"), flush=False)
    if directory:
        server.add_insecure_port(f"unix:{directory}/{SOCKET}")


async def _serve_later(port: str, directory: str) -> None:
    server = grpc.aio.server(options=OPTIONS)
    answer: Any = _answer_later
    if directory:
        written = _written_in(Path(directory))

        async def answer(request: bytes, context: object) -> bytes:
            return written(request, context)

    server.add_generic_rpc_handlers([_Handler(answer, _echo_later)])
    _listen(server, port, directory)
    await server.start()
    sys.stdout.flush()
    await server.wait_for_termination()


def _serve(port: str, directory: str, workers: int) -> None:
    answer = _written_in(Path(directory)) if directory else _answer
    server = grpc.server(ThreadPoolExecutor(workers), handlers=[_Handler(answer, _echo)], options=OPTIONS)
    _listen(server, port, directory)
    server.start()
    sys.stdout.flush()
    server.wait_for_termination()


def main(kind: str, port: str = "0", directory: str = "") -> None:
    """Serve until killed."""
    family, _, detail = kind.partition("-")
    if family == "threads":
        _serve(port, directory, int(detail))
    elif detail:
        uvloop.run(_serve_later(port, directory))
    else:
        asyncio.run(_serve_later(port, directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
