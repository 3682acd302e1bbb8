"""Admission limits of a Meta Service, the delay that refused callers get, and that all callers observe it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.client.broker_log import NoBrokerLog
from adapter.errors import DiskFullError, InvalidInputError, MetaUnavailableError, NotReadyError, OverloadedError
from adapter.metaservice import limits
from adapter.metaservice.config import LimitsSection
from adapter.metaservice.limits import MAX_DELAY_S, MIN_DELAY_S, SPREAD, Limit, Limits
from adapter.metaservice.metrics import MetaMetrics
from adapter.model.records import SaveEntry, SaveOutcome
from adapter.runtime.clocks import Clocks
from adapter.runtime.retry import retrying
from adapter.runtime.serving.failures import FAILED, META_SERVICE, SERVER
from adapter.runtime.serving.pushback import MAX_PUSHBACK_S, PUSHBACK, pushback_s
from adapter.runtime.serving.statuses import status_of, trailing_of
from adapter.sidecar.engine.core import running_core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Reset, To
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config
from tests.model.disk import Platter, SimDisk
from tests.model.loop import VirtualLoop
from tests.unit.helpers import commit_of, core_over, key, send


class Watched:
    """A limit, its clock and what it counted."""

    def __init__(self, most: int) -> None:
        self.now = 0.0
        self.refusals = 0
        self.limit = Limit("offsets", most, self._count, lambda: self.now)

    def work(self, units: int, seconds: float) -> None:
        """Something that takes so long."""
        with self.limit.admit(units):
            self.now += seconds

    def refused(self) -> float:
        """The delay of a call that is refused now."""
        with pytest.raises(OverloadedError) as caught, self.limit.admit(1):
            pass
        return caught.value.retry_after_s

    def _count(self) -> None:
        self.refusals += 1


def test_what_comes_at_the_limit_is_refused_and_room_is_made_by_what_ends() -> None:
    """However it ends; a refused call takes no room."""
    watched = Watched(10)
    limit = watched.limit
    with limit.admit(6):
        with suppress(DiskFullError), limit.admit(4):
            assert limit.under_way == 10
            watched.refused()
            watched.refused()
            raise DiskFullError("full")
        assert (limit.under_way, watched.refusals) == (6, 2)
        with limit.admit(3):
            assert limit.under_way == 9
    assert limit.under_way == 0


def test_a_call_larger_than_the_limit_passes_alone_and_among_small_ones() -> None:
    """Otherwise a large backlog could never be sent while small calls are in progress."""
    watched = Watched(10)
    with watched.limit.admit(1_000):
        watched.refused()
    with watched.limit.admit(9), watched.limit.admit(1_000):
        assert watched.limit.under_way == 1_009
        watched.refused()


def test_the_limits_of_offsets_and_of_metadata_are_apart() -> None:
    """Each has its own count, shown in the metrics."""
    metrics = MetaMetrics()
    both = Limits(LimitsSection(offsets=2, metadata=1), metrics)
    with both.offsets.admit(2), both.metadata.admit(1):
        for _ in range(3):
            with pytest.raises(OverloadedError, match=r"^1 metadata call under way, of at most 1; nothing was done"):
                both.metadata.admit(1).__enter__()
        sample = metrics.registry.get_sample_value
        assert sample("offset_meta_under_way", {"limit": "offsets"}) == 2
        assert sample("offset_meta_under_way", {"limit": "metadata"}) == 1
        assert sample("offset_meta_refused_calls_total", {"limit": "metadata"}) == 3
        assert sample("offset_meta_refused_calls_total", {"limit": "offsets"}) == 0
    assert sample("offset_meta_under_way", {"limit": "offsets"}) == 0


@pytest.mark.parametrize(("units", "seconds", "expected"), [(100, 0.1, 1.0), (100, 0.2, 2.0), (500, 0.25, 0.5)])
def test_the_delay_is_as_long_as_what_is_under_way_will_take(units: int, seconds: float, expected: float) -> None:
    """By the recent rate, within 50 %, with jitter so that refused callers do not return together."""
    watched = Watched(1_000)
    for _ in range(200):
        watched.work(units, seconds)
        watched.now += 3_600  # idle time is not slowness
    with watched.limit.admit(1_000):
        delays = [watched.refused() for _ in range(50)]
    assert all(expected * (1 - SPREAD) * 0.99 <= delay <= expected * (1 + SPREAD) * 1.01 for delay in delays)
    assert max(delays) - min(delays) > expected * SPREAD / 2
    assert sum(delays) / len(delays) == pytest.approx(expected, rel=0.25)


def test_the_delay_follows_a_change_of_speed_and_grows_while_nothing_is_done() -> None:
    """Old measurements count little."""
    watched = Watched(1_000)
    for _ in range(100):
        watched.work(1_000, 0.2)
    with watched.limit.admit(1_000):
        fast = watched.refused()
        watched.now += 60
        assert watched.refused() == MAX_DELAY_S
    for _ in range(20):
        watched.work(1_000, 1.0)
    with watched.limit.admit(1_000):
        assert fast < 0.4 < watched.refused()


def test_before_anything_was_measured_the_delay_is_about_a_second() -> None:
    """The rate is still unknown."""
    watched = Watched(1_000)
    with watched.limit.admit(1_000):
        assert 1 - SPREAD <= watched.refused() <= 1 + SPREAD


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e6)), max_size=30), st.integers(1, 10**7), st.floats(0, 1e9))
def test_the_delay_is_bounded_whatever_was_measured(works: list[tuple[int, float]], most: int, stalled_s: float) -> None:
    """Calls without entries, in no time, after a day's pause."""
    watched = Watched(most)
    for units, seconds in works:
        watched.work(units, seconds)
    with watched.limit.admit(most):
        watched.now += stalled_s
        assert MIN_DELAY_S <= watched.refused() <= MAX_DELAY_S


