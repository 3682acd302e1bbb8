"""Recovery after a loss: each row of a group is read once, in pages, with bounded memory, and no difference is missed."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.errors import AdapterError, ContendedError, TimedOutError
from adapter.meta.client import GroupsPage
from adapter.meta.packed import Known
from adapter.model.codec import encode_key, encode_record
from adapter.model.records import CommitMode, GroupKey, OffsetKey, OffsetRecord
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.ledger.operations import Commit, Reconcile
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import core_over, key, record
from tests.unit.sidecar.engine.losses import Records, counts, left_behind, local, lost

SLOW = TimedOutError("slow by the test")


@pytest.fixture(params=[False, True], ids=["messages", "columns"], autouse=True)
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All with a Meta Service that sends messages, and with one that sends columns."""
    monkeypatch.setattr(PagedMeta, "columns", request.param)


class PagedMeta(FakeMeta):
    """A FakeMeta that counts the rows it returns, and may fail before a page."""

    columns = False

    def __init__(self, records: Records, page_rows: int) -> None:
        super().__init__(records)
        self.page_rows = page_rows
        self.rows: list[OffsetKey] = []
        self.faults_of_pages: list[AdapterError | None] = []

    async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
        """Raise the next fault, or return a page and count its rows."""
        fault = self.faults_of_pages.pop(0) if self.faults_of_pages else None
        if fault:
            raise fault
        page = await super().groups_page(groups, after, patient=patient)
        self.rows += [where for where, _ in page.entries]
        assert len(self.rows) < 1_000  # else it never ends
        return page

    async def news_page(self, groups: Sequence[GroupKey], after: bytes, known: Known) -> GroupsPage:
        """With columns leave out what is known."""
        page = await self.groups_page(groups, after)
        rows = [(encode_key(where), encode_record(found)) for where, found in page.entries]
        same = known([where for where, _ in rows], [found for _, found in rows]) if self.columns else [False] * len(rows)
        return page._replace(entries=[entry for entry, left_out in zip(page.entries, same, strict=True) if not left_out])


def sized(sizes: dict[str, int], offset: int = 5) -> Records:
    """Groups of these sizes."""
    return {key(f"s{at:04}", group): record(offset) for group, size in sizes.items() for at in range(size)}


async def test_each_row_of_a_group_is_read_once_however_many_batches_its_local_keys_are(tmp_path: Path) -> None:
    """Reading the whole group for each batch of its keys took 38 s for 2,000 keys."""
    mine = sized({"a": 3, "b": 50, "c": 2})
    left_behind(tmp_path, mine)
    lost(tmp_path, 1)
    meta = PagedMeta({**mine, **sized({"b": 70})}, page_rows=8)
    async with core_over(tmp_path, meta, recovered=False, recovery={"batch_keys": 7}) as core:
        assert counts(await core.recovery.run()) == (55, 0, 20, 55, 0)
        assert sorted(meta.rows) == sorted(meta.records)
        assert local(core) == meta.records


@pytest.mark.parametrize(("batch_keys", "page_rows"), [(2, 4), (4, 2), (4, 4), (8, 8), (1, 1)])
async def test_the_end_of_both_sides_may_be_the_end_of_a_full_page(tmp_path: Path, batch_keys: int, page_rows: int) -> None:
    """The empty page that follows ends the comparison and is no error."""
    mine = sized({"a": 4, "b": 4})
    left_behind(tmp_path, mine)
    lost(tmp_path, 1)
    async with core_over(tmp_path, PagedMeta(mine, page_rows), recovered=False, recovery={"batch_keys": batch_keys}) as core:
        assert counts(await core.recovery.run()) == (8, 0, 0, 8, 0)


async def test_a_page_that_fails_is_asked_for_again_and_no_other(tmp_path: Path) -> None:
    """Pages already read or compared are not read again, and the counts continue."""
    mine = sized({"a": 10, "b": 10})
    left_behind(tmp_path, mine)
    lost(tmp_path, 1)
    meta = PagedMeta(sized({"a": 12, "b": 12}), page_rows=5)
    meta.faults_of_pages = [None, SLOW, None, SLOW, SLOW, None, None, SLOW]
    async with core_over(tmp_path, meta, recovered=False, recovery={"batch_keys": 4}) as core:
        failures = 0
        compared = 0
        while not core.ledger.recovered.now:
            try:
                await core.recovery.run()
            except TimedOutError:
                failures += 1
                assert core.recovery.report.compared >= compared
                compared = core.recovery.report.compared
                assert core.recovery.report.of >= 20
        assert failures == 4
        assert len(meta.rows) == 24
        assert local(core) == meta.records


async def test_a_removal_meanwhile_lets_only_its_page_be_read_again(tmp_path: Path) -> None:
    """The shard went to another broker and must not come back; the comparison continues at the same page (2)."""
    left_behind(tmp_path, sized({"a": 10}), flushed=100)
    lost(tmp_path, 1)

    class HandingOver(PagedMeta):
        async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
            page = await super().groups_page(groups, after, patient=patient)
            if len(self.rows) == 8:
                await core.handover.remove([Wanted(GroupKey("default", "a"), ["s0005"])])
                self.records[key("s0005", "a")] = record(20)
            return page

    meta = HandingOver(sized({"a": 10}, 8), page_rows=4)
    async with core_over(tmp_path, meta, recovered=False, recovery={"batch_keys": 3}) as core:
        with pytest.raises(ContendedError):
            await core.recovery.run()
        assert core.recovery.report.compared == 4
        await core.recovery.run()
        # The whole group is read after a loss: what was handed over looks like lost, and comes with its newest value.
        assert core.ledger.store.get(key("s0005", "a")) == record(20)
        assert len(meta.rows) == 14


