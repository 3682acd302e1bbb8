"""The local store and the Meta Service observe each other: losses on either side, and what is done about them."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from adapter.errors import AdapterError, DiskFullError, MetaUnavailableError, RefusedError, StorageFailedError, UnknownCallError
from adapter.model.records import KnownStore, OffsetKey, OffsetRecord, ReadMode, StoreReport
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import eventually
from tests.unit.helpers import commit, core_over, doom, key, record, recover

A, B = key("a"), key("b")
DOWN = MetaUnavailableError("down by the test")


class ForgetfulMeta(FakeMeta):
    """A FakeMeta that can be restored from a copy, and that may not remember stores."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal: AdapterError | None = None
        self.unanswered = 0  # reports that are applied, and whose answers get lost

    async def report_store(self, store: StoreReport, replaces: bytes = b"") -> KnownStore | None:
        """Refuse the report, or store it, possibly without a reply."""
        if self.refusal:
            raise self.refusal
        known = await super().report_store(store, replaces)
        if self.unanswered:
            self.unanswered -= 1
            raise DOWN
        return known

    def restore(self, records: dict[OffsetKey, OffsetRecord]) -> None:
        """Hold only these records from now on, and show it in replies."""
        self.records = dict(records)
        self.server_reports.record_loss("restored by the test")


async def compared(core: Core, times: int = 1) -> None:
    """Run the watch until it has completed this many comparisons."""
    done: list[None] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(core.meta_watch.run, lambda: done.append(None))
        await eventually(lambda: len(done) >= times)
        tasks.cancel_scope.cancel()


async def flushed(core: Core, offset: int, shard: str) -> None:
    """Commit, and flush to the Meta Service."""
    await commit(core, offset, shard=shard)
    await core.flusher.flush_once()


async def test_what_the_meta_service_lost_is_pushed_again(tmp_path: Path) -> None:
    """Without a new commit; larger values in the Meta Service are adopted (2, 3)."""
    meta = ForgetfulMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, 5, "a")
        await flushed(core, 7, "b")
        await recover(core)
        meta.restore({A: record(9)})
        await compared(core)
        assert (meta.records[A].offset, meta.records[B].offset) == (9, 7)
        assert core.ledger.store.get(A) == meta.records[A]
        assert core.ledger.recovered.now
        assert core.ledger.recovered.now


async def test_another_meta_service_gets_what_the_former_one_had_acknowledged(tmp_path: Path) -> None:
    """When the endpoints are all others: it may know nothing, and have no mark or report by which that would show (3)."""
    meta = ForgetfulMeta()
    meta.refusal = UnknownCallError("by the test")
    async with core_over(tmp_path, meta) as core:
        await flushed(core, 5, "a")
        await recover(core)
        meta.records.clear()
        meta.server_reports.record_move()
        await compared(core)
        assert meta.records[A].offset == 5
        assert meta.server_reports.losses == 0


async def test_from_the_notice_on_nothing_counts_as_flushed(tmp_path: Path) -> None:
    """A stop during the comparison flushes everything, and so does a start without the Meta Service (8, 9)."""
    meta = ForgetfulMeta()
    async with core_over(tmp_path, meta) as core:
        await recover(core)
        await flushed(core, 5, "a")
        await flushed(core, 7, "b")
        assert core.ledger.store.flushed_seq == core.ledger.store.seq == 2
        meta.restore({})
        core.recovery.again()
        assert (core.ledger.store.flushed_seq, core.ledger.recovered.now, core.ledger.recovered.now) == (0, False, False)
        doom(core.ledger.store)
    async with core_over(tmp_path, meta, recovered=False) as core:
        assert core.ledger.store.flushed_seq == 0
        await core.flusher.mark_unflushed()
        assert core.ledger.dirty.keys() == {A, B}
        assert await core.flusher.drain(30) == 0
    assert set(meta.records) == {A, B}


async def test_a_loss_during_the_comparison_leads_to_another_one(tmp_path: Path) -> None:
    """What was compared before the loss may be missing again."""
    meta = ForgetfulMeta()
    async with core_over(tmp_path, meta) as core:
        await recover(core)
        await flushed(core, 5, "a")
        meta.restore({})
        apply = meta.apply

        def again(entries: Sequence[object]) -> object:
            outcomes = apply(entries)  # type: ignore[arg-type]
            meta.apply = apply  # type: ignore[method-assign]
            meta.restore({})
            return outcomes

        meta.apply = again  # type: ignore[assignment,method-assign]
        await compared(core, 2)
        assert meta.records[A].offset == 5


async def test_a_comparison_goes_on_when_the_meta_service_is_back(tmp_path: Path) -> None:
    """It is not given up, and there are never two comparisons at once."""
    meta = ForgetfulMeta()
    async with core_over(tmp_path, meta) as core:
        await recover(core)
        await flushed(core, 5, "a")
        meta.restore({})
        meta.down = DOWN
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(compared, core)
            await eventually(lambda: not core.ledger.recovered.now)
            await commit(core, 6, shard="b")
            meta.down = None
        await core.flusher.flush_once()
        assert (meta.records[A].offset, meta.records[B].offset) == (5, 6)


