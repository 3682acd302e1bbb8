"""A batch of the lag job becomes visible as a whole, whichever step the job is stopped at."""

from pathlib import Path

import pytest

from adapter.errors import AdapterError
from adapter.pipeline.lag import files as lag_files
from adapter.pipeline.lag.files import TABLES, BatchInfo, LagFiles


def stage(files: LagFiles, batch: int, text: str) -> None:
    """Begin a batch and write all its parts."""
    files.begin(batch)
    for name in (*TABLES, "state"):
        files.staged(name).mkdir()
        (files.staged(name) / "part").write_text(text)


def make(files: LagFiles, batch: int, text: str) -> None:
    """Write a complete batch."""
    stage(files, batch, text)
    files.publish(BatchInfo(batch, rows=1, now=batch))


def shown(files: LagFiles, batch: int) -> set[str]:
    """The content of each part of a batch."""
    places = [files.output / name / f"batch={batch}" / "part" for name in TABLES]
    return {path.read_text() for path in [*places, files.state(batch, "part")]}


def test_a_batch_begins_with_the_last_whole_one_before_it(tmp_path: Path) -> None:
    """Never with itself or a newer one."""
    files = LagFiles(tmp_path)
    assert files.before(0) is None
    for batch in range(3):
        make(files, batch, "first")
    before = files.before(2)
    assert before == BatchInfo(1, rows=1, now=1)


def test_a_batch_that_is_stopped_at_any_rename_is_not_whole_and_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of the renames, and before the mark."""
    replace = lag_files._replace
    for stop_at in range(len(TABLES) + 2):
        files = LagFiles(tmp_path / str(stop_at))
        make(files, 0, "zero")
        stage(files, 1, "torn")
        renames = 0

        def stopped(staged: Path, place: Path, stop_at: int = stop_at) -> None:
            nonlocal renames
            if renames == stop_at:
                raise KeyboardInterrupt
            renames += 1
            replace(staged, place)

        with monkeypatch.context() as patch:
            patch.setattr(lag_files, "_replace", stopped)
            patch.setattr("adapter.runtime.files.write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                files.publish(BatchInfo(1, rows=1, now=1))
        assert files.complete() == [0]
        before = files.before(1)
        assert before is not None
        assert before.batch == 0
        make(files, 1, "again")
        assert shown(files, 1) == {"again"}
        assert files.complete() == [0, 1]


def test_a_whole_batch_that_is_made_again_is_not_whole_meanwhile(tmp_path: Path) -> None:
    """While its tables are replaced, its state must not be the base of another batch."""
    files = LagFiles(tmp_path)
    make(files, 0, "zero")
    make(files, 1, "one")
    stage(files, 1, "again")
    assert files.complete() == [0]
    assert shown(files, 1) == {"one"}
    files.publish(BatchInfo(1, rows=1, now=1))
    assert shown(files, 1) == {"again"}


def batches(directory: Path) -> list[int]:
    """The batches with files in a directory."""
    return sorted(int(path.name.removeprefix("batch=")) for path in directory.iterdir())


def test_what_is_as_large_as_the_fleet_is_kept_for_the_two_newest_batches(tmp_path: Path) -> None:
    """The newest may be repeated, which needs the one before it. Other tables are kept longer."""
    files = LagFiles(tmp_path)
    for batch in range(4):
        make(files, batch, str(batch))
    assert [batches(tmp_path / name) for name in ("state", "shards")] == [[2, 3]] * 2
    assert [batches(tmp_path / name) for name in TABLES if name != "shards"] == [[0, 1, 2, 3]] * 3


def test_old_batches_go_by_the_clock_of_the_journals(tmp_path: Path) -> None:
    """A repeated batch removes the same ones; the two newest stay, however old they are."""
    files = LagFiles(tmp_path, keep_hours=2)
    for batch, hour in enumerate((0, 1, 2, 3, 9)):
        stage(files, batch, str(batch))
        files.publish(BatchInfo(batch, rows=1, now=hour * 3_600_000_000))
        assert files.complete() == batches(tmp_path / "groups")
    assert files.complete() == [3, 4]


def test_what_is_newer_than_the_batch_is_of_a_lost_checkpoint_and_is_removed(tmp_path: Path) -> None:
    """Otherwise an old batch would be taken for the newest one."""
    files = LagFiles(tmp_path)
    for batch in range(4):
        make(files, batch, "former life")
    make(files, 0, "new life")
    assert files.complete() == [0]
    assert [path.name for path in (tmp_path / "groups").iterdir()] == ["batch=0"]
    assert shown(files, 0) == {"new life"}


def test_a_batch_whose_base_is_gone_is_refused(tmp_path: Path) -> None:
    """The error says what to do."""
    files = LagFiles(tmp_path)
    with pytest.raises(AdapterError, match="remove the directory"):
        files.before(3)
