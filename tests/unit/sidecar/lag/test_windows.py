"""What a restart must not hide: the verdict on a group that is dead, or hangs; and what it must not make up."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from adapter.model.lag_rows import Commits, LagSettings
from adapter.rpc import lag_pb
from adapter.sidecar.lag import table
from adapter.sidecar.lag.windows import Windows, WindowsFile
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import core_over
from tests.unit.sidecar.lag.lagging import Lagging, lagging

OK, STALL, STOP, UNKNOWN = lag_pb.OK, lag_pb.STALL, lag_pb.STOP, lag_pb.LAG_STATUS_UNSPECIFIED
BEYOND = lag_pb.BEYOND


@asynccontextmanager
async def restarted(before: Lagging, meta: FakeMeta, away_s: float = 1) -> AsyncIterator[Lagging]:
    """The same store after a restart, which takes some time, before its first evaluation. Nobody has told any bounds."""
    again = Lagging(before.config.store.path.parent)
    again.now_ms = before.now_ms
    again.pass_s(away_s)
    again.windows = before.windows
    async with core_over(before.config.store.path.parent, meta, clocks=again.clocks) as core:
        again.follow(core)
        yield again


def statuses(lag: Lagging) -> tuple[int, int]:
    """Of the group and its shard."""
    group, shard = lag.group(), lag.shard()
    assert group is not None
    assert shard is not None
    return group.status, shard.status


async def stopped(lag: Lagging) -> None:
    """A group that commits no more, and is known to be so on the disk."""
    for offset in (10, 20, 30):
        await lag.step(offset, 100)
    await lag.fill()
    lag.pass_s(60)
    lag.tell("s", 200)
    await lag.evaluate()
    await lag.evaluate()
    assert statuses(lag) == (STOP, STOP)
    lag.pass_s(table.KEEP_MS / 1_000)
    await lag.evaluate()


async def test_a_group_that_had_stopped_is_stop_at_once_after_a_restart(tmp_path: Path) -> None:
    """Though only consumers told bounds here, and none of them commits: the last ones count, with their age."""
    meta = FakeMeta()
    async with lagging(tmp_path, meta) as lag:
        await stopped(lag)
    async with restarted(lag, meta) as again:
        await again.fill()
        shard = again.shard()
        assert shard is not None
        assert statuses(again) == (STOP, STOP)
        assert (shard.lag, shard.points, shard.bounds_at_ms) == (170, 3, lag.now_ms - table.KEEP_MS)


async def test_a_group_that_stalled_is_stall_at_once_after_a_restart(tmp_path: Path) -> None:
    """And STOP when it commits no more from then on."""
    meta = FakeMeta()
    async with lagging(tmp_path, meta) as lag:
        await lag.step(10, 100)
        await lag.fill()
        for at in range(15):
            await lag.step(10, 100 + at)
    async with restarted(lag, meta) as again:
        await again.fill()
        assert statuses(again) == (STALL, STALL)
        await again.step(10, 120)
        assert statuses(again) == (STALL, STALL)
        again.pass_s(30)  # longer than its window spans
        await again.evaluate()
        assert statuses(again) == (STOP, STOP)


async def test_a_group_that_went_on_meanwhile_is_not_stop_after_a_restart(tmp_path: Path) -> None:
    """It had stopped when its window was kept, and committed before the adapter was killed."""
    meta = FakeMeta()
    async with lagging(tmp_path, meta) as lag:
        await stopped(lag)
        await lag.step(40, 200)
    async with restarted(lag, meta, away_s=3_600) as again:
        await again.fill()
        assert STOP not in statuses(again)


async def test_the_time_that_an_adapter_is_away_is_no_silence_of_its_groups(tmp_path: Path) -> None:
    """Nobody could commit to it; they have as long as ever from its start on."""
    meta = FakeMeta()
    async with lagging(tmp_path, meta) as lag:
        for offset in (10, 20, 30):
            await lag.step(offset, 100)
    async with restarted(lag, meta, away_s=3_600) as again:
        again.tell("s", 500)
        await again.fill()
        assert statuses(again) == (UNKNOWN, UNKNOWN)
        again.pass_s(9)
        await again.evaluate()
        assert statuses(again) == (UNKNOWN, UNKNOWN)
        again.pass_s(2)
        await again.evaluate()
        assert statuses(again) == (STOP, STOP)


async def test_one_stored_offset_that_nobody_moves_is_enough_for_stop(tmp_path: Path) -> None:
    """A clone that no consumer reads, or a reset that none took up: it has one commit in all."""
    async with lagging(tmp_path) as lag:
        await lag.step(10, 775_009)
        assert statuses(lag) == (UNKNOWN, UNKNOWN)
        lag.pass_s(16 * 60)
        await lag.evaluate()
        shard = lag.shard()
        assert shard is not None
        assert (statuses(lag), shard.lag, shard.points) == ((STOP, STOP), 774_999, 1)


async def test_a_group_that_has_read_all_is_not_stop_however_long_it_is_silent(tmp_path: Path) -> None:
    """One commit, no lag; then a message comes, and it has as long as any other."""
    async with lagging(tmp_path) as lag:
        await lag.step(100, 100)
        for _ in range(3):
            lag.pass_s(3_600)
            lag.tell("s", 100)
            await lag.evaluate()
        assert statuses(lag) == (OK, OK)
        lag.pass_s()
        lag.tell("s", 101)
        await lag.evaluate()
        assert statuses(lag) == (UNKNOWN, UNKNOWN)
        lag.pass_s(11)
        await lag.evaluate()
        assert statuses(lag) == (STOP, STOP)


async def test_a_shard_of_which_nothing_is_known_makes_its_group_unknown(tmp_path: Path) -> None:
    """A shard that is well does not speak for it."""
    async with lagging(tmp_path) as lag:
        await lag.commit({"t": 5})
        for offset in (100, 110, 120):
            await lag.step(offset, offset)
        group = lag.group()
        assert group is not None
        assert (group.status, group.worst_shard, group.shards, group.known) == (UNKNOWN, "t", 2, 1)


async def test_windows_outlive_a_table_that_begins_anew(tmp_path: Path) -> None:
    """What was kept last is given back."""
    async with lagging(tmp_path) as lag:
        await stopped(lag)
        lag.live.table.fail()
        lag.live._begin_anew()
        await lag.evaluate()
        await lag.fill()
        assert statuses(lag) == (STOP, STOP)


async def test_a_deleted_group_does_not_get_its_window_back(tmp_path: Path) -> None:
    """What is not in the store when it was read is not waited for."""
    meta = FakeMeta()
    async with lagging(tmp_path, meta) as lag:
        await stopped(lag)
    lag.config.store.path.rename(tmp_path / "away")
    async with restarted(lag, FakeMeta()) as again:
        await again.fill()
        await again.evaluate()
        await again.evaluate()
        await again.step(30, 300)
        shard = again.shard()
        assert shard is not None
        assert shard.points == 1


async def test_a_log_of_another_identity_begins_anew_also_after_a_restart(tmp_path: Path) -> None:
    """Its end is beyond the offset, which is that of the log before: no number is compared. A reset to it is of this log."""
    meta = FakeMeta()
    async with lagging(tmp_path, meta) as lag:
        for offset in (10, 20, 30):
            lag.pass_s()
            lag.tell("s", 1_000, log_id="a")
            await lag.commit({"s": offset})
            await lag.evaluate()
        lag.pass_s()
        lag.tell("s", 2_000, log_id="b")
        await lag.evaluate()
        shard = lag.shard()
        assert shard is not None
        assert (statuses(lag), shard.HasField("lag"), shard.HasField("produce_rate")) == ((BEYOND, BEYOND), False, False)
        assert [(one.key.shard, one.before, one.after.offset) for one in lag.noted] == [("s", lag.noted[0].after, 30)]
        await lag.fill()
        lag.pass_s(table.KEEP_MS / 1_000)
        await lag.evaluate()
        await lag.evaluate()
    async with restarted(lag, meta) as again:
        again.tell("s", 2_001, log_id="b")
        await again.fill()
        assert statuses(again) == (BEYOND, BEYOND)
        again.pass_s()
        await again.commit({"s": 5}, overwrite=True)
        await again.evaluate()
        shard = again.shard()
        assert shard is not None
        assert (shard.status, shard.lag, shard.points) == (UNKNOWN, 1_996, 1)


def windows(count: int) -> Windows:
    """Windows of so many shards."""
    settings = LagSettings()
    commits = Commits.empty(count, settings)
    commits.counts[:] = 2
    some = np.arange(count)
    return Windows(
        [b"\x01a\x01b%d" % at for at in range(count)],
        commits,
        some % 2 == 0,
        some,
        some,
        some,
        some,
        [f"log-{at}" for at in some],
    )


@pytest.mark.parametrize("damage", [b"", b"PK", b"no windows"])
def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path, damage: bytes) -> None:
    """The windows begin anew; it is replaced by the next save."""
    file = WindowsFile(tmp_path / "windows")
    assert file.load() is None
    (tmp_path / "windows").write_bytes(damage)
    assert file.load() is None
    file.save(windows(3))
    found = file.load()
    assert found is not None
    assert (found.keys, found.stopped.tolist(), found.highs.tolist()) == (windows(3).keys, [True, False, True], [0, 1, 2])
    assert found.logs == ["log-0", "log-1", "log-2"]


def test_a_file_of_a_later_form_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a step back to an earlier version."""
    file = WindowsFile(tmp_path / "windows")
    monkeypatch.setattr("adapter.sidecar.lag.windows.FORM", 2)
    file.save(windows(1))
    monkeypatch.undo()
    assert file.load() is None


def test_a_directory_that_cannot_be_written_costs_only_the_windows(tmp_path: Path) -> None:
    """Nothing is raised."""
    WindowsFile(tmp_path / "missing" / "windows").save(windows(1))
