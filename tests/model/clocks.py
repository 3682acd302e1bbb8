"""A world in which the adapters' clocks differ from the Meta Service's, within and beyond the bound.

What is promised then (docs/design/epochs.md, Clocks): clocks decide about unknown epochs, expiry and the end of a hold, and about
nothing else. So a commit whose epoch was unknown may be taken for later or earlier than a reset by as much as two clocks differ;
a hold may end by as much too early; whoever is beyond the bound expires nothing. All else holds, whatever the clocks say: nothing
that was acknowledged is lost, nothing goes back, and what was committed in an epoch before a reset stays below it.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from adapter.errors import InvalidInputError, RefusedError
from adapter.metaservice.clock_skew import SkewedClocks, check_proposal, shifted_entries
from adapter.metaservice.metrics import MetaMetrics
from adapter.model.records import ERA_BITS, HOLD_MS, GroupKey, OffsetKey, OffsetRecord, SaveEntry, SaveOutcome
from adapter.runtime.clocks import Clocks
from adapter.sidecar.ledger.write_batch import Stored
from tests.model import choices as st
from tests.model.broker import Broker, Setup
from tests.model.choices import rule
from tests.model.invariants import BrokenError, Watch
from tests.model.model import Model
from tests.model.network import CLUSTER, Service, SimMeta
from tests.model.runs import BROKERS, SELDOM, SETUPS, WAITS, Everything
from tests.model.world import World

R = TypeVar("R")

BOUND_MS = 30_000  # as docs/design/epochs.md says it
METRICS = MetaMetrics()
WITHIN = [0, 5_000, -5_000, 29_000, -29_000]
BEYOND = [60_000, -60_000, 400_000, -400_000]
SKEWS = st.sampled_from([*WITHIN, *BEYOND])


class Proposal(NamedTuple):
    """What an adapter proposed to expire, and the time by its clock."""

    broker: str
    their_ms: int


class SkewedService(Service):
    """The service, which decides about wrong clocks as the production service does."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self.now_ms = now_ms
        self._clocks = SkewedClocks(METRICS)
        self._accepted: list[Proposal] = []

    def take_accepted(self) -> list[Proposal]:
        """The proposals that it accepted since this was asked last."""
        accepted, self._accepted = self._accepted, []
        return accepted

    async def save_from(self, entries: Sequence[SaveEntry], their_ms: int) -> list[SaveOutcome]:
        """A save that carries the time of its sender."""
        now_ms = self.now_ms()
        timed = [e._replace(record=e.record._replace(committed_at_ms=e.record.committed_at_ms or now_ms)) for e in entries]
        newest_ms = max((entry.record.committed_at_ms for entry in timed), default=0)
        shift_ms = self._clocks.correction_ms(newest_ms, their_ms, now_ms, "simulated")
        if shift_ms is not None:
            timed = shifted_entries(timed, shift_ms, now_ms)
        return await self.save(timed)

    async def expire_by(self, proposal: Proposal, group: GroupKey, before_ms: int) -> int | str:
        """The time of the newest commit; or why the proposal is refused."""
        try:
            check_proposal(before_ms, proposal.their_ms, self.now_ms())
        except InvalidInputError as error:
            return str(error)
        self._accepted.append(proposal)
        return (await self.engine.expire(CLUSTER, *group, before_ms, proposal.their_ms)).newest_ms


class SkewedMeta(SimMeta):
    """A client that sends its time, and looks at that of replies."""

    _service: SkewedService
    broker: Broker

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        sent, their_ms = list(entries), self.broker.clocks.now_ms()
        return await self._reported(lambda: self._service.save_from(sent, their_ms))

    async def expire(self, group: GroupKey, before_ms: int, now_ms: int) -> int:
        proposal = Proposal(self.broker.name, now_ms)
        answer = await self._call(lambda: self._service.expire_by(proposal, group, before_ms))
        if isinstance(answer, str):
            raise RefusedError(answer)
        return answer

    async def _reported(self, work: Callable[[], Awaitable[R]]) -> R:
        now_ms = self.broker.clocks.now_ms
        sent_ms = now_ms()

        async def timed() -> tuple[R, int]:
            return await work(), self._service.now_ms()

        found, server_ms = await super()._reported(timed)
        self.server_reports.skew.take(sent_ms, now_ms(), server_ms)
        return found


class SkewedBroker(Broker):
    """A broker with a clock of its own."""

    meta_type = SkewedMeta

    def start(self) -> None:
        """Start a process, whose client has the same clock."""
        super().start()
        assert self.running
        self.running.meta.broker = self  # type: ignore[attr-defined]


class SkewedModel(Model):
    """What is owed, with as much doubt about times as clocks have differed."""

    spread_ms = 0

    def committed(self, broker: str, key: OffsetKey, record: OffsetRecord, at: float, *, through: bool) -> None:
        """The time of a commit may be moved."""
        super().committed(broker, key, record._replace(committed_at_ms=0), at, through=through)

    def is_held(self, key: OffsetKey, record: OffsetRecord, now_ms: int) -> bool:
        """True when nobody can have taken it up, nor believe that its time, which may have been moved, is over."""
        return (
            self._eras.get(key, 0) < record.epoch >> ERA_BITS
            and not self.reading[key.group_key]
            and self._reads.get(key.group_key, -1) < record.committed_at_ms - self.spread_ms
            and now_ms + 2 * self.spread_ms <= record.committed_at_ms + HOLD_MS
        )

    def undone(self, key: OffsetKey, record: OffsetRecord, now_ms: int) -> str:
        """As ever; but a commit of unknown epoch was decided by its time."""
        sent = self.sent.get(record.metadata)
        if sent is None or sent.key != key:
            return ""
        for moved in self.moved.get(key, ()):
            if moved.record.epoch <= record.epoch:
                if sent.at_ms < moved.begun_ms - self.spread_ms * sent.unknown:
                    return f"{record} was committed at {sent.at_ms}, before {moved}"
                if 0 < sent.epoch < moved.record.epoch:
                    return f"{record} was committed in epoch {sent.epoch}, which {moved} ended"
                if not sent.epoch and self.is_held(key, self._first_at(key, moved.record), now_ms):
                    return f"{record} was committed without an epoch, and {moved} is held"
        return ""


