"""Servers that take the adapter's calls and do nothing, which is what gRPC itself costs: raw bytes in, an empty reply out.

    python -m benchmarks.noop aio-uvloop [PORT]

Prints its port when it is up. With a port given it shares that port with others (SO_REUSEPORT).
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import uvloop

from benchmarks.machine import ROOT, cpu_s

UNARY = "/offsets.v1.OffsetStore/CommitOffsets"
STREAM = "/offsets.v1.OffsetStore/StreamCommits"
LIKE_THE_ADAPTER = "aio-uvloop"
TWO_PROCESSES = "aio-uvloop, two processes"
KINDS = ("aio", "aio-uvloop", "threads-4", "threads-16")


@dataclass(frozen=True)
class NoOp:
    """A running server: one process, or two on one port."""

    name: str
    address: str
    pids: Sequence[int]

    def cpu_s(self) -> float:
        """User and system seconds so far."""
        return sum(map(cpu_s, self.pids))


@contextlib.contextmanager
def running(name: str) -> Iterator[NoOp]:
    """One of KINDS, or TWO_PROCESSES."""
    kind, _, two = name.partition(",")
    with contextlib.ExitStack() as processes:
        first, port = processes.enter_context(_process(kind, "0"))
        pids = [first]
        if two:
            pids.append(processes.enter_context(_process(kind, port))[0])
        yield NoOp(name, f"127.0.0.1:{port}", pids)


@contextlib.contextmanager
def _process(kind: str, port: str) -> Iterator[tuple[int, str]]:
    command = [sys.executable, "-m", "benchmarks.noop", kind, port]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.kill()


class _Handler(grpc.GenericRpcHandler):
    """Both calls, without a serializer."""

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


OPTIONS = (("grpc.so_reuseport", 1), ("grpc.max_receive_message_length", -1))


async def _serve_later(port: str) -> None:
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers([_Handler(_answer_later, _echo_later)])
    print(server.add_insecure_port(f"127.0.0.1:{port}"), flush=False)
    await server.start()
    sys.stdout.flush()
    await server.wait_for_termination()


def _serve(port: str, workers: int) -> None:
    server = grpc.server(ThreadPoolExecutor(workers), handlers=[_Handler(_answer, _echo)], options=OPTIONS)
    print(server.add_insecure_port(f"127.0.0.1:{port}"), flush=False)
    server.start()
    sys.stdout.flush()
    server.wait_for_termination()


def main(kind: str, port: str = "0") -> None:
    """Serve until killed."""
    family, _, detail = kind.partition("-")
    if family == "threads":
        _serve(port, int(detail))
    elif detail:
        uvloop.run(_serve_later(port))
    else:
        asyncio.run(_serve_later(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