def test_seeded_jitter_gives_the_same_delays() -> None:
    """For a test that has to be deterministic."""
    found = []
    for _ in range(2):
        limits.jitter.seed(7)
        watched = Watched(10)
        with watched.limit.admit(10):
            found.append([watched.refused() for _ in range(3)])
    assert found[0] == found[1]


def test_a_time_to_come_back_goes_over_the_wire_in_grpcs_own_word() -> None:
    """In whole milliseconds, rounded up; an adapter passes it on to its own callers."""
    for error, status in (
        (OverloadedError("busy", retry_after_s=0.1234), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (MetaUnavailableError("busy", retry_after_s=0.1234), grpc.StatusCode.UNAVAILABLE),
    ):
        assert status_of(error) is status
        assert dict(trailing_of(error))[PUSHBACK] == "124"
        assert pushback_s(trailing_of(error)) == 0.124
    assert trailing_of(DiskFullError("full")) == ()


def test_unavailable_says_who_did_not_answer() -> None:
    """The Meta Service or the called process; an error made by gRPC itself names neither."""
    assert trailing_of(MetaUnavailableError("away")) == ((FAILED, META_SERVICE),)
    assert trailing_of(NotReadyError("recovering")) == ((FAILED, SERVER),)
    assert trailing_of(InvalidInputError("bad")) == ()


@pytest.mark.parametrize(
    ("trailing", "expected"),
    [
        (None, 0.0),
        ((), 0.0),
        ((("other", "5"),), 0.0),
        (((PUSHBACK, "-1"),), 0.0),  # of gRPC: do not try again; here the own backoff decides
        (((PUSHBACK, "soon"),), 0.0),
        (((PUSHBACK, ""),), 0.0),
        (((PUSHBACK, "²"),), 0.0),
        (((PUSHBACK, "86400000"),), MAX_PUSHBACK_S),
        ((("other", b"1"), (PUSHBACK, "250")), 0.25),
    ],
)
def test_only_a_time_that_can_be_believed_is(trailing: Any, expected: float) -> None:
    """A faulty server must not stop an adapter for good."""
    assert pushback_s(trailing) == expected


class OverloadedMeta(FakeMeta):
    """A Meta Service that refuses this many saves, and records when each came."""

    def __init__(self, clock: Callable[[], float], saves: int, asked_s: float) -> None:
        super().__init__()
        self._clock = clock
        self.times: list[float] = []
        self.faults.extend([MetaUnavailableError("overloaded", retry_after_s=asked_s)] * saves)

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Refuse, or save."""
        self.times.append(self._clock())
        return await super().save(entries)


def test_a_flush_that_was_refused_waits_for_as_long_as_it_was_asked_to(tmp_path: Path) -> None:
    """Not only for its own backoff; newer commits go with the retry, and nothing is lost (4, 5)."""
    loop = VirtualLoop()
    meta = OverloadedMeta(loop.time, 3, asked_s=4.0)
    config = adapter_config(tmp_path, flush={"interval_ms": 100, "backoff_max_ms": 200})
    store = LocalStore.over(SimDisk(Platter(), lambda: None), "interval")

    async def main() -> None:
        clocks = Clocks(loop.time)
        async with running_core(config, store, meta, AdapterMetrics(), NoBrokerLog(), clocks) as core:
            core.ledger.recovered.finish()
            core.tasks.start_soon(core.flusher.run)
            for offset in range(500):
                await send(core, commit_of({key(): offset}))
                await asyncio.sleep(0.03)
            assert await core.flusher.drain(1.0) == 0
            core.tasks.cancel_scope.cancel()

    task = loop.create_task(main())
    loop.run_for(60)
    task.result()
    loop.close()
    pauses = [later - earlier for earlier, later in pairwise(meta.times)]
    assert pauses[:3] == pytest.approx([4.0] * 3)
    assert max(pauses[3:-1]) == pytest.approx(0.1)  # in the rhythm again
    assert meta.records[key()].offset == 499


def test_the_own_backoff_counts_where_it_is_longer() -> None:
    """A server that always asks for a short delay still gets fewer and fewer attempts."""
    loop = VirtualLoop()
    began: list[float] = []

    async def work() -> None:
        began.append(loop.time())
        raise MetaUnavailableError("overloaded", retry_after_s=0.1)

    task = loop.create_task(retrying("x", first_s=1.0, max_s=1.0)(work))
    loop.run_for(10)
    task.cancel()
    loop.run_for(0)
    loop.close()
    assert [later - earlier for earlier, later in pairwise(began)] == pytest.approx([1.0] * (len(began) - 1))


async def test_a_reset_that_was_refused_half_way_says_when_to_come_back(tmp_path: Path) -> None:
    """In addition to the sentence about what has been done."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of({key(f"s{at}"): 5 for at in range(501)}))
        await core.flusher.flush_all()

        async def applied(entries: Any) -> Any:
            return meta.apply(entries)

        meta.faults.extend([applied, MetaUnavailableError("overloaded", retry_after_s=3.0)])
        with pytest.raises(MetaUnavailableError, match=r"^500 of 501 offsets changed, of 1 it is unknown") as caught:
            await core.resets.reset(Wanted(key().group_key, []), Reset(To.OFFSET, 1), execute=True)
        assert caught.value.retry_after_s == 3.0
