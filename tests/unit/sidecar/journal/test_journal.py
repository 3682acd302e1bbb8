"""Which events are noted in the journal; and that noting never waits, fails, or uses unbounded memory."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from adapter.errors import ConfigError, MetaUnavailableError
from adapter.meta.kinds import OFFSETS_ONLY
from adapter.model.bounds import Bounds, ShardKey
from adapter.model.records import ERA_BITS, GroupKey, OffsetRecord, Status
from adapter.sidecar.config import JournalSection
from adapter.sidecar.engine.expiry import HOUR_MS
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Reset, To
from adapter.sidecar.journal.journal import NO_JOURNAL, WrittenJournal
from adapter.sidecar.journal.notes import Counts, Moved, Note, Notes
from adapter.sidecar.journal.opening import journal_of
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import eventually
from tests.unit.expiring import ExpiringMeta, expiry_of, flushed, shards
from tests.unit.helpers import commit, commit_of, core_over, key, record, refusing, send
from tests.unit.journaling import BROKER, NOW_MS, BrokenFiles, Recording, SetTime, flush_of, offsets_in, rows_in, section_of

G = GroupKey("default", "g")
A, B = key("a"), key("b")
ERA = 1 << ERA_BITS
THROUGH: dict[str, Any] = {"mode": "write_through"}


class IdleWriter:
    """A writer that does nothing by itself."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.woken = 0

    def start(self) -> None:
        """Do nothing."""

    def wake(self) -> None:
        """Count the call."""
        self.woken += 1

    def stop(self) -> None:
        """Do nothing."""


def idle_journal(max_rows: int) -> tuple[WrittenJournal, Notes]:
    """A journal whose notes nobody writes."""
    made: list[Notes] = []

    def make(notes: Notes) -> IdleWriter:
        made.append(notes)
        return IdleWriter(notes)

    return WrittenJournal(Counts("nowhere"), make, lambda: NOW_MS, max_rows=max_rows), made[0]


def note(journal: WrittenJournal, rows: int = 1) -> None:
    """Note a flush of this many rows."""
    _, entries, outcomes = flush_of(range(rows))
    journal.flushed(entries, outcomes)


async def test_a_flush_tells_what_was_acknowledged(tmp_path: Path) -> None:
    """A refused key gives no row; a superseded one gives the record that stands."""
    journal = Recording()
    meta = FakeMeta({B: record(50)})
    async with core_over(tmp_path, meta, knows=["g"], journal=journal) as core:
        for shard in ("a", "b", "c"):
            await commit(core, 7, shard)
        meta.faults.append(refusing(meta, {"c"}))
        await core.flusher.flush_once()
        assert journal.told() == [("flush", "a", None, (1, 7), True), ("flush", "b", None, (1, 50), True)]


async def test_a_flush_that_was_not_answered_tells_nothing(tmp_path: Path) -> None:
    """Its result is unknown; the next flush is noted."""
    journal = Recording()
    meta = FakeMeta()
    meta.faults.append(MetaUnavailableError("down by the test"))
    async with core_over(tmp_path, meta, knows=["g"], journal=journal) as core:
        await commit(core, 7, "a")
        with pytest.raises(MetaUnavailableError):
            await core.flusher.flush_once()
        assert journal.told() == []
        await core.flusher.flush_once()
        assert journal.told() == [("flush", "a", None, (1, 7), True)]


async def test_a_rewind_is_told_when_it_is_committed(tmp_path: Path) -> None:
    """With the positions before and after it. Other commits give no row of this kind."""
    journal = Recording()
    async with core_over(tmp_path, FakeMeta(), knows=["g"], journal=journal) as core:
        await commit(core, 9, "a", overwrite=True)
        await commit(core, 12, "a", overwrite=True)
        await commit(core, 3, "a")
        assert journal.told() == []
        await commit(core, 4, "a", overwrite=True)
        await commit(core, 2, "a", overwrite=True)
        assert journal.told() == [("rewind", "a", (1, 12), (2, 4), True), ("rewind", "a", (2, 4), (3, 2), True)]
        await core.flusher.flush_once()
        assert journal.told() == [("flush", "a", None, (3, 2), True)]