@pytest.mark.parametrize("forgotten", [True, False])
async def test_a_meta_service_that_remembers_less_of_the_store_has_lost(tmp_path: Path, *, forgotten: bool) -> None:
    """Even if its revision has meanwhile passed the one seen before."""
    meta = ForgetfulMeta()
    async with core_over(tmp_path, meta) as core:
        await recover(core)
        await flushed(core, 5, "a")
        await core.meta_watch.report()
        (where, known), *_ = meta.stores.items()
        assert known.store.flushed_seq == 1
        await flushed(core, 6, "a")
        await core.meta_watch.report()
        assert meta.server_reports.losses == 0
        if forgotten:
            meta.stores.clear()
        else:
            meta.stores[where] = known
        await core.meta_watch.report()
        assert meta.server_reports.losses == 1
        await core.meta_watch.report()
        assert meta.server_reports.losses == 1


async def test_a_report_whose_answer_got_lost_does_not_hide_the_loss(tmp_path: Path) -> None:
    """The report was applied; the next one asks what was stored before it."""
    meta = ForgetfulMeta()
    async with core_over(tmp_path, meta) as core:
        await recover(core)
        (where, known), *_ = meta.stores.items()
        await flushed(core, 5, "a")
        await core.meta_watch.report()
        meta.stores[where] = known
        meta.unanswered = 1
        with pytest.raises(MetaUnavailableError):
            await core.meta_watch.report()
        await core.meta_watch.report()
        assert meta.server_reports.losses == 1
        assert meta.stores[where].store.flushed_seq == 1


async def test_another_store_that_is_told_of_in_place_of_this_one_is_told_once(tmp_path: Path) -> None:
    """After a restore, or with two adapters of one name, it is logged once, and not every report starts a comparison."""
    meta = ForgetfulMeta()
    async with core_over(tmp_path, meta) as core:
        await recover(core)
        (where, known), *_ = meta.stores.items()
        for _ in range(3):
            meta.stores[where] = KnownStore(known.store._replace(store_id=b"sixteen bytes, 2"), 0)
            await core.meta_watch.report()
            assert meta.stores[where].store.store_id == core.ledger.store.store_id
        assert meta.server_reports.losses == 1


@pytest.mark.parametrize("refusal", [UnknownCallError("UNIMPLEMENTED"), RefusedError("INVALID_ARGUMENT")])
async def test_a_server_that_remembers_no_stores_is_no_loss(tmp_path: Path, refusal: AdapterError) -> None:
    """RobustMQ: the recovery completes, and no loss is reported."""
    meta = ForgetfulMeta()
    meta.refusal = refusal
    async with core_over(tmp_path, meta) as core:
        await recover(core)
        await flushed(core, 5, "a")
        for _ in range(3):
            await core.meta_watch.report()
        assert (meta.server_reports.losses, core.ledger.recovered.now, core.ledger.store.loss) == (0, True, None)


async def test_a_fresh_store_in_the_place_of_another_one_is_a_loss(tmp_path: Path) -> None:
    """Absent keys are looked up; only when the loss is recorded durably, the Meta Service forgets the old store."""
    meta = ForgetfulMeta()
    async with core_over(tmp_path, meta) as core:
        await recover(core)
        await flushed(core, 5, "a")
        await core.meta_watch.report()
        old = core.ledger.store.store_id
    shutil.rmtree(tmp_path / "adapter")
    async with core_over(tmp_path, meta, recovered=False) as core:

        async def failing() -> None:
            raise DiskFullError("full by the test")

        core.ledger.store.sync = failing  # type: ignore[method-assign]
        with pytest.raises(DiskFullError):
            await recover(core)
        assert next(iter(meta.stores.values())).store.store_id == old
    async with core_over(tmp_path, meta, recovered=False) as core:
        await recover(core)
        assert core.ledger.store.loss
        assert f"the Meta Service remembers another store here, {old.hex()}" in core.ledger.store.loss.why
        assert next(iter(meta.stores.values())).store.store_id == core.ledger.store.store_id != old
        found = await core.reader.read([Wanted(A.group_key, ["a"])], ReadMode.MEMORY)
        assert [row.offset for _, row in found] == [5]


async def test_a_question_that_was_refused_is_asked_again_with_the_comparison(tmp_path: Path) -> None:
    """An adapter that was let in late never learned that its store is another one, and fetched nothing of what it lacks (1)."""
    meta = ForgetfulMeta()
    async with core_over(tmp_path, meta) as core:
        await recover(core)
        await flushed(core, 5, "a")
        await core.meta_watch.report()
    shutil.rmtree(tmp_path / "adapter")
    async with core_over(tmp_path, meta, recovered=False) as core:
        meta.refusal, meta.down = RefusedError("PERMISSION_DENIED"), DOWN
        with pytest.raises(MetaUnavailableError):
            await recover(core)
        meta.refusal, meta.down = None, None
        await recover(core)
        assert core.ledger.store.loss


