"""The clients of clients/ against the bare generated stub of their language with one call a commit, in turns within one program.

The programs are those that `make interop` builds; a language without one is left out, and said so.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.progress import Progress

from benchmarks.processes import Stack, running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale
from tests.interop.client_programs import PROGRAMS

TITLE = "Clients in Go, Java and Rust against their bare stubs"
CONSUMERS = 64
LIMIT = 5.0
TIMEOUT_S = 600.0
COLUMNS = ("client", "bare stub commits/s", "client commits/s", "times")


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure each client that is built, over the adapter's Unix socket."""
    result = Result("clients", TITLE)
    rows: list[Sequence[Cell]] = []
    task = progress.add_task("clients", total=len(PROGRAMS))
    with running_stack(directory) as stack:
        for language, programs in PROGRAMS.items():
            if not programs.exist:
                result.notes.append(f"{language}: not measured, as its client is not built (make interop)")
            else:
                found = await _measured(programs.benchmark, stack, scale)
                bare, client = median(found["bare"]), median(found["client"])
                rows.append([language, bare, client, client / bare])
                result.rates[f"{language} client, {CONSUMERS} consumers"] = client
                if not scale.short:
                    result.bars.append(Bar(f"the {language} client to one call a commit", client / bare, LIMIT, least=True))
            progress.advance(task)
    result.tables.append(Table(f"{CONSUMERS} consumers of one process, one offset each", COLUMNS, rows))
    return result


async def _measured(command: Sequence[str], stack: Stack, scale: Scale) -> dict[str, list[float]]:
    arguments = [stack.adapter.address, str(CONSUMERS), str(scale.fast_s), str(scale.fast_rounds)]
    process = await asyncio.create_subprocess_exec(*command, *arguments, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(TIMEOUT_S):
        output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{command[0]} failed; the adapter's log:\n{stack.adapter.log[-4000:]}")
    found: dict[str, list[float]] = json.loads(output.splitlines()[-1])
    return found
