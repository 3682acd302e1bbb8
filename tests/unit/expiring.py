"""Shared by the tests of the expiry: a clock that the test sets, old offsets, and a Meta Service that records proposals."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from adapter.model.records import CommitMode, GroupKey, Member, OffsetKey, OffsetRecord
from adapter.sidecar.config import ExpirySection
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.expiry import HOUR_MS, Expiry
from adapter.sidecar.engine.tombstones import Tombstones
from adapter.sidecar.ledger.operations import Commit
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import key, record, send

NOW_MS = 1_700_000_000_000
OLD_MS = NOW_MS - 169 * HOUR_MS
YOUNG_MS = NOW_MS - 167 * HOUR_MS
GROUP = GroupKey("default", "g")

Hook = Callable[[], Awaitable[object]]


@dataclass
class SetClock:
    """A clock that a test sets."""

    wall_ms: int = NOW_MS

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        return self.wall_ms


class ExpiringMeta(FakeMeta):
    """A FakeMeta that records what is proposed, and that can call the test before and after an expiry."""

    def __init__(self) -> None:
        super().__init__()
        self.proposed: list[str] = []
        self.before: Hook | None = None
        self.after: Hook | None = None

    async def expire(self, group: GroupKey, before_ms: int, now_ms: int) -> int:
        """Record the proposal; call `before`, expire the group, call `after`."""
        self.proposed.append(group.group)
        if self.before:
            await self.before()
        newest_ms = await super().expire(group, before_ms, now_ms)
        if self.after:
            await self.after()
        return newest_ms

    def live(self) -> dict[OffsetKey, tuple[int, int]]:
        """The positions of live records, without tombstones."""
        return {found: stands.position for found, stands in self.records.items() if stands.live}


def expiry_of(
    core: Core, clock: SetClock | None = None, *, metrics: AdapterMetrics | None = None, pause_s: float = 0, **section: int
) -> Expiry:
    """The expiry of a core, with the test's clock."""
    now_ms = (clock or SetClock()).now_ms
    made = Expiry(
        core.ledger,
        ExpirySection(**section),
        core.broadcasts,
        core.flusher,
        Tombstones(core.meta, core.ledger.holds, now_ms),
        metrics or AdapterMetrics(),
    )
    made.now_ms, made.pause_s = now_ms, pause_s
    return made


async def committed(core: Core, offsets: dict[OffsetKey, int], at_ms: int, member: Member | None = None) -> None:
    """Commit as the server does, at a given time, without a flush."""
    entries = [(where, record(offset, 0, committed_at_ms=at_ms)) for where, offset in offsets.items()]
    members = {found.group_key: member for found in offsets} if member else {}
    await send(core, Commit(entries, CommitMode.INCREASE_ONLY, members))


async def flushed(core: Core, offsets: dict[OffsetKey, int], at_ms: int = OLD_MS, member: Member | None = None) -> None:
    """Commit, and flush to the Meta Service."""
    await committed(core, offsets, at_ms, member)
    await core.flusher.flush_once()


def shards(names: Sequence[str], offset: int = 5) -> dict[OffsetKey, int]:
    """The same offset for these shards of the group."""
    return {key(name): offset for name in names}


def local(core: Core) -> dict[OffsetKey, OffsetRecord]:
    """The records in the local store."""
    return {stored.key: stored.record for stored in core.ledger.store.scan()}