class SkewedWorld(World):
    """The world; `skews_ms` says how far each adapter's clock is ahead of the Meta Service's."""

    service_type = SkewedService
    broker_type = SkewedBroker
    model_type = SkewedModel
    service: SkewedService
    model: SkewedModel

    def __init__(self, seed: int, setups: Sequence[Setup], skews_ms: Sequence[int]) -> None:
        self.skews_ms = list(skews_ms)
        self._steps: dict[str, list[tuple[int, int]]] = {}  # since when an adapter's clock has been ahead by so much
        super().__init__(seed, setups)
        self._spread()

    def set_up(self, at: int) -> None:
        """Give it its clock."""
        self.brokers[at].clocks = Clocks(self.loop.time, lambda: self.now_ms() + self.skews_ms[at])
        self._steps[self.brokers[at].name] = [(self.now_ms(), self.skews_ms[at])]

    def clock_steps(self, at: int, skew_ms: int) -> None:
        """A clock is set, right or wrong."""
        self.skews_ms[at % len(self.brokers)] = skew_ms
        self._steps[self.brokers[at].name].append((self.now_ms(), skew_ms))
        self._spread()

    def skews_at(self, broker: str, their_ms: int) -> list[int]:
        """How far an adapter's clock was ahead when it said `their_ms`; it may have done so several times."""
        steps = self._steps[broker]
        ends = [*(since_ms for since_ms, _ in steps[1:]), self.now_ms()]
        return [skew for (since_ms, skew), end_ms in zip(steps, ends, strict=True) if since_ms <= their_ms - skew <= end_ms]

    def _spread(self) -> None:
        every = [0, *self.skews_ms]
        self.model.spread_ms = max(self.model.spread_ms, max(every) - min(every))


class SkewedWatch(Watch):
    """All invariants, whatever time the Meta Service has given to what it holds."""

    _world: SkewedWorld

    def check(self) -> None:
        """And whose clock is beyond the bound expires nothing."""
        for proposal in self._world.service.take_accepted():
            skews_ms = self._world.skews_at(*proposal)
            if not any(abs(skew_ms) <= BOUND_MS for skew_ms in skews_ms):
                raise BrokenError(f"clocks: {proposal} was accepted, of a clock that was ahead by {skews_ms} ms")
        super().check()

    def _what_is_clean_is_there(
        self, at: int, stored: dict[OffsetKey, Stored], flushed_seq: int, there: dict[OffsetKey, OffsetRecord]
    ) -> Iterator[str]:
        yield from super()._what_is_clean_is_there(at, _without_times(stored, there), flushed_seq, there)

    def _a_stop_leaves_nothing(
        self, at: int, stored: dict[OffsetKey, Stored], there: dict[OffsetKey, OffsetRecord]
    ) -> Iterator[str]:
        yield from super()._a_stop_leaves_nothing(at, _without_times(stored, there), there)


def _without_times(stored: dict[OffsetKey, Stored], there: dict[OffsetKey, OffsetRecord]) -> dict[OffsetKey, Stored]:
    """What an adapter has, with the time and the metadata that the Meta Service has at the same position."""
    found = {}
    for key, one in stored.items():
        held = there.get(key)
        same = held is not None and (held.position, held.live) == (one.record.position, one.record.live)
        found[key] = one._replace(record=held) if held and same else one
    return found


class Skewed(Everything):
    """Adapters with wrong clocks."""

    watch_type = SkewedWatch
    world: SkewedWorld

    @rule(seed=st.integers(0, 99), setups=st.tuples(*[SETUPS] * 2), skews_ms=st.tuples(*[SKEWS] * 2))
    def begin(self, seed: int, setups: tuple[Setup, ...], skews_ms: tuple[int, ...]) -> None:  # type: ignore[override]
        """Two adapters start over empty disks, each with its clock."""
        self.world = SkewedWorld(seed, setups, skews_ms)
        self.watch = self.watch_type(self.world)

    @rule(at=BROKERS, skew_ms=SKEWS, later=SELDOM, wait=WAITS)
    def clock_steps(self, at: int, skew_ms: int, later: bool, wait: float) -> None:
        """A clock is set, right or wrong; or it is so when a day has passed, and its adapter has heard nothing since."""
        if later:
            self.world.a_day_passes()
        self.world.clock_steps(at, skew_ms)
        self._pass(wait)

    def clone(self, at: int, groups: list[GroupKey], wait: float) -> None:
        """None: a clone carries metadata, by which what was sent is found here."""

    def _change(self, at: int, change: str, key: OffsetKey, offset: int) -> None:
        super()._change(at, "reset" if change == "clone" else change, key, offset)
