"""The time from a node's failure until the leaders are on different nodes again, and the longest wait of saves meanwhile.

The node of the metadata leader is killed with all its members; a Meta Service balances leaders. etcd's default timers.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.progress import Progress

from adapter.errors import MetaUnavailableError
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.testing.etcd import LocalCluster
from adapter.testing.processes import ended
from benchmarks.etcd_machine import clusters, entries, meta
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "Leaders after a node's death"
DEATHS, DEATHS_SHORT = 8, 1
APART_LIMIT_S = 10.0
GIVE_UP_S = 60.0
LOOK_S = 0.1


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Kill a node, wait until the leaders are on different nodes, start it again; repeatedly."""
    deaths = DEATHS_SHORT if scale.short else DEATHS
    rows: list[list[str | float | int]] = []
    with clusters(directory, "metadata", "offsets-1", "offsets-2") as groups:
        service = meta(directory / "Meta Service", groups[0], groups[1:], extra="[etcd.placement]\nbalance = true\n")
        with ended(service):
            service.start()
            await _until_apart(groups)
            task = progress.add_task("etcd_placement", total=deaths)
            async with GrpcMetaClient.open(MetaSection(endpoints=(service.tcp_address,))) as client:
                for number in range(deaths):
                    saving = asyncio.create_task(_saves(client))
                    node = await asyncio.to_thread(_leading_node, groups[0])
                    started = time.perf_counter()
                    for group in groups:
                        group.members[node].kill()
                    apart = await _until_apart(groups) - started
                    saving.cancel()
                    with suppress(asyncio.CancelledError):
                        await saving
                    rows.append([number + 1, f"node-{node + 1}", apart, GAPS.pop()])
                    for group in groups:
                        await asyncio.to_thread(group.start)
                    await _until_apart(groups)
                    progress.advance(task)
    result = Result("etcd_placement", TITLE)
    result.tables.append(
        Table("Deaths of the metadata leader's node", ("death", "node", "apart after s", "longest gap of saves s"), rows)
    )
    result.bars.append(
        Bar("seconds until the leaders are on different nodes, at most", max(float(row[2]) for row in rows), APART_LIMIT_S)
    )
    return result


GAPS: list[float] = []  # seconds between acknowledged saves after one failure


async def _saves(client: GrpcMetaClient) -> None:
    """Save continuously; the longest time between two acknowledged saves goes to `GAPS`."""
    longest, turn = 0.0, 0
    last = time.perf_counter()
    try:
        while True:
            turn += 1
            with suppress(MetaUnavailableError):
                outcomes = await client.save(entries(0, 100, turn))
                if all(outcome.status.acknowledged for outcome in outcomes):
                    longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
            await asyncio.sleep(0.01)
    finally:
        GAPS.append(longest)


async def _until_apart(groups: Sequence[LocalCluster]) -> float:
    """Wait until no two leaders are on the same node, by the leaders' own status; returns the time."""
    give_up_at = time.perf_counter() + GIVE_UP_S
    while time.perf_counter() < give_up_at:
        try:
            led = await asyncio.gather(*(asyncio.to_thread(_leading_node, group) for group in groups))
        except RuntimeError:
            continue
        # With one node less, the leaders of the two offsets groups may share a node; only the metadata leader is alone.
        if led[0] not in led[1:]:
            return time.perf_counter()
        await asyncio.sleep(LOOK_S)
    raise RuntimeError(f"the leaders are not apart after {GIVE_UP_S:g} s")


def _leading_node(group: LocalCluster) -> int:
    return group.members.index(group.leader(timeout_s=1.0))
