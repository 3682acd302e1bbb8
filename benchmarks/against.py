"""The tree of this file against another checkout of the project, in one run and in turns: commits a second, CPU, recovery.

    python -m benchmarks.against /path/of/the/other/checkout [ROUNDS]

Both run with this virtual environment. Prints ratios of this tree to the other one: above 1 is better for rates, below 1 for CPU
and seconds. Settings that have other names in the other tree are found by its config/adapter.toml.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from adapter.client import OffsetClient
from adapter.rpc import offsets_pb

ROOT = Path(__file__).parents[1]
COMMITS = 300_000
KEYS = 20_000  # of the recovery
READY_S = 60.0


class Tree:
    """A checkout of the project."""

    def __init__(self, root: Path) -> None:
        self.root = root
        settings = (root / "config/adapter.toml").read_text()
        self.store = "store" if "[store]" in settings else "cache"
        # Two servers could be chosen once: "front", in the oldest, or "grpc_server", whose default was the built-in one.
        self.server = "front = 'lean'\n" if "\nfront = " in settings else ""

    @contextmanager
    def process(self, command: str, settings: str, directory: Path) -> Iterator[psutil.Process]:
        """`serve` or `meta`, killed at the end."""
        file = directory / f"{command}.toml"
        file.write_text(settings)
        with (directory / f"{command}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "adapter", command, "--config", str(file)],
                env={**os.environ, "PYTHONPATH": str(self.root)},
                cwd=directory,
                stdout=log,
                stderr=log,
            )
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()
            process.wait()

    def adapter(self, port: int, meta_port: int, directory: Path) -> str:
        """Settings of an adapter."""
        return (
            f"[server]\nlisten = '127.0.0.1:{port}'\nunix_socket = '{directory}/a.sock'\n{self.server}"
            "[metrics]\nlisten = ''\n"
            f"[{self.store}]\npath = '{directory / 'adapter'}'\n[meta]\nendpoints = ['127.0.0.1:{meta_port}']\n"
        )

    @staticmethod
    def meta(port: int, directory: Path) -> str:
        """Settings of a Meta Service."""
        return f"[server]\nlisten = '127.0.0.1:{port}'\n[metrics]\nlisten = ''\n[store]\npath = '{directory / 'meta'}'\n"


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def ready(directory: Path) -> offsets_pb.StatusReply:
    """Wait until an adapter has recovered; its status."""
    until = time.monotonic() + READY_S
    while True:
        try:
            async with OffsetClient.connect(f"unix:{directory / 'a.sock'}", 2.0) as client:
                status = await client.status()
                if status.recovery.done and not status.dirty_keys:
                    return status
        except Exception:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.02)


async def measure(tree: Tree, first: int) -> dict[str, float]:
    """One round of one tree: rising lone commits at 64 in flight, then a restart with many keys."""
    port, meta_port = 19_520, 19_530
    with tempfile.TemporaryDirectory() as name, tree.process("meta", tree.meta(meta_port, Path(name)), Path(name)):
        directory = Path(name)
        settings = tree.adapter(port, meta_port, directory)
        found: dict[str, float] = {}
        with tree.process("serve", settings, directory) as adapter:
            await ready(directory)
            lone = {"address": f"127.0.0.1:{port}", "commits": COMMITS, "connections": 1, "in_flight": 64, "first": first}
            before = cpu_s(adapter)
            sender = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.http2_load", json.dumps(lone), cwd=ROOT, stdout=asyncio.subprocess.PIPE
            )
            output, _ = await sender.communicate()
            found["commits/s"] = json.loads(output)["per_s"]
            found["us of CPU a commit"] = (cpu_s(adapter) - before) / COMMITS * 1e6
            async with OffsetClient.connect(f"unix:{directory / 'a.sock'}", 60.0) as client:
                for at in range(0, KEYS, 500):
                    await client.commit(f"group-{at}", {f"shard-{number}": 1 for number in range(500)})
                await client.flush()
        with tree.process("serve", settings, directory) as adapter:
            status = await ready(directory)
            found["recovery, s"] = status.recovery.seconds
            found["recovery, CPU s with the start"] = cpu_s(adapter)
    return found


async def main(other: Path, rounds: int) -> None:
    """Measure and print."""
    ours, theirs = Tree(ROOT), Tree(other)
    found: dict[Tree, list[dict[str, float]]] = {ours: [], theirs: []}
    for number in range(rounds):
        for tree in (ours, theirs) if number % 2 else (theirs, ours):
            found[tree].append(await measure(tree, 1))
            print(tree.root, {key: round(value, 3) for key, value in found[tree][-1].items()}, flush=True)
    for key in found[ours][0]:
        one, two = (statistics.median(row[key] for row in found[tree]) for tree in (ours, theirs))
        print(f"{key:32} {one:12,.2f} {two:12,.2f}  ratio {one / two:.3f}")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 5))