async def test_what_is_written_through_is_told_like_a_flush(tmp_path: Path) -> None:
    """Rewinds too, with the record before; a refused commit gives no row."""
    journal = Recording()
    meta = FakeMeta()
    async with core_over(tmp_path, meta, knows=["g"], journal=journal, **THROUGH) as core:
        await commit(core, 9, "a", overwrite=True)
        assert journal.told() == [("flush", "a", None, (1, 9), True)]
        await commit(core, 4, "a", overwrite=True)
        assert journal.told() == [("rewind", "a", (1, 9), (2, 4), True), ("flush", "a", None, (2, 4), True)]
        await commit(core, 5, "a", overwrite=True)
        assert journal.told() == [("flush", "a", None, (2, 5), True)]
        meta.faults.append(refusing(meta, {"a"}, Status.CONFLICT))
        with pytest.raises(Exception, match="refused"):
            await commit(core, 3, "a", overwrite=True)
        assert journal.told() == []


async def test_an_admins_changes_are_told_with_what_stood_before(tmp_path: Path) -> None:
    """Reset, clone and delete; a dry run and unchanged shards give no row."""
    journal = Recording()
    async with core_over(tmp_path, FakeMeta({A: record(9)}), journal=journal) as core:
        await core.resets.reset(Wanted(G, ()), Reset(To.OFFSET, 2), execute=False)
        await core.resets.reset(Wanted(G, ()), Reset(To.CURRENT), execute=True)
        assert journal.told() == []
        await core.resets.reset(Wanted(G, ["a", "b"]), Reset(To.OFFSET, 2, create=True), execute=True)
        assert journal.told() == [("reset", "a", (1, 9), (ERA, 2), True), ("reset", "b", None, (ERA, 2), True)]
        await core.resets.clone(Wanted(G, ["a"]), GroupKey("default", "h"), execute=True)
        assert journal.told() == [("clone", "a", None, (ERA, 2), True)]
        await core.resets.delete(Wanted(G, ["a"]), execute=True)
        await core.resets.delete(Wanted(G, ["a"]), execute=True)
        assert journal.told() == [("delete", "a", (ERA, 2), (2 * ERA, 0), False)]


async def test_of_a_change_that_fails_half_way_the_first_half_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Meta Service has it."""
    monkeypatch.setattr("adapter.sidecar.engine.reset_writer.SAVE_ENTRIES", 1)
    journal = Recording()
    meta = FakeMeta({A: record(9), B: record(9)})
    async with core_over(tmp_path, meta, journal=journal) as core:

        async def applies(entries: Any) -> Any:
            meta.faults.append(MetaUnavailableError("down by the test"))
            return meta.apply(entries)

        meta.faults.append(applies)
        with pytest.raises(MetaUnavailableError, match="1 of 2 offsets changed"):
            await core.resets.reset(Wanted(G, ()), Reset(To.OFFSET, 2), execute=True)
    assert journal.told() == [("reset", "a", (1, 9), (ERA, 2), True)]


async def test_a_change_that_lost_is_not_told(tmp_path: Path) -> None:
    """Somebody else's concurrent reset is in a later era."""
    journal = Recording()
    meta = FakeMeta({A: record(9)})
    async with core_over(tmp_path, meta, journal=journal) as core:

        async def overtaken(entries: Any) -> Any:
            meta.records[A] = OffsetRecord(5 * ERA, 1)
            return meta.apply(entries)

        meta.faults.append(overtaken)
        with pytest.raises(Exception, match="read back"):
            await core.resets.reset(Wanted(G, ["a"]), Reset(To.OFFSET, 2), execute=True)
    assert journal.told() == []


async def test_a_delete_where_no_epochs_are_known_is_told(tmp_path: Path) -> None:
    """Such a server has a separate call for deletes."""
    journal = Recording()
    meta = FakeMeta()
    async with core_over(tmp_path, meta, knows=["g"], journal=journal) as core:
        await commit(core, 9, "a")
        await core.flusher.flush_once()
        journal.told()
        meta.kind = OFFSETS_ONLY
        await core.resets.delete(Wanted(G, ["a"]), execute=True)
        assert journal.told() == [("delete", "a", (1, 9), (ERA, 0), False)]


