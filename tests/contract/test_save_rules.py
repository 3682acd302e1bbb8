"""The rules of a save: the same for every engine, and for the FakeMeta on which the unit tests rely."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapter.metaservice.engine import Engine, Overwrite
from adapter.model.records import HOLD_MS, OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, Status, next_era
from adapter.testing.fake_meta import FakeMeta
from tests.contract.cases import APPLIED, CASES, CLUSTER, INVALID, REQUESTS, SUPERSEDED
from tests.contract.engines import ENGINES
from tests.unit.helpers import key, record, tombstone

A, B = key("a"), key("b")


class Store(Protocol):
    """The methods that an engine and the FakeMeta have in common."""

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Merge entries."""

    async def get(self, keys: Sequence[OffsetKey]) -> dict[OffsetKey, OffsetRecord]:
        """The stored record."""


class EngineStore:
    """An engine with the methods of a Meta client."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Merge entries."""
        return await self._engine.save(CLUSTER, entries)

    async def get(self, keys: Sequence[OffsetKey]) -> dict[OffsetKey, OffsetRecord]:
        """What stands."""
        return dict(await self._engine.get(CLUSTER, keys))


@asynccontextmanager
async def engine_store(name: str, directory: Path) -> AsyncIterator[Store]:
    """One of the engines."""
    async with ENGINES[name](directory) as engine:
        yield EngineStore(engine)


@asynccontextmanager
async def fake(_: Path) -> AsyncIterator[Store]:
    """The FakeMeta."""
    yield FakeMeta()


STORES: dict[str, Callable[[Path], AbstractAsyncContextManager[Store]]] = {
    "fake": fake,
    **{name: partial(engine_store, name) for name in ENGINES},
}


@pytest.fixture(params=STORES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AbstractAsyncContextManager[Store]:
    """One of them, empty."""
    return STORES[request.param](tmp_path)


def alone(where: OffsetKey, found: OffsetRecord | None) -> dict[OffsetKey, OffsetRecord]:
    """What a get of the key returns."""
    return {} if found is None else {where: found}


async def test_a_save_ends_as_the_table_says(opened: AbstractAsyncContextManager[Store]) -> None:
    """Status, record in the reply and record in the store (2); other keys of the request are not affected (10)."""
    async with opened as store:
        for case in CASES:
            where, other = key("a", case.name), key("b", case.name)
            if case.before:
                await store.save([SaveEntry(where, case.before)])
            outcomes = await store.save([SaveEntry(other, record(1)), SaveEntry(where, case.offered, case.expected_offset)])
            assert outcomes[1][:2] == (case.status, case.after), case
            assert bool(outcomes[1].message) is (case.status is INVALID), case
            assert await store.get([where]) == alone(where, case.after), case
            assert await store.get([other]) == {other: record(1)}, case


async def test_the_entries_of_a_request_count_one_after_the_other(opened: AbstractAsyncContextManager[Store]) -> None:
    """Each entry is decided against the result of those before it, also for the same key."""
    async with opened as store:
        for case in REQUESTS:
            where = key("a", case.name)
            if case.before:
                await store.save([SaveEntry(where, case.before)])
            outcomes = await store.save([SaveEntry(where, offered, expected) for offered, expected in case.entries])
            assert outcomes == case.outcomes, case
            assert await store.get([where]) == alone(where, case.after), case


NOW_MS, ERA = 1_000_000, next_era(1)


OVERWRITES: list[tuple[OffsetRecord | None, OffsetRecord, Status, OffsetRecord | None]] = [
    (None, record(5, 0), APPLIED, record(5, 1)),
    (record(9), record(12, 0), APPLIED, record(12, 1)),
    (record(9), record(9, 0), APPLIED, record(9, 1)),
    (record(9), record(3, 0), APPLIED, record(3, 2)),
    (record(9, 7), record(3, 0), APPLIED, record(3, 8)),
    # By another process, whose clock is ahead, a moment ago.
    (record(9, 7, committed_at_ms=NOW_MS + 5_000), record(10, 0), APPLIED, record(10, 7)),
    (record(9, 7, committed_at_ms=NOW_MS + 5_000), record(3, 0), APPLIED, record(3, 8)),
    (record(9, ERA + 1), record(3, 0), APPLIED, record(3, ERA + 2)),
    (record(9, ERA, committed_at_ms=NOW_MS - HOLD_MS), record(3, 0), SUPERSEDED, None),
    (record(9, ERA, committed_at_ms=NOW_MS - HOLD_MS), record(12, 0), SUPERSEDED, None),
    (record(9, ERA, committed_at_ms=NOW_MS - HOLD_MS - 1), record(3, 0), APPLIED, record(3, ERA + 2)),
    (record(9, ERA, committed_at_ms=NOW_MS - HOLD_MS - 1), record(12, 0), APPLIED, record(12, ERA + 1)),
    (tombstone(ERA + 1), record(3, 0), APPLIED, record(3, ERA + 1)),
    (record(9, 2)._replace(live=False), record(3, 0), APPLIED, record(3, 3)),
]


async def test_an_overwrite_without_an_epoch_is_a_rewind(opened: AbstractAsyncContextManager[Store]) -> None:
    """The later to arrive wins, whatever the clocks are, but over what is held; repeated at once it changes nothing."""
    async with opened as store:
        for number, (before, offered, status, after) in enumerate(OVERWRITES):
            where = key(str(number))
            stands = after._replace(committed_at_ms=NOW_MS) if after else before
            if before:
                await store.save([SaveEntry(where, before)])
            for _ in range(2):
                (outcome,) = await store.save([Overwrite(where, offered._replace(committed_at_ms=NOW_MS))])
                assert outcome[:2] == (status, stands), number
                assert await store.get([where]) == alone(where, stands), number


SMALL = st.builds(
    OffsetRecord,
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 1),
    st.sampled_from(["", "m"]),
    st.just(""),
    st.just(0),
)
ENTRIES = st.builds(SaveEntry, st.sampled_from([A, B]), SMALL, st.none() | st.integers(0, 3))


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests=st.lists(st.lists(ENTRIES, max_size=5), max_size=6))
async def test_an_engine_and_the_fake_agree_on_any_sequence_of_saves(
    tmp_path_factory: pytest.TempPathFactory, name: str, requests: list[list[SaveEntry]]
) -> None:
    """So the unit tests may rely on the fake; and no key ever goes backwards (2)."""
    meta = FakeMeta()
    async with engine_store(name, tmp_path_factory.mktemp("e")) as engine:
        before: dict[OffsetKey, OffsetRecord] = {}
        for entries in requests:
            assert await engine.save(entries) == await meta.save(entries)
            now = await engine.get([A, B])
            assert now == meta.records
            assert all(now[where] >= found for where, found in before.items())
            before = now
