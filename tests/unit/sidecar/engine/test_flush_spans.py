"""Spans of flushes: which commits are linked to which flush, what is kept for the next one, and what bounds it all."""

from pathlib import Path

import pytest

from adapter.errors import MetaUnavailableError
from adapter.model.records import OffsetKey, SaveEntry, SaveOutcome, Status
from adapter.runtime.telemetry.spans import Span, TraceContext
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.flush_spans import LINKS_MAX, FlushSpans
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import commit, commit_of, core_over, key, refusing, send
from tests.unit.sidecar.engine.flushing import DOWN, A, B, commit_all

ONE, TWO, THREE = (TraceContext(number, number) for number in (1, 2, 3))


class Recorded:
    """The spans of a test."""

    def __init__(self, ratio: float = 0.0, draw: float = 0.5) -> None:
        self.found: list[Span] = []
        self.spans = FlushSpans(self.found.append, ratio, lambda: draw)

    async def commit(self, core: Core, context: TraceContext, found: OffsetKey, offset: int = 1) -> None:
        """Commit one key for a caller that records its trace."""
        await send(core, commit_of({found: offset}))
        self.spans.note(context, [found], core.ledger.dirty)

    @property
    def links(self) -> list[list[TraceContext]]:
        """The links of each span."""
        return [list(span.links) for span in self.found]


@pytest.fixture
def recorded() -> Recorded:
    """No span without a reason."""
    return Recorded()


async def test_a_flush_is_linked_to_what_it_carried_and_the_next_one_is_not(tmp_path: Path, recorded: Recorded) -> None:
    """With its numbers and times; a caller with two commits is linked once."""
    async with core_over(tmp_path, FakeMeta(), knows="g", spans=recorded.spans) as core:
        await recorded.commit(core, ONE, A)
        await recorded.commit(core, ONE, key("s", "h"))
        await recorded.commit(core, TWO, B)
        await core.flusher.flush_once()
        await commit(core, 9)
        await core.flusher.flush_once()
    assert recorded.links == [[ONE, TWO]]
    (span,) = recorded.found
    counts = {name.removeprefix("offset_adapter."): value for name, value in span.attributes.items()}
    assert counts == {"keys": 3, "groups": 2, "acknowledged": 3, "refused": 0, "unanswered": 0, "unlinked_commits": 0}
    assert (span.name, span.failure) == ("offset_adapter.flush", "")
    assert 1_700_000_000_000_000_000 < span.started_ns < span.ended_ns


async def test_a_commit_during_a_flush_is_linked_to_the_next_one(tmp_path: Path, recorded: Recorded) -> None:
    """The flush under way took the value before it."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, knows="g", spans=recorded.spans) as core:

        async def meanwhile(entries: list[SaveEntry]) -> list[SaveOutcome]:
            await recorded.commit(core, TWO, A, 2)
            return meta.apply(entries)

        meta.faults.append(meanwhile)  # type: ignore[arg-type]
        await recorded.commit(core, ONE, A, 1)
        await core.flusher.flush_once()
        await core.flusher.flush_once()
    assert recorded.links == [[ONE], [TWO]]


async def test_a_failed_flush_keeps_its_links_for_the_next_one(tmp_path: Path, recorded: Recorded) -> None:
    """Its span says why it failed; the keys are still dirty. Once they are saved, the links are gone."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, knows="g", spans=recorded.spans) as core:
        await recorded.commit(core, ONE, A)
        meta.faults.append(DOWN)
        with pytest.raises(MetaUnavailableError):
            await core.flusher.flush_once()
        await recorded.commit(core, TWO, B)
        await core.flusher.flush_once()
        await commit(core, 5, "c")
        await core.flusher.flush_once()
    assert recorded.links == [[ONE], [ONE, TWO]]
    assert [span.failure for span in recorded.found] == [str(DOWN), ""]


