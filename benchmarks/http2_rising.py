"""Lone commits of 64 keys whose offsets rise, from a process of their own: each is a write, which those of h2load are not."""

import asyncio
import json
import sys
from dataclasses import asdict

from benchmarks.fast_path import Target, Turn
from benchmarks.h2load import Shape
from benchmarks.http2_load import KEYS, Lone
from benchmarks.machine import ROOT


class Rising:
    """Their offsets rise through all turns, whoever gets them."""

    def __init__(self) -> None:
        self._first = 1

    async def turn(self, target: Target, commits: int, shape: Shape, *, redis: bool = False) -> Turn:
        """Send so many. Raises RuntimeError when they were not all taken."""
        lone = Lone(target.address, commits, shape.connections, shape.streams, self._first, redis)
        self._first += commits // KEYS + 1
        before, cpu_s = await target.stack.commits() if target.stack else 0, target.cpu_s()
        found = await _sent(lone, target)
        spent_s = target.cpu_s() - cpu_s
        await target.check(before + commits)
        return Turn(found["per_s"], found["p50_ms"], found["p99_ms"], spent_s / commits * 1e6)


async def _sent(lone: Lone, target: Target) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.http2_load", json.dumps(asdict(lone)), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(f"{target.name}: the sender of rising commits failed; the server's log:\n{target.log()[-4000:]}")
    found: dict[str, float] = json.loads(output)
    return found
