"""Calls that the front of an adapter relays, beside a pass-through on grpcio's aio server; and commits while it relays.

    python -m benchmarks.robustmq_front node|grpcio|load ...

are its processes: a node that answers each call with its request, on the built-in server, so that it is no bottleneck; the
pass-through on grpcio; and the load, on the built-in client: unary calls over one connection.
"""

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import uvloop
from rich.progress import Progress

from adapter.runtime.serving.http2.call import Peer
from adapter.runtime.serving.http2.client import Http2Client, Node
from adapter.runtime.serving.http2.headers import OK, START, Answer, encoded
from adapter.runtime.serving.http2.relay import Relay
from adapter.runtime.serving.http2.server import Http2Server
from adapter.runtime.serving.http2.streams import Stream
from adapter.testing.processes import adapter_process, ended, free_port
from benchmarks.load import Load, percentile
from benchmarks.machine import cpu_s
from benchmarks.processes import ROOT, found_by, loading
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale
from tests.dialect import robust_meta

TITLE = "calls that a RobustMQ broker's front relays"
CPU_MS, RATIO, P99_RATIO = 0.3, 4.0, 1.2
METHOD = "/bench.Any/Echo"
BODY = (120).to_bytes(5, "big") + bytes(120)  # a message of 120 bytes
IN_FLIGHT = 64
ROUNDS, ROUNDS_SHORT = 3, 1
SECONDS, SECONDS_SHORT = 5.0, 0.5
COMMITS_PER_S = 500
RELAYED_PER_S = 5_000
TICK_S = 0.005

COLUMNS = ("round: pass-through", "calls/s", "CPU ms a call", "p50 ms", "p99 ms")
COMMIT_COLUMNS = ("round: commits", "relayed calls/s", "p50 ms", "p99 ms", "p99, ratio")


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure both in turns, then commits with and without relayed calls, in turns."""
    result = Result("robustmq_front", TITLE)
    rounds, seconds = (ROUNDS_SHORT, SECONDS_SHORT) if scale.short else (ROUNDS, SECONDS)
    task = progress.add_task("relayed calls", total=4 * rounds)
    ports = {name: free_port() for name in ("node", "front", "grpcio")}
    with robust_meta() as meta:
        node = f"127.0.0.1:{ports['node']}"
        adapter = adapter_process(directory, node, extra=f"[robustmq]\nlisten = '127.0.0.1:{ports['front']}'\n")
        async with _process("node", ports["node"], meta.address), _process("grpcio", ports["grpcio"], node) as grpcio:
            with ended(adapter):
                await asyncio.to_thread(adapter.start)
                rows: list[list[Cell]] = []
                found: dict[str, list[dict[str, float]]] = {"the front": [], "grpcio's aio server": []}
                for turn in range(1, rounds + 1):
                    for name, port, pid in (
                        ("the front", ports["front"], adapter.pid),
                        ("grpcio's aio server", ports["grpcio"], grpcio.pid),
                    ):
                        got = await _relayed(port, seconds, pid)
                        found[name].append(got)
                        rows.append([f"{turn}: {name}", got["per_s"], got["cpu_ms"], got["p50_ms"], got["p99_ms"]])
                        progress.advance(task)
                result.tables.append(Table("Unary calls, 64 in flight over one connection", COLUMNS, rows))
                front, other = (max(got["per_s"] for got in each) for each in found.values())
                least = min(got["cpu_ms"] for got in found["the front"])
                commits, ratio = await _commits(adapter.tcp_address, ports["front"], rounds, seconds, directory)
                result.tables.append(commits)
                progress.advance(task, 2 * rounds)
    result.bars += [
        Bar("CPU ms of a relayed call", least, CPU_MS),
        Bar("calls/s, as a multiple of a pass-through on grpcio's aio server", front / other, RATIO, least=True),
        Bar("p99 of commits beside relayed calls, as a multiple of that without", ratio, P99_RATIO),
    ]
    result.notes.append(
        f"{COMMITS_PER_S} commits/s; {RELAYED_PER_S:,} relayed calls/s are asked for, the table shows how many this machine gave."
    )
    return result


async def _relayed(port: int, seconds: float, pid: int, rate: int = 0) -> dict[str, float]:
    """Load one side; the CPU time is that of the process that relays."""
    async with _process("load", port, seconds, rate) as load:
        assert load.stdout
        began = cpu_s(pid)
        got: dict[str, float] = json.loads(await load.stdout.readline())
        return got | {"cpu_ms": (cpu_s(pid) - began) / got["calls"] * 1e3}


async def _commits(address: str, front: int, rounds: int, seconds: float, directory: Path) -> tuple[Table, float]:
    """The latency of commits without and with relayed calls, and the ratio of their p99, the best of the rounds."""
    rows: list[list[Cell]] = []
    ratios: list[float] = []
    for turn in range(1, rounds + 1):
        alone = 0.0
        for rate in (0, RELAYED_PER_S):
            samples = directory / f"samples-{turn}-{rate}"
            load = Load(address, f"g-{turn}-{rate}", seconds, COMMITS_PER_S, consumers=8, warm_up_s=0.5, samples=str(samples))
            async with loading(load) as process:
                assert process.stdout
                await process.stdout.readline()
                got = await _relayed(front, seconds, 1, rate) if rate else {"per_s": 0.0}
                await process.stdout.readline()
                found = await found_by(process)
            p50, p99 = found["p50_s"] * 1e3, found["p99_s"] * 1e3
            if rate:
                ratios.append(p99 / alone)
            alone = alone or p99
            name = "beside relayed calls" if rate else "alone"
            rows.append([f"{turn}: {name}", got["per_s"], p50, p99, p99 / alone])
    return Table("Commits", COMMIT_COLUMNS, rows), min(ratios)


@asynccontextmanager
async def _process(*arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """One of the processes here; a server says when it listens. Killed at the end."""
    command = [sys.executable, "-m", "benchmarks.robustmq_front", *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    assert process.stdout
    try:
        await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class _Echo:
    """A call that is answered with its request, without a task."""

    def __init__(self, peer: Peer, stream: Stream) -> None:
        self._peer, self._stream = peer, stream

    def put(self, message: bytes) -> None:
        connection = self._peer.connection
        connection.begin(self._stream, START)
        connection.send_bytes(self._stream, message)
        connection.passed_on(self._stream, len(message))

    def end(self) -> None:
        self._peer.connection.end(self._stream, OK)
        self._peer.flush_soon()

    def watch_deadline(self) -> None:
        pass

    def cancel(self) -> None:
        pass

    def finish(self, code: grpc.StatusCode, text: str = "") -> None:
        pass

    def wrote(self) -> None:
        pass


async def _serve_node(port: int, meta: str) -> None:
    """Answer calls of offsets as RobustMQ's imitation at `meta` does, and all others with their request."""
    relay = Relay([Node(meta)])

    class Either(Relay):
        def __call__(self, peer: Peer, stream: Stream) -> Any:  # noqa: ANN401 - a served call
            return relay(peer, stream) if "OffsetData" in stream.head.path else _Echo(peer, stream)

    server = Http2Server(relay=Either([]))
    await server.listen(socket.create_server(("127.0.0.1", port)))
    _say("listening")
    await asyncio.Event().wait()