async def test_a_refused_key_keeps_its_link_and_an_acknowledged_one_does_not(tmp_path: Path, recorded: Recorded) -> None:
    """Both were in one flush: the retry carries only what was refused."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, knows="g", spans=recorded.spans) as core:
        await recorded.commit(core, ONE, A)
        await recorded.commit(core, TWO, B)
        meta.faults.append(refusing(meta, {"b"}))
        await core.flusher.flush_once()
        await commit_all(core, 7, "a")
        await core.flusher.flush_once(refused_too=True)
    assert recorded.links == [[ONE, TWO], [TWO]]
    assert Status.INVALID.name in recorded.found[0].failure


async def test_an_urgent_flush_of_a_group_takes_the_links_of_that_group(tmp_path: Path, recorded: Recorded) -> None:
    """The others wait for the flush that carries them."""
    other = key("s", "h")
    async with core_over(tmp_path, FakeMeta(), knows="gh", spans=recorded.spans) as core:
        await recorded.commit(core, ONE, A)
        await recorded.commit(core, TWO, other)
        await core.flusher.flush_groups([other.group_key])
        await core.flusher.flush_once()
    assert recorded.links == [[TWO], [ONE]]


async def test_a_commit_that_waits_for_no_flush_is_not_noted(tmp_path: Path, recorded: Recorded) -> None:
    """A repeated one changed nothing; a commit of several keys is followed by the first that is dirty."""
    async with core_over(tmp_path, FakeMeta(), knows="g", spans=recorded.spans) as core:
        await commit_all(core, 5, "ab")
        await core.flusher.flush_once()
        await recorded.commit(core, ONE, A, 5)
        await send(core, commit_of({A: 5, B: 6}))
        recorded.spans.note(TWO, [A, B], core.ledger.dirty)
        await core.flusher.flush_once()
    assert recorded.links == [[TWO]]


async def test_links_are_bounded_and_those_beyond_are_counted(tmp_path: Path, recorded: Recorded) -> None:
    """In a span, and over any number of failed flushes."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, knows="g", spans=recorded.spans) as core:
        for turn in range(3):
            for number in range(LINKS_MAX + 10):
                await recorded.commit(core, TraceContext(turn + 1, number + 1), key(f"{turn}-{number}"))
            assert len(recorded.spans._new) == LINKS_MAX
            meta.faults.append(DOWN)
            with pytest.raises(MetaUnavailableError):
                await core.flusher.flush_once()
        await core.flusher.flush_once()
    assert [len(links) for links in recorded.links] == [LINKS_MAX] * 4
    unlinked = [span.attributes["offset_adapter.unlinked_commits"] for span in recorded.found]
    assert unlinked == [10, 10 + LINKS_MAX, 10 + LINKS_MAX, 0]


async def test_links_of_groups_that_are_set_aside_are_bounded(tmp_path: Path, recorded: Recorded) -> None:
    """While a part of the Meta Service is away, the commits of other groups get their links; behind it, its own."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, knows="gh", spans=recorded.spans) as core:
        await recorded.commit(core, ONE, A)
        meta.faults.append(refusing(meta, {"a"}, Status.UNAVAILABLE))
        await core.flusher.flush_once()
        for turn in range(3):
            for number in range(LINKS_MAX - 1):
                await recorded.commit(core, TraceContext(turn + 10, number + 1), key(f"{turn}-{number}"))
            await recorded.commit(core, TWO, key("s", "h"), turn + 1)
            await core.flusher.flush_once()
        assert recorded.links == [[ONE], [TWO], [TWO], [TWO]]
        assert len(recorded.spans._kept) == LINKS_MAX
        await core.flusher.flush_once(aside_too=True)
    assert len(recorded.links[-1]) == LINKS_MAX
    assert recorded.links[-1][0] == ONE


async def test_links_of_keys_that_went_another_way_are_forgotten(tmp_path: Path, recorded: Recorded) -> None:
    """They would fill the room of later commits."""
    async with core_over(tmp_path, FakeMeta(), knows="g", spans=recorded.spans) as core:
        await recorded.commit(core, ONE, A)
        core.ledger.dirty.discard(A)
        await recorded.commit(core, TWO, B)
        await core.flusher.flush_once()
        await recorded.commit(core, THREE, A, 2)
        await core.flusher.flush_once()
    assert recorded.links == [[TWO], [THREE]]


@pytest.mark.parametrize(("ratio", "draw", "spans"), [(0.0, 0.0, 0), (0.5, 0.4, 1), (0.5, 0.5, 0), (1.0, 0.99, 1)])
async def test_other_flushes_get_a_span_by_the_ratio(tmp_path: Path, ratio: float, draw: float, spans: int) -> None:
    """Those of which nobody records a commit."""
    recorded = Recorded(ratio, draw)
    async with core_over(tmp_path, FakeMeta(), spans=recorded.spans) as core:
        await commit(core, 1)
        await core.flusher.flush_once()
    assert recorded.links == [[]] * spans
