"""`export` and `groups describe` of this tree against another checkout, in one run and in turns: seconds and CPU.

    python -m benchmarks.against_commands /path/of/the/other/checkout [ROUNDS] [GROUPS]

Each tree has its own adapter and Meta Service with the same offsets, 10 shards in each group. Both run with this virtual
environment. Prints the medians and the ratio of this tree to the other one, and whether both wrote the same rows.
"""

import asyncio
import hashlib
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil

from adapter.client import OffsetClient
from benchmarks.against import ROOT, Tree, cpu_s, ready

SHARDS = 10  # of a group
FILE = "out"
# What differs between two runs of the same offsets: the time of a commit.
TIMES = re.compile(rb'"committed_at_ms": "?\d+"?')
COMMANDS = {
    "export --format json": ("export", "--format", "json", "-o", FILE),
    "export --format kafka-csv": ("export", "--format", "kafka-csv", "-o", FILE),
    "export --format rocketmq-broker": ("export", "--format", "rocketmq-broker", "-o", FILE),
    "groups describe --all-groups": ("groups", "describe", "--all-groups"),
}


class Stack(NamedTuple):
    """The processes of a tree."""

    tree: Tree
    directory: Path
    adapter: psutil.Process
    meta: psutil.Process


class Used(NamedTuple):
    """What a command took: its time, and the CPU of the command, the adapter and the Meta Service."""

    seconds: float
    command_s: float
    adapter_s: float
    meta_s: float


async def start(tree: Tree, port: int, directory: Path, groups: int, stack: ExitStack) -> Stack:
    """Start a tree's processes, and commit the offsets."""
    meta = stack.enter_context(tree.process("meta", tree.meta(port + 1, directory), directory))
    adapter = stack.enter_context(tree.process("serve", tree.adapter(port, port + 1, directory), directory))
    await ready(directory)
    async with OffsetClient.connect(f"unix:{directory / 'a.sock'}", 60.0) as client:
        for group in range(groups):
            await client.commit(f"group-{group:05}", {f"orders/{shard}": group + shard for shard in range(SHARDS)})
        await client.flush()
    return Stack(tree, directory, adapter, meta)


async def run(stack: Stack, arguments: tuple[str, ...]) -> tuple[Used, bytes]:
    """Run a command from start to end; what it took, and what it wrote."""
    file = stack.directory / FILE
    before, began = (cpu_s(stack.adapter), cpu_s(stack.meta)), time.monotonic()
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "adapter", *arguments, "--address", f"unix:{stack.directory}/a.sock"],
        env={**os.environ, "PYTHONPATH": str(stack.tree.root)},
        cwd=stack.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    seconds, now = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    command_s = now.ru_utime + now.ru_stime - own.ru_utime - own.ru_stime
    wrote = file.read_bytes() if FILE in arguments else done.stdout
    adapter_s, meta_s = cpu_s(stack.adapter) - before[0], cpu_s(stack.meta) - before[1]
    return Used(seconds, command_s, adapter_s, meta_s), wrote


async def main(other: Path, rounds: int, groups: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        for at in range(2):
            (Path(name) / str(at)).mkdir()
        ours, theirs = [
            await start(Tree(root), 19_640 + 2 * at, Path(name) / str(at), groups, running)
            for at, root in enumerate((ROOT, other))
        ]
        await asyncio.sleep(3.0)  # both have flushed, and followed what changed
        for title, arguments in COMMANDS.items():
            found: dict[Path, list[Used]] = {ROOT: [], other: []}
            wrote: dict[Path, bytes] = {}
            for number in range(rounds):
                for stack in (ours, theirs) if number % 2 else (theirs, ours):
                    used, out = await run(stack, arguments)
                    found[stack.tree.root].append(used)
                    wrote[stack.tree.root] = TIMES.sub(b"", out)
            print(f"{title}: {'the same' if len(set(map(hashes, wrote.values()))) == 1 else 'different'} rows")
            for field in Used._fields:
                one, two = (statistics.median(getattr(row, field) for row in found[root]) for root in (ROOT, other))
                print(f"  {field:12} {one:8.2f} {two:8.2f}  ratio {one / max(two, 1e-9):.3f}", flush=True)


def hashes(wrote: bytes) -> str:
    """A short form of a file."""
    return hashlib.sha256(wrote).hexdigest()


if __name__ == "__main__":
    options = dict(enumerate(sys.argv))
    asyncio.run(main(Path(sys.argv[1]).resolve(), int(options.get(2, 3)), int(options.get(3, 10_000))))