async def _serve_grpcio(port: int, node: str) -> None:
    """Pass every unary call on, by grpcio's aio server and client."""
    channel = grpc.aio.insecure_channel(node)

    class Passing(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> Any:  # noqa: ANN401 - a handler
            call: Any = channel.unary_unary(details.method)

            async def forward(request: bytes, context: Any) -> Any:  # noqa: ANN401 - bytes, and a context
                return await call(request, timeout=context.time_remaining())

            return grpc.unary_unary_rpc_method_handler(forward)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Passing(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    _say("listening")
    await asyncio.Event().wait()


class _Lane:
    """Makes calls, one after the other, and notes how long each took; with a `pace` it makes one when it is told."""

    def __init__(self, client: Http2Client, block: bytes, took: list[float], until: float, *, again: bool) -> None:
        self._client, self._block, self._took, self._until, self._again = client, block, took, until, again
        self._began = 0.0
        self.calls()

    def calls(self) -> None:
        self._began = time.perf_counter()
        stream = self._client.begin(self, self._block)
        self._stream = stream
        self._client.connection.send_bytes(stream, BODY)
        self._client.connection.end_request(stream)

    def answered(self, answer: Answer) -> None:
        pass

    def got(self, data: bytes) -> None:
        self._client.connection.passed_on(self._stream, len(data))

    def ended(self, answer: Answer | None) -> None:
        if answer is None or answer.status:
            raise RuntimeError(f"a call ended with {answer}")
        now = time.perf_counter()
        self._took.append(now - self._began)
        if self._again and now < self._until:
            self.calls()

    def broke_off(self, code: int) -> None:
        raise RuntimeError(f"a call was reset: {code}")

    def lost(self, reason: str) -> None:
        raise RuntimeError(reason)

    def sent(self) -> None:
        pass


async def _load(port: int, seconds: float, rate: int) -> None:
    node = Node(f"127.0.0.1:{port}")
    ready: asyncio.Future[Http2Client | None] = asyncio.get_running_loop().create_future()
    node.when_ready(ready.set_result)
    client = await ready
    assert client
    head = [(":method", "POST"), (":scheme", "http"), (":path", METHOD), (":authority", "bench")]
    block = encoded([*head, ("te", "trailers"), ("content-type", "application/grpc")])
    took: list[float] = []
    _say("begin")
    began = time.perf_counter()
    until = began + seconds
    if rate:
        made = 0
        while (now := time.perf_counter()) < until:
            while made < (now - began) * rate and len(client.connection.streams) < 4 * IN_FLIGHT:
                _Lane(client, block, took, until, again=False)
                made += 1
            await asyncio.sleep(TICK_S)
    else:
        for _ in range(IN_FLIGHT):
            _Lane(client, block, took, until, again=True)
        await asyncio.sleep(seconds)
    while client.connection.streams:  # noqa: ASYNC110 - the calls have no tasks
        await asyncio.sleep(0.01)
    spent = time.perf_counter() - began
    p50, p99 = (percentile(took, share) * 1e3 for share in (0.5, 0.99))
    _say(json.dumps({"calls": len(took), "per_s": len(took) / spent, "p50_ms": p50, "p99_ms": p99}))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    what, port, *more = sys.argv[1:]
    serving: Any = {"node": _serve_node, "grpcio": _serve_grpcio}.get(what)
    uvloop.run(serving(int(port), *more) if serving else _load(int(port), float(more[0]), int(more[1])))
