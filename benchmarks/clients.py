"""The clients of clients/ against the bare generated stub of their language with one call a commit, in turns within one program.

The programs are those that `make interop` builds; a language without one is left out, and said so.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.progress import Progress

from benchmarks.machine import cpu_s
from benchmarks.processes import Stack, running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale
from tests.interop.client_programs import PROGRAMS

TITLE = "Clients in Go, Java and Rust against their bare stubs"
CONSUMERS = 64
LIMIT = 5.0
TIMEOUT_S = 600.0
COLUMNS = ("", "commits/s", "times", "sender CPU us", "adapter CPU us", "CPU, times")


class Found(NamedTuple):
    """CPU microseconds per commit."""

    per_s: float
    sender_cpu_us: float
    adapter_cpu_us: float

    @property
    def cpu_us(self) -> float:
        """Of both ends."""
        return self.sender_cpu_us + self.adapter_cpu_us


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure each client that is built, over the adapter's Unix socket."""
    result = Result("clients", TITLE)
    rows: list[Sequence[Cell]] = []
    task = progress.add_task("clients", total=len(PROGRAMS))
    for language, programs in PROGRAMS.items():
        if programs.exist:
            # An adapter for each: offsets begin anew with each program, and what is below the stored one costs much more.
            with running_stack(directory / language) as stack:
                bare, client = await _measured(programs.benchmark, stack, scale)
            rows.append([f"{language}, bare stub", bare.per_s, 1, bare.sender_cpu_us, bare.adapter_cpu_us, 1])
            times, cheaper = client.per_s / max(bare.per_s, 1.0), bare.cpu_us / max(client.cpu_us, 0.1)
            rows.append([f"{language}, client", client.per_s, times, client.sender_cpu_us, client.adapter_cpu_us, cheaper])
            result.rates[f"{language} client, {CONSUMERS} consumers"] = client.per_s
            result.bars.append(Bar(f"commits/s of the {language} client to one call a commit", times, LIMIT, least=True))
        else:
            result.notes.append(f"{language}: not measured, as its client is not built (make interop)")
        progress.advance(task)
    result.tables.append(Table(f"{CONSUMERS} consumers of one process, one offset each", COLUMNS, rows))
    result.notes.append("On a machine with other work a commit mostly waits for its turn: compare the CPU then.")
    return result


async def _measured(command: Sequence[str], stack: Stack, scale: Scale) -> tuple[Found, Found]:
    """Medians over the rounds. Raises RuntimeError if the program fails."""
    arguments = [stack.adapter.address, str(CONSUMERS), str(scale.fast_s), str(scale.fast_rounds)]
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    rounds: dict[str, list[Found]] = defaultdict(list)
    before = (0.0, 0.0)
    async with asyncio.timeout(TIMEOUT_S):
        while line := (await process.stdout.readline()).decode():
            side, _, told = line.strip().partition(" ")
            now = (cpu_s(process.pid), cpu_s(stack.adapter.pid))
            if told == "begin":
                before = now
            else:
                commits = max(float(told) * scale.fast_s, 1.0)
                sender, adapter = ((late - early) / commits * 1e6 for late, early in zip(now, before, strict=True))
                rounds[side].append(Found(float(told), sender, adapter))
            if len(rounds["client"]) == scale.fast_rounds:
                process.stdin.close()  # it waits for that, so that it is there when its CPU is looked at
        await process.wait()
    if process.returncode:
        raise RuntimeError(f"{command[0]} failed; the adapter's log:\n{stack.adapter.log[-4000:]}")
    bare, client = (Found(*map(median, zip(*rounds[side], strict=True))) for side in ("bare", "client"))
    return bare, client
