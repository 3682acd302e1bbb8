"""What telemetry costs a commit: this tree with and without it, and another checkout without it, in turns.

    python -m benchmarks.telemetry /path/of/the/other/checkout [ROUNDS]

Rising lone commits, 64 in each read, through the built-in server and the store of a sidecar, without sockets: CPU time of its
thread, so that other load on the machine matters little. The collector is away. Needs the extra `otel`.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from hpack import Encoder

from adapter.client.client import OffsetClient
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.serving.http2.server import Http2Peer, Http2Server
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config, running_sidecar

ROOT = Path(__file__).parents[1]
UNARY = "/offsets.v1.OffsetStore/CommitOffsets"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
READS, IN_FLIGHT = 100, 64
NOWHERE = "http://127.0.0.1:1"


class Case(NamedTuple):
    """With a collector or not; the share of calls whose context is sampled, in percent (-1: calls without a context)."""

    to_collector: bool
    sampled: int


OTHER = {"before": Case(to_collector=False, sampled=-1), "before, contexts": Case(to_collector=False, sampled=100)}
OURS = {
    "off": Case(to_collector=False, sampled=-1),
    "on": Case(to_collector=True, sampled=-1),
    "off, contexts": Case(to_collector=False, sampled=100),
    "on, 0 % sampled": Case(to_collector=True, sampled=0),
    "on, 1 % sampled": Case(to_collector=True, sampled=1),
    "on, 100 % sampled": Case(to_collector=True, sampled=100),
}


class _Transport:
    """A connection to nobody."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def get_extra_info(self, _: str) -> None:
        return None

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, _: int) -> None:
        return None

    pause_reading = resume_reading = close = abort = lambda _: None


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _reads(sampled: int) -> list[bytes]:
    encoder = Encoder()
    headers = {":method": "POST", ":scheme": "http", ":path": UNARY, ":authority": "localhost", "te": "trailers"}
    headers["content-type"] = "application/grpc"
    found: list[bytes] = []
    for number in range(READS * IN_FLIGHT):
        if sampled >= 0:
            headers["traceparent"] = f"00-{number + 1:032x}-{number + 1:016x}-0{int(number % 100 < sampled)}"
        shards = [offsets_pb.ShardCommit(shard=f"queue-{number % IN_FLIGHT}", offset=2 + number // IN_FLIGHT)]
        message = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=shards)]).SerializeToString()
        stream = 1 + 2 * number
        body = b"\0" + len(message).to_bytes(4) + message
        found.append(_frame(1, 4, stream, encoder.encode(headers.items())) + _frame(0, 1, stream, body))
    return [b"".join(found[at : at + IN_FLIGHT]) for at in range(0, len(found), IN_FLIGHT)]


async def _measure(case: Case) -> float:
    """The CPU microseconds of a commit."""
    reads = _reads(case.sampled)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        sections: dict[str, Any] = {"telemetry": {"endpoint": NOWHERE}} if case.to_collector else {}
        async with running_sidecar(adapter_config(directory, **sections), FakeMeta()) as sidecar:
            async with OffsetClient.connect(f"unix:{directory / 'a.sock'}") as client:
                await client.commit("g", {f"queue-{number}": 1 for number in range(IN_FLIGHT)})
            server = Http2Server()
            offsets_grpc.add_OffsetStoreServicer_to_server(sidecar.offsets, server)  # type: ignore[arg-type]
            server.take_together({UNARY: sidecar.offsets.take})
            peer = Http2Peer(server, "bench")
            peer.connection_made(_Transport())  # type: ignore[arg-type]
            peer.handle(PREFACE + _frame(4, 0, 0, b""))
            began = time.thread_time()
            for read in reads:
                peer.handle(read)
                while peer.connection.streams:  # noqa: ASYNC110 - the server answers in the next iterations
                    await asyncio.sleep(0)
            return (time.thread_time() - began) / (READS * IN_FLIGHT) * 1e6


async def _measure_all(cases: dict[str, Case]) -> dict[str, float]:
    return {name: await _measure(case) for name, case in cases.items()}


def _of(tree: Path, cases: str) -> dict[str, float]:
    """The measurements of a tree, by a process of its own."""
    command = [sys.executable, "-P", __file__, "--measure", cases]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main(other: Path, rounds: int) -> None:
    """Measure and print."""
    found: list[dict[str, float]] = []
    for number in range(rounds):
        turns = [(other, "other"), (ROOT, "ours")]
        row: dict[str, float] = {}
        for tree, cases in turns if number % 2 else reversed(turns):
            row |= _of(tree, cases)
        found.append(row)
        print({name: round(us, 1) for name, us in row.items()}, flush=True)
    for name, case in (OTHER | OURS).items():
        base = "before" if case.sampled < 0 else "before, contexts"
        ratio = statistics.median(row[name] / row[base] for row in found)
        print(f"{name:20} {statistics.median(row[name] for row in found):8.2f} us of CPU a commit, ratio {ratio:.3f}")


if __name__ == "__main__":
    if sys.argv[1] == "--measure":
        print("\n" + json.dumps(asyncio.run(_measure_all(OTHER if sys.argv[2] == "other" else OURS))))
    else:
        main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