async def test_what_came_and_was_removed_behind_the_read_of_its_page_does_not_come_back(tmp_path: Path) -> None:
    """It is in no batch of local keys: only the row that was fetched before names it (2)."""
    gone = key("s0002", "a")
    left_behind(tmp_path, sized({"a": 1}), flushed=100)
    lost(tmp_path, 1)

    class HandingOver(PagedMeta):
        async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
            page = await super().groups_page(groups, after, patient=patient)
            if self.records[gone] == record(5):
                core.ledger.apply(Reconcile([(gone, record(5))]))
                await core.handover.remove([Wanted(gone.group_key, [gone.shard])])
                self.records[gone] = record(20)
            return page

    meta = HandingOver(sized({"a": 4}), page_rows=10)
    async with core_over(tmp_path, meta, recovered=False) as core:
        with pytest.raises(ContendedError):
            await core.recovery.run()
        assert core.ledger.store.get(gone) is None
        await core.recovery.run()
        assert core.ledger.store.get(gone) == record(20)


@pytest.mark.parametrize("batch_keys", [1, 3, 20])
async def test_a_group_that_comes_meanwhile_hides_no_key_from_a_comparison_that_begins_again(
    tmp_path: Path, batch_keys: int
) -> None:
    """Its keys lie between the groups that are being read; what was larger here behind them was never sent (3)."""
    left_behind(tmp_path, {**sized({"a": 2}), **sized({"c": 2}, 9)}, flushed=100)
    lost(tmp_path, 1)

    class Busy(PagedMeta):
        async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
            page = await super().groups_page(groups, after, patient=patient)
            if any(where.group == "c" for where, _ in page.entries) and key("b0", "b") not in local(core):
                core.ledger.apply(Commit([(key("b0", "b"), OffsetRecord(0, 1))], CommitMode.INCREASE_ONLY))
                await core.handover.remove([Wanted(GroupKey("default", "c"), ["s0000"])])
            return page

    meta = Busy(sized({"a": 2, "c": 2}), page_rows=2)
    async with core_over(tmp_path, meta, recovered=False, recovery={"batch_keys": batch_keys}) as core:
        while not core.ledger.recovered.now:
            try:
                await core.recovery.run()
            except ContendedError:
                continue
        assert meta.records[key("s0001", "c")] == record(9)


async def test_what_was_removed_between_the_read_of_a_batch_and_its_comparison_does_not_come_back(tmp_path: Path) -> None:
    """The next batch is read ahead, so a removal since that read counts as one during the comparison."""
    a, b = key("a"), key("b")
    left_behind(tmp_path, {a: record(5), b: record(5)}, flushed=100)

    meta = FakeMeta({a: record(9), b: record(9)})
    async with core_over(tmp_path, meta, recovered=False, recovery={"batch_keys": 1}) as core:
        source = core.recovery._source = core.recovery._beginning()
        first = await source.next()
        assert first
        source.done(first)
        await core.handover.remove([Wanted(GroupKey("default", "g"), ["b"])])
        meta.records[b] = record(20)
        with pytest.raises(ContendedError):
            await core.recovery.run()
        assert core.ledger.store.get(b) is None


NAMES = st.sampled_from(["a", "b", "bb", "c", "ä", "x" * 255])


@settings(max_examples=settings().max_examples // 2)
@given(
    st.dictionaries(st.tuples(NAMES, NAMES, NAMES), st.integers(1, 3), max_size=12),
    st.dictionaries(st.tuples(NAMES, NAMES, NAMES), st.integers(1, 3), max_size=12),
    st.integers(1, 5),
    st.integers(1, 5),
    st.lists(st.booleans(), max_size=12),
)
async def test_any_stores_end_with_the_larger_values(
    here: dict[tuple[str, str, str], int],
    there: dict[tuple[str, str, str], int],
    page_rows: int,
    batch_keys: int,
    slow: list[bool],
) -> None:
    """Wherever pages and batches end, and whichever calls fail: as if everything were compared at once."""
    mine = {OffsetKey(*names): OffsetRecord(1, offset) for names, offset in here.items()}
    # Some are more than an offset, and come as objects among the columns.
    theirs = {OffsetKey(*names): OffsetRecord(1, offset, metadata="m" * (offset == 2)) for names, offset in there.items()}
    with TemporaryDirectory() as name:
        left_behind(Path(name), mine)
        lost(Path(name), 1)
        meta = PagedMeta(dict(theirs), page_rows)
        meta.faults_of_pages = [SLOW if each else None for each in slow]
        async with core_over(Path(name), meta, recovered=False, recovery={"batch_keys": batch_keys}) as core:
            while not core.ledger.recovered.now:
                try:
                    await core.recovery.run()
                except TimedOutError:
                    continue
            groups = {where.group_key for where in mine}
            asked = {where: found for where, found in theirs.items() if where.group_key in groups}
            expected = {where: max(found for found in (mine.get(where), asked.get(where)) if found) for where in mine | asked}
            assert local(core) == expected
            assert meta.records == theirs | expected
            assert core.recovery.report.compared == len(mine)
            assert sorted(meta.rows, key=encode_key) == sorted(asked, key=encode_key)
