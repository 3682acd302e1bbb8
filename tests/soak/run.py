"""One soak: cycles of a crash each, some with another disturbance before it, and a check of the history after each."""

import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import anyio
import grpc.aio

from adapter.sidecar.config import WalSync
from adapter.testing.history import History, Violation
from tests.soak.cluster import Cluster
from tests.soak.faults import CRASHES, DISTURBANCES, Fault

DISTURB_EVERY = 3  # cycles
SETTLE_EVERY = 10  # cycles


@dataclass
class Report:
    """What a soak did and found. `failure`: why it ended early, other than by a violation."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    crashes: int = 0
    acknowledged: int = 0
    reads: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    failure: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """True when there is nothing to tell."""
        return not self.violations and not self.failure


async def soak(
    cycles: int,
    seed: int,
    directory: Path,
    told: Callable[[Report, str], None],
    wal_sync: WalSync | None = None,
    history: History | None = None,
) -> Report:
    """Run so many crash cycles; `told` hears of each step. The seed decides the faults and their instants.

    `wal_sync`: of both adapters; None: one has interval and the other one always. `history`: an empty one, which gets all that
    is sent, answered and read.
    """
    report, history, started = Report(seed), history or History(), time.monotonic()
    try:
        rng = random.Random(f"{seed} administrator")
        async with Cluster.running(directory, history, rng, wal_sync) as cluster:
            await _run(cluster, cycles, report, told)
            report.changes = cluster.admin.done
    except Exception as error:  # noqa: BLE001 - whatever it is, the report has to be written
        report.failure = _words(error)
    report.violations = history.check()
    report.acknowledged, report.reads = history.acknowledged, history.reads
    report.seconds = time.monotonic() - started
    return report


async def _run(cluster: Cluster, cycles: int, report: Report, told: Callable[[Report, str], None]) -> None:
    crashes, disturbances = cycle(CRASHES), cycle(DISTURBANCES)
    for number in range(1, cycles + 1):
        rng = random.Random(f"{report.seed} {number}")
        await anyio.sleep(rng.uniform(0.05, 0.4))
        if number % DISTURB_EVERY == 0:
            await _strike(cluster, rng, DISTURBANCES, next(disturbances), report, told)
        await _strike(cluster, rng, CRASHES, next(crashes), report, told)
        report.crashes += 1
        if number % SETTLE_EVERY == 0 or number == cycles:
            told(report, "everything arrives")
            await cluster.settle()
        if cluster.history.check():
            return
    told(report, "stop under load")
    await cluster.stop()


async def _strike(
    cluster: Cluster,
    rng: random.Random,
    faults: Mapping[str, Fault],
    name: str,
    report: Report,
    told: Callable[[Report, str], None],
) -> None:
    told(report, name)
    await faults[name](cluster, rng)
    report.faults[name] += 1


def _words(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_words(part) for part in error.exceptions))
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    waited = [f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__}: {error}, in {' > '.join(waited)}"
