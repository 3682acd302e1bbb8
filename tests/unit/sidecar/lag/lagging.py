"""A live lag over a real store, evaluated when a test wants it, with a clock that the test drives."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from adapter.client.broker_log import BrokerLog, NoBrokerLog
from adapter.model.bounds import Bounds, ShardKey
from adapter.rpc import lag_pb
from adapter.runtime.clocks import Clocks
from adapter.sidecar.engine.core import Core
from adapter.sidecar.journal.notes import Moved
from adapter.sidecar.lag.live import LiveLag
from adapter.sidecar.lag.metrics import LagMetrics
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config
from tests.unit.helpers import commit_of, core_over, key, send

R = TypeVar("R")
BEGIN_MS = 1_700_000_000_000


async def at_once(work: Callable[[], R]) -> R:
    """Run it here instead of in a thread."""
    return work()


class Lagging:
    """A core and its live lag. The clock stands until `pass_s`."""

    def __init__(self, directory: Path, broker_log: BrokerLog | None = None, **lag: Any) -> None:
        self.config = adapter_config(directory, lag={"head_distance_ms": 1_000, **lag})
        self.now_ms = BEGIN_MS
        self.clocks = Clocks(now_ms=lambda: self.now_ms)
        self.registry = CollectorRegistry()
        self.metrics = LagMetrics(self.config.lag, self.registry)
        self.broker_log = broker_log or NoBrokerLog()
        self.windows = directory / "lag-windows.npz"
        self.noted: list[Moved] = []
        self.core: Core
        self.live: LiveLag

    def follow(self, core: Core) -> None:
        """Keep the lag of a core from now on."""
        self.core = core
        run: Callable[..., Awaitable[Any]] = at_once
        parts = self.config.lag, core.ledger.store, core.bounds, self.broker_log, self.clocks, self.metrics
        self.live = LiveLag(*parts, windows=self.windows, note=self.noted.extend, in_thread=run)

    async def fill(self) -> None:
        """Read the store, as after a start."""
        await self.live._fill()
        await self.evaluate()

    def pass_s(self, seconds: float = 1.0) -> None:
        """Let time pass."""
        self.now_ms += round(seconds * 1_000)

    async def commit(self, offsets: dict[str, int], group: str = "g", *, overwrite: bool = False) -> None:
        """Commit shards of a group as the server does."""
        entries = {key(shard, group): offset for shard, offset in offsets.items()}
        await send(self.core, commit_of(entries, overwrite=overwrite, committed_at_ms=self.now_ms))

    def tell(self, shard: str, high: int, low: int = 0, log_id: str = "") -> None:
        """Report bounds as a commit does."""
        self.core.bounds.note({ShardKey("default", shard): Bounds(low, high, self.now_ms, log_id)})

    async def evaluate(self) -> None:
        """Evaluate now."""
        await self.live.evaluate()

    async def step(self, offset: int, high: int, group: str = "g", shard: str = "s", *, overwrite: bool = False) -> None:
        """A second later: a commit, its bounds, and an evaluation."""
        self.pass_s()
        self.tell(shard, high)
        await self.commit({shard: offset}, group, overwrite=overwrite)
        await self.evaluate()

    def group(self, group: str = "g") -> lag_pb.GroupLag | None:
        """A group as it is shown now; None if it is not kept."""
        view = self.live.view
        found = [one for one in view.messages(view.order(lag_pb.NAME)) if one.group == group]
        return found[0] if found else None

    def shard(self, shard: str = "s", group: str = "g") -> lag_pb.ShardLag | None:
        """A shard as it is shown now; None if it is not kept."""
        view = self.live.view
        numbers = [number for number in view.order(lag_pb.NAME).tolist() if view.groups[number].group == group]
        return next((row for number in numbers for row in view.shards(view.rows_of(number)) if row.shard == shard), None)

    def kept(self) -> set[tuple[str, str]]:
        """Groups and shards that are kept."""
        view = self.live.view
        return {
            (view.groups[number].group, row.shard)
            for number in view.order(lag_pb.NAME).tolist()
            for row in view.shards(view.rows_of(number))
        }


@asynccontextmanager
async def lagging(
    directory: Path, meta: FakeMeta | None = None, broker_log: BrokerLog | None = None, **lag: Any
) -> AsyncIterator[Lagging]:
    """A core whose lag is kept."""
    found = Lagging(directory, broker_log, **lag)
    async with core_over(directory, meta or FakeMeta(), clocks=found.clocks) as core:
        found.follow(core)
        yield found