async def test_an_older_copy_of_the_store_is_a_loss_and_counters_go_on(tmp_path: Path) -> None:
    """The recovery fetches what the copy lacks of its groups."""
    meta = ForgetfulMeta()
    async with core_over(tmp_path, meta) as core:
        await recover(core)
        await flushed(core, 5, "a")
    shutil.copytree(tmp_path / "adapter", tmp_path / "copy")
    async with core_over(tmp_path, meta) as core:
        await recover(core)
        await flushed(core, 6, "a")
        await flushed(core, 7, "b")
        await core.meta_watch.report()
    shutil.rmtree(tmp_path / "adapter")
    (tmp_path / "copy").rename(tmp_path / "adapter")
    async with core_over(tmp_path, meta, recovered=False) as core:
        await recover(core)
        assert core.ledger.store.loss
        assert core.ledger.store.loss[::2] == (
            2,
            "the Meta Service has the write 3 of this store, whose newest was 1: it was put back from an older copy",
        )
        assert (core.ledger.store.get(A), core.ledger.store.get(B)) == (meta.records[A], meta.records[B])
        assert core.ledger.store.seq > 3


async def test_what_is_told_of_the_store_is_never_more_than_what_got_there(tmp_path: Path) -> None:
    """Reports exclude keys that are dirty, refused or not compared yet; the last save of a flush has the flush's result."""
    meta = ForgetfulMeta()
    async with core_over(tmp_path, meta, recovered=False) as core:
        assert core.meta_watch.local().flushed_seq == 0
        await recover(core)
        await flushed(core, 5, "a")
        assert core.meta_watch.local().flushed_seq == 1
        await commit(core, 6, shard="a")
        assert core.meta_watch.local().flushed_seq == 1
        server_reports: list[int] = []

        async def during(entries: Sequence[object]) -> object:
            server_reports.append(core.meta_watch.local().flushed_seq)
            return meta.apply(entries)  # type: ignore[arg-type]

        meta.faults.append(during)
        await core.flusher.flush_once()
        assert server_reports == [2]
        await commit(core, 7, shard="a")
        meta.faults.append(DOWN)
        with pytest.raises(MetaUnavailableError):
            await core.flusher.flush_once()
        assert core.meta_watch.local().flushed_seq == 2


async def test_a_sweep_waits_for_the_comparison_and_for_the_clock(tmp_path: Path) -> None:
    """Until then, dirty keys and the age of offsets are not known for sure."""
    meta = ForgetfulMeta()
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5, shard="a", committed_at_ms=1)
        await core.flusher.flush_once()
        core.ledger.recovered.begin_again()
        await core.expiry.sweep_once()
        core.ledger.recovered.finish()
        meta.server_reports.skew.off = True
        await core.expiry.sweep_once()
        assert meta.records[A].live
        meta.server_reports.skew.off = False
        await core.expiry.sweep_once()
        assert not meta.records[A].live


async def test_a_rescue_sends_what_is_dirty_and_writes_nothing(tmp_path: Path) -> None:
    """For a store whose files are gone. Larger values in the Meta Service stay there, and are not adopted."""
    meta = ForgetfulMeta()

    async def gone() -> None:
        async with core_over(tmp_path, meta, knows=["g"]) as core:
            await commit(core, 5, shard="a")
            await commit(core, 7, shard="b")
            meta.records[B] = record(9)
            shutil.rmtree(tmp_path / "adapter")
            assert await core.ledger.store.look()
            assert await core.flusher.rescue() == 0

    with pytest.raises(ExceptionGroup) as raised:
        await gone()
    assert raised.group_contains(StorageFailedError, match="the store is gone")
    assert (meta.records[A].offset, meta.records[B].offset) == (5, 9)


def test_only_the_store_that_was_open_is_opened_again(tmp_path: Path) -> None:
    """Another store at the same path is refused, and its verification changes nothing in it."""
    one = LocalStore.open(tmp_path / "one", "interval")
    one.close()
    LocalStore.open(tmp_path / "other", "interval").close()
    again = LocalStore.open(tmp_path / "one", "interval", only=one.store_id)
    assert again.store_id == one.store_id
    again.close()
    with pytest.raises(StorageFailedError, match="holds another store"):
        LocalStore.open(tmp_path / "other", "interval", only=one.store_id)
    with pytest.raises(StorageFailedError, match="the store is gone"):
        LocalStore.open(tmp_path / "none", "interval", only=one.store_id)
    assert not (tmp_path / "none").exists()


async def test_a_store_that_was_asked_about_is_no_older_copy_later(tmp_path: Path) -> None:
    """What was flushed and reported since is no loss at the next start, though `flushed_seq` was not stored before a kill."""
    meta = ForgetfulMeta()
    async with core_over(tmp_path, meta) as core:
        await recover(core)
        await flushed(core, 5, "a")
        await core.meta_watch.report()
        shutil.copytree(tmp_path / "adapter", tmp_path / "killed")
    shutil.rmtree(tmp_path / "adapter")
    (tmp_path / "killed").rename(tmp_path / "adapter")
    async with core_over(tmp_path, meta, recovered=False) as core:
        assert core.ledger.store.flushed_seq == 0
        await recover(core)
        assert core.ledger.store.loss is None