async def test_an_import_is_told_where_it_moved_something(tmp_path: Path) -> None:
    """Besides the save itself; a dry run, and keys with a larger value, give no row."""
    journal = Recording()
    async with core_over(tmp_path, FakeMeta({A: record(9), B: record(90)}), journal=journal) as core:
        offered = commit_of({A: 12, B: 12})
        await core.resets.merge(offered, execute=False)
        assert journal.told() == []
        await core.resets.merge(offered, execute=True)
        told = journal.told()
        assert [row for row in told if row[0] == "import"] == [("import", "a", (1, 9), (1, 12), True)]
        assert {row[1:4] for row in told if row[0] == "flush"} == {("a", None, (1, 12))}  # b stands: it is not sent


async def test_what_expires_is_told(tmp_path: Path) -> None:
    """With the position that stays in the tombstone; a group that does not expire gives no row."""
    journal = Recording()
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta, journal=journal) as core:
        await flushed(core, shards(["a", "b"]))
        journal.told()
        expiry = expiry_of(core)
        expiry._journal = journal
        await expiry_of(core, retention_hours=HOUR_MS // 10_000).sweep_once()
        assert journal.told() == []
        await expiry.sweep_once()
        assert journal.told() == [("expire", name, (1, 5), (1, 5), False) for name in ("a", "b")]


async def test_a_recoverys_push_is_told_as_the_flush_that_it_is(tmp_path: Path) -> None:
    """It goes through the flusher."""
    journal = Recording()
    async with core_over(tmp_path, FakeMeta(), knows=["g"]) as core:
        await commit(core, 7, "a")
    async with core_over(tmp_path, FakeMeta(), recovered=False, journal=journal) as core:
        await core.recovery.run()
        assert journal.told() == [("flush", "a", None, (1, 7), True)]


def test_rows_that_have_no_room_are_dropped_and_counted() -> None:
    """The queue is bounded; a single flush above the bound is accepted when the queue is empty."""
    journal, notes = idle_journal(max_rows=10)
    note(journal, 25)
    note(journal, 3)
    journal.moved("rewind", [Moved(A, record(5), record(4, 2))])
    assert (notes.counts.queued, notes.counts.dropped) == (25, 4)
    assert notes.take()
    note(journal)
    assert (notes.counts.queued, notes.counts.dropped) == (1, 4)


def test_an_outage_is_logged_once() -> None:
    """A second outage, after everything was written, is logged again."""
    journal, notes = idle_journal(max_rows=2)
    with capture_logs() as logs:
        for _ in range(6):
            note(journal)
        notes.take()
        for _ in range(3):
            note(journal)
        assert [entry["event"] for entry in logs] == ["journal.overflowed"]
        while notes.take():
            pass
        for _ in range(4):
            note(journal)
    assert [entry["event"] for entry in logs] == ["journal.overflowed"] * 2


async def test_a_writer_that_hangs_holds_up_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits and flushes do not wait for the journal's disk; when it continues, nothing is missing."""
    made: list[BrokenFiles] = []

    class Hanging(BrokenFiles):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.gate.clear()
            made.append(self)

    monkeypatch.setattr("adapter.sidecar.journal.segments.SegmentFiles", Hanging)
    journal = journal_of(BROKER, section_of(tmp_path / "j"))
    async with journal.running():
        async with core_over(tmp_path, FakeMeta(), knows=["g"], journal=journal) as core:
            await commit(core, 1, "a")
            await core.flusher.flush_once()
            await eventually(made[0].entered.is_set)
            for offset in range(2, 50):
                await commit(core, offset, "a")
                await core.flusher.flush_once()
            assert core.ledger.store.states.is_loaded(G)
            assert journal.counts
            assert (journal.counts.rows, journal.counts.queued) == (0, 48)
        made[0].gate.set()
    assert offsets_in(tmp_path / "j") == list(range(1, 50))
    assert (journal.counts.dropped, journal.counts.failures) == (0, 0)


async def test_rows_get_the_bounds_that_commits_told(tmp_path: Path) -> None:
    """Each row has the newest low and high watermark of its shard."""
    journal = journal_of(BROKER, section_of(tmp_path / "j"))
    async with journal.running(), core_over(tmp_path, FakeMeta(), knows=["g"], journal=journal) as core:
        core.bounds.note({ShardKey("default", "a"): Bounds(3, 99, NOW_MS)})
        await commit(core, 7, "a")
        await core.flusher.flush_once()
        await eventually(lambda: bool(journal.counts and journal.counts.rows))
    (row,) = rows_in(tmp_path / "j")
    assert (row["low_watermark"], row["high_watermark"], row["watermark_at"].timestamp() * 1000) == (3, 99, NOW_MS)


async def test_a_bad_path_stops_neither_start_nor_commits(tmp_path: Path) -> None:
    """The status shows the error; rows that cannot be written are counted at the end."""
    (tmp_path / "file").write_text("in the way")
    meta = FakeMeta()
    config = adapter_config(tmp_path, journal={"path": str(tmp_path / "file" / "journal")})
    async with running_sidecar(config, meta) as sidecar:
        core = sidecar.core()
        await commit(core, 7, "a")
        await core.flusher.flush_once()
        await eventually(lambda: sidecar.status.reply().journal.last_error != "")
        status = sidecar.status.reply()
        assert "file" in status.journal.last_error
        assert sidecar.gauges.counters()["journal_failures"][1] >= 1
        assert meta.records[A].offset == 7
    assert sidecar.status.reply().journal.dropped_rows == 1


async def test_the_status_and_the_metrics_show_the_journal(tmp_path: Path) -> None:
    """A journal that is off is not shown."""
    async with running_sidecar(adapter_config(tmp_path), FakeMeta()) as sidecar:
        assert not sidecar.status.reply().HasField("journal")
        assert not any("journal" in name for name in (*sidecar.gauges.gauges(), *sidecar.gauges.counters()))
    config = adapter_config(tmp_path, journal={"path": str(tmp_path / "j")})
    async with running_sidecar(config, FakeMeta()) as sidecar:
        await commit(sidecar.core(), 7, "a")
        await sidecar.core().flusher.flush_once()
        await eventually(lambda: sidecar.status.reply().journal.rows == 1)
        status = sidecar.status.reply().journal
        assert (status.path, status.dropped_rows, status.segments, status.last_error) == (str(tmp_path / "j"), 0, 0, "")
        assert sidecar.gauges.counters()["journal_rows"][1] == 1
        assert sidecar.gauges.gauges()["journal_queued_rows"][1] == 0
        registry = sidecar._metrics.registry
        assert registry.get_sample_value("offset_adapter_journal_rows_total") == 1
    assert sidecar.status.reply().journal.segments == 1


def test_without_a_path_there_is_no_journal() -> None:
    """The process does not import pyarrow then."""
    assert journal_of(BROKER, JournalSection()) is NO_JOURNAL
    code = "import sys, adapter.sidecar, adapter.cli.main; sys.exit('pyarrow' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_journal_without_its_extra_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs it."""
    for name in ("segments", "writer", "rows", "frames"):
        monkeypatch.delitem(sys.modules, f"adapter.sidecar.journal.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pyarrow is not installed: pip install 'pyarrow<27,>=22'"):
        journal_of(BROKER, section_of(tmp_path))


async def test_a_note_is_at_the_time_of_the_event(tmp_path: Path) -> None:
    """Not at the time when it is written."""
    made: list[Notes] = []

    def make(notes: Notes) -> IdleWriter:
        made.append(notes)
        return IdleWriter(notes)

    time = SetTime()
    journal = WrittenJournal(Counts(str(tmp_path)), make, time.clocks.now_ms)
    await send_one(tmp_path, journal)
    time.passes(5)
    journal.moved("reset", [Moved(A, None, record(1))])
    taken: list[Note] = list(iter(made[0].take, None))
    assert [found.at_ms for found in taken] == [NOW_MS, NOW_MS + 5]


async def send_one(directory: Path, journal: WrittenJournal) -> None:
    """A commit and its flush."""
    async with core_over(directory, FakeMeta(), knows=["g"], journal=journal) as core:
        await send(core, commit_of({A: 3}))
        await core.flusher.flush_once()
