"""What telemetry costs a commit, in one run and in turns: this tree with and without it, and another checkout without it.

    python -m benchmarks.telemetry /path/of/the/other/checkout [ROUNDS]

Rising lone commits over the built-in server. Prints the CPU time of the adapter for a commit, and its ratio to that of the other
checkout with the same load. The collector is away: what is sent there costs most. Needs the extra `otel`.
"""

import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from adapter.testing.processes import free_port
from benchmarks.against import ROOT, Tree, cpu_s, ready

COMMITS = 60_000


class Case(NamedTuple):
    """A tree, with a collector or not, and calls with or without a context."""

    name: str
    tree: Tree
    to_collector: bool
    traced: bool
    sampled_percent: int


async def measure(case: Case) -> float:
    """The CPU microseconds of a commit."""
    port, meta_port = free_port(), free_port()
    tree = case.tree
    with tempfile.TemporaryDirectory() as name, tree.process("meta", tree.meta(meta_port, Path(name)), Path(name)):
        directory = Path(name)
        settings = tree.adapter("builtin", port, meta_port, directory)
        if case.to_collector:
            settings += f"[telemetry]\nendpoint = 'http://127.0.0.1:{free_port()}'\n"
        with tree.process("serve", settings, directory) as adapter:
            await ready(directory)
            lone = {
                "address": f"127.0.0.1:{port}",
                "commits": COMMITS,
                "traced": case.traced,
                "sampled_percent": case.sampled_percent,
            }
            before = cpu_s(adapter)
            sender = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.http2_load", json.dumps(lone), cwd=ROOT
            )
            assert await sender.wait() == 0
            return (cpu_s(adapter) - before) / COMMITS * 1e6


async def main(other: Path, rounds: int) -> None:
    """Measure and print."""
    ours, theirs = Tree(ROOT), Tree(other)
    cases = [
        Case("before", theirs, to_collector=False, traced=False, sampled_percent=0),
        Case("off", ours, to_collector=False, traced=False, sampled_percent=0),
        Case("on", ours, to_collector=True, traced=False, sampled_percent=0),
        Case("before, traced", theirs, to_collector=False, traced=True, sampled_percent=0),
        Case("off, traced", ours, to_collector=False, traced=True, sampled_percent=100),
        Case("on, 0 % sampled", ours, to_collector=True, traced=True, sampled_percent=0),
        Case("on, 1 % sampled", ours, to_collector=True, traced=True, sampled_percent=1),
        Case("on, 100 % sampled", ours, to_collector=True, traced=True, sampled_percent=100),
    ]
    found: dict[str, list[float]] = {case.name: [] for case in cases}
    for number in range(rounds):
        for case in cases if number % 2 else reversed(cases):
            found[case.name].append(await measure(case))
    for case in cases:
        base = found["before, traced" if case.traced else "before"]
        ratio = statistics.median(one / two for one, two in zip(found[case.name], base, strict=True))
        shown = " ".join(f"{value:.1f}" for value in found[case.name])
        print(f"{case.name:20} {statistics.median(found[case.name]):8.2f} us  ratio {ratio:.3f}  ({shown})")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 5))
