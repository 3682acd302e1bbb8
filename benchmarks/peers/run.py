"""Runs every load on every peer, one after the other."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from rich.progress import Progress

from benchmarks.peers import usage
from benchmarks.peers.catalog import PEERS, Shape, shapes
from benchmarks.peers.load import Offer
from benchmarks.peers.peer import Peer
from benchmarks.peers.rows import Row, lacks, result_of
from benchmarks.report import Result
from benchmarks.scale import Scale

ROOT = Path(__file__).parent.parent.parent  # the working directory for `python -m benchmarks`


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure all peers that are installed; the others are named."""
    here, absent = _installed()
    task = progress.add_task("peers", total=len(here) * len(shapes(scale)))
    rows: list[Row] = []
    for key, peer in here.items():
        progress.update(task, description=f"peers: {peer.facts.name}")
        try:
            rows += await compare(key, peer, scale, directory / key, lambda: progress.advance(task))
        except RuntimeError as error:  # the others can still be measured; without the adapter there is no comparison
            if peer.facts.ours:
                raise
            progress.console.print(f"{peer.facts.name}: {error}", style="red", markup=False)
            absent[peer.facts.name] = f"failed: {str(error).splitlines()[0]}"
    return result_of(rows, shapes(scale), absent)


async def compare(key: str, peer: Peer, scale: Scale, directory: Path, advance: Callable[[], None]) -> list[Row]:
    """Start a peer with its data in `directory`, measure it under each load, and end it. `advance` is called after each load."""
    rows = []
    with _running(peer, directory) as address:
        first, *_ = shapes(scale)
        await _measure(peer, Offer(key, address, "warm-up", first.name, peer.facts.warm_ups * scale.warm_up_s, 0.0), first)
        for shape in shapes(scale):
            rows.append(await _measure(peer, Offer(key, address, shape.name, shape.name, scale.fast_s, scale.warm_up_s), shape))
            advance()
    return rows


def _installed() -> tuple[dict[str, Peer], dict[str, str]]:
    """The peers that can run by key, and for the others by name what they lack."""
    here: dict[str, Peer] = {}
    absent: dict[str, str] = {}
    for key, factory in PEERS.items():
        peer = factory()
        if lacking := peer.missing():
            absent[peer.facts.name] = lacks(lacking)
        else:
            here[key] = peer
    return here, absent


@contextlib.contextmanager
def _running(peer: Peer, directory: Path) -> Iterator[str]:
    directory.mkdir(parents=True)
    directory.parent.chmod(0o711)  # a server that is not root's has to reach its own data below
    try:
        yield peer.start(directory)
    finally:
        peer.stop()


async def _measure(peer: Peer, asked: Offer, shape: Shape) -> Row:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.peers.load", json.dumps(asdict(asked)), stdin=PIPE, stdout=PIPE, cwd=ROOT
    )
    assert process.stdin
    assert process.stdout
    edges: list[usage.Used] = []
    peak = 0
    try:
        while len(edges) < 2 and await process.stdout.readline():
            edges.append(usage.used(peer.pids, process.pid))
            if len(edges) == 1:
                usage.reset_peak(peer.pids)
            else:
                peak = usage.peak_bytes(peer.pids)
                process.stdin.write(b"seen\n")
        found = json.loads(await process.stdout.read() or "{}")
        if await process.wait():
            raise RuntimeError(f"the load on {peer.facts.name} failed; its log ends with:\n{peer.log}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Row(
        peer=peer.facts,
        shape=shape.name,
        commits_per_s=found["commits_per_s"],
        p50_ms=found["p50_s"] * 1e3,
        p99_ms=found["p99_s"] * 1e3,
        cpu=edges[1].since(edges[0]).per_million(found["commits_per_s"]),
        peak_mib=peak / 2**20,
    )
