"""The speed of moving offsets to an added Raft group and away from a removed one, and the latency of saves meanwhile.

`meta rebalance` runs as a command. Sender, Meta Service, command and all members share the cores of the machine.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.progress import Progress

from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.testing.processes import ServiceProcess, ended
from benchmarks.etcd_machine import clusters, entries, meta, percentile
from benchmarks.keyspace import fill_meta, pairs
from benchmarks.report import Result, Table
from benchmarks.scale import Scale

TITLE = "A rebalance under saves"
KEYS, KEYS_SHORT = 100_000, 1_000
QUIET_S, QUIET_SHORT_S = 10.0, 0.5
INTERVAL_S, SAVED = 0.02, 20  # 50 saves a second with 20 keys each, 1,000 offsets a second, over all keys
NAMES = ("offsets-1", "offsets-2", "offsets-3")

Row = list[str | float | int]


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure saves without a rebalance, while a third Raft group is added, and while the first one is emptied."""
    keys, quiet_s = (KEYS_SHORT, QUIET_SHORT_S) if scale.short else (KEYS, QUIET_S)
    rows: list[Row] = []
    with clusters(directory, "metadata", *NAMES) as (metadata, *offsets):
        first = meta(directory / "first", metadata, offsets[:2])
        with ended(first):
            first.start()
            task = progress.add_task("etcd_rebalance: filling", total=keys)
            async with GrpcMetaClient.open(MetaSection(endpoints=(first.tcp_address,))) as client:
                await fill_meta(pairs(keys), client, lambda count: progress.advance(task, count))
            first.stop()
        service = meta(directory / "Meta Service", metadata, offsets)
        with ended(service):
            service.start()
            task = progress.add_task("etcd_rebalance", total=3)
            async with GrpcMetaClient.open(MetaSection(endpoints=(service.tcp_address,))) as client:
                rows.append(await _under_saves(client, keys, "nothing", asyncio.sleep(quiet_s)))
                progress.advance(task)
                rows.append(await _under_saves(client, keys, "a third one is added", _rebalance(service)))
                progress.advance(task)
                going = _rebalance(service, "--without", NAMES[0])
                rows.append(await _under_saves(client, keys, "the first one is emptied", going))
                progress.advance(task)
    result = Result("etcd_rebalance", TITLE)
    columns = ("meanwhile", "seconds", "keys moved", "keys moved/s", "saves", "save p50 ms", "p99 ms", "longest ms")
    result.tables.append(Table(f"{keys:,} keys, {SAVED / INTERVAL_S:,.0f} offsets/s saved in calls of {SAVED}", columns, rows))
    result.notes.append(
        "Seconds are those of the whole command: its start, the count before, the copies, and the deletion of what was left."
    )
    return result


async def _under_saves(client: GrpcMetaClient, keys: int, name: str, work: Awaitable[Any]) -> Row:
    """Save at a fixed rate until the work is done. A slow save does not delay the next one."""
    took: list[float] = []
    saves: set[asyncio.Task[None]] = set()

    async def save(turn: int, due: float) -> None:
        outcomes = await client.save(entries(turn * SAVED % keys, SAVED, turn))
        assert all(outcome.status.acknowledged for outcome in outcomes)
        took.append(time.perf_counter() - due)

    async def send() -> None:
        for turn in range(sys.maxsize):
            due = started + turn * INTERVAL_S
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            task = asyncio.create_task(save(turn, due))
            saves.add(task)
            task.add_done_callback(saves.discard)

    started = time.perf_counter()
    sending = asyncio.create_task(send())
    plan = await work or {"moving": 0}
    lasted = time.perf_counter() - started
    sending.cancel()
    with suppress(asyncio.CancelledError):
        await sending
    await asyncio.gather(*saves)
    p50, p99 = (percentile(took, share) * 1000 for share in (0.5, 0.99))
    return [name, lasted, plan["moving"], plan["moving"] / lasted, len(took), p50, p99, max(took) * 1000]


async def _rebalance(service: ServiceProcess, *options: str) -> dict[str, Any]:
    """Run the command; returns its JSON output."""
    config = service.directory / "meta.toml"
    command: Sequence[str] = ("-m", "adapter", "meta", "rebalance", "--config", str(config), "--yes", "--json", *options)
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(said)
    return found
