"""A batch of the lag job exists as a whole or not at all, whichever step the job is stopped at; what nobody needs is deleted."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapter.errors import AdapterError
from adapter.pipeline.lag.files import STATE, TABLES, BatchInfo, LagFiles
from adapter.pipeline.lag.publisher import READERS_S, Publisher
from adapter.pipeline.places import Place

HOUR_US = 3_600_000_000
ALL = (*TABLES, STATE)


class Output:
    """An output directory, with a clock that the test sets."""

    def __init__(self, path: Path, keep_hours: int = 48) -> None:
        self.path = path
        self.files = LagFiles(Place.of(path))
        self.now = 0.0
        self.keep_hours = keep_hours
        self.publisher = self.started()

    def started(self) -> Publisher:
        """A publisher, as after a start of the job."""
        self.publisher = Publisher(self.files, self.keep_hours, clock=lambda: self.now)
        return self.publisher

    def write(self, batch: int, text: str) -> BatchInfo:
        """Write the files of a batch, one for each table, which contain the text; returns its manifest."""
        files = {}
        for name in ALL:
            path = f"{name}/batch={batch}/0-{text}.parquet"
            (self.files.output / path).write(text.encode())
            files[name] = [path]
        return BatchInfo(batch, rows=1, now=batch, settled=batch, plan=text, files=files)

    def make(self, batch: int, text: str = "", now: int | None = None) -> None:
        """Make a batch complete."""
        self.publisher.begin(batch)
        info = self.write(batch, text or f"of-{batch}")
        self.publisher.publish(BatchInfo.from_json(info.to_json()) if now is None else with_now(info, now))

    def shown(self, batch: int) -> set[str]:
        """The content of all files that the manifest lists."""
        info = self.files.info(batch)
        return {place.read().decode() for name in ALL for place in self.files.places(info, name)}

    def there(self, name: str) -> dict[int, list[str]]:
        """The files of a table that are there, by batch."""
        found: dict[int, list[str]] = {}
        for path in sorted((self.path / name).glob("batch=*/*")):
            found.setdefault(int(path.parent.name.removeprefix("batch=")), []).append(path.name)
        return found


def with_now(info: BatchInfo, now: int) -> BatchInfo:
    """The same manifest of another time."""
    return BatchInfo(**{**json.loads(info.to_json()), "now": now})


@pytest.fixture
def output(tmp_path: Path) -> Output:
    """An empty output directory."""
    return Output(tmp_path)


def test_a_batch_begins_with_the_last_complete_one_before_it(output: Output) -> None:
    """Never with itself or a newer one."""
    assert output.publisher.begin(0) is None
    for batch in range(3):
        output.make(batch)
    before = output.publisher.begin(2)
    assert before is not None
    assert before.batch == 1
    after_a_start = output.started().begin(2)
    assert after_a_start == before


@pytest.mark.parametrize("step", ["delete what is not listed", "manifest"])
def test_a_batch_that_is_stopped_before_its_manifest_does_not_exist_and_can_be_made_again(
    output: Output, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The repeated batch has the files of the second attempt only."""
    output.make(0)
    output.publisher.begin(1)
    info = output.write(1, "torn")
    stop: Callable[..., None] = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(*((Publisher, "_delete_unlisted", stop) if step != "manifest" else (Place, "write", stop)))
        with pytest.raises(KeyboardInterrupt):
            output.publisher.publish(info)
    assert output.files.complete() == [0]
    output.started().sweep()
    assert 1 not in output.there(STATE)
    output.make(1, "again")
    assert output.shown(1) == {"again"}
    assert output.there("shards")[1] == ["0-again.parquet"]


def test_a_batch_that_was_made_complete_before_the_crash_is_done(output: Output) -> None:
    """Spark repeats it; the same segments give the same tables, which are there. Other segments are another batch."""
    output.make(0, "first")
    publisher = output.started()
    publisher.sweep()
    done = publisher.done(0, "first")
    assert done is not None
    assert done.files["shards"] == ["shards/batch=0/0-first.parquet"]
    assert publisher.done(0, "other segments") is None
    assert publisher.done(0, "") is None
    assert publisher.done(1, "first") is None


def test_a_complete_batch_that_is_made_again_stays_readable_until_it_is_replaced(output: Output) -> None:
    """Until the new manifest is written, the old one and all its files are there."""
    output.make(0)
    output.make(1, "one")
    output.publisher.begin(1)
    info = output.write(1, "again")
    assert output.shown(1) == {"one"}
    write = Place.write
    seen: list[set[str]] = []

    def noted(place: Place, content: bytes) -> None:
        seen.append(output.shown(1))
        write(place, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Place, "write", noted)
        output.publisher.publish(info)
    assert seen == [{"one"}]
    assert output.shown(1) == {"again"}
    assert output.there("groups")[1] == ["0-again.parquet"]
    assert output.files.complete() == [0, 1]


def test_files_of_tasks_that_failed_or_were_repeated_are_deleted(output: Output) -> None:
    """Before the manifest; those that come later, with the next batch or at the next start. Listed ones are never deleted."""
    output.publisher.begin(0)
    info = output.write(0, "good")
    output.write(0, "torn")
    output.publisher.publish(info)
    assert [output.there(name)[0] for name in ALL] == [["0-good.parquet"]] * len(ALL)
    output.write(0, "late")
    output.make(1)
    assert output.there("shards")[0] == ["0-good.parquet"]
    output.write(0, "later")
    output.write(2, "begun")
    output.started().sweep()
    assert output.there("rejects") == {0: ["0-good.parquet"], 1: ["0-of-1.parquet"]}


def test_what_is_as_large_as_the_fleet_is_kept_for_two_batches_and_for_its_readers(output: Output) -> None:
    """The newest may be repeated, which needs the one before it. Other tables are kept longer."""
    for batch in range(4):
        output.make(batch)
        output.now += READERS_S / 2
    assert list(output.there(STATE)) == [2, 3]
    assert list(output.there("shards")) == [0, 1, 2, 3]
    output.make(4)
    assert list(output.there("shards")) == [1, 2, 3, 4]
    assert output.files.kept("shards") == [3, 4]
    assert list(output.there("groups")) == output.files.kept("groups") == [0, 1, 2, 3, 4]
    output.started().sweep()
    assert list(output.there("shards")) == [3, 4]
    assert output.files.complete() == [0, 1, 2, 3, 4]


def test_old_batches_go_by_the_clock_of_the_journals(tmp_path: Path) -> None:
    """A repeated batch removes the same ones; the two newest stay, however old they are."""
    output = Output(tmp_path, keep_hours=2)
    for batch, hour in enumerate((0, 1, 2, 3, 9)):
        output.make(batch, now=hour * HOUR_US)
        assert output.files.complete() == list(output.there("groups"))
    assert output.files.complete() == [3, 4]


@pytest.mark.parametrize("batch", [0, 2])
def test_a_batch_before_complete_ones_is_refused_and_they_are_kept(output: Output, batch: int) -> None:
    """The checkpoint is gone, or an older one: the journals may not have the rows of all of them any more."""
    for number in range(4):
        output.make(number)
    with pytest.raises(
        AdapterError, match=rf"has batches up to 3, and by the checkpoint {batch} is next: .* remove the directory"
    ):
        output.started().begin(batch)
    assert output.files.complete() == [0, 1, 2, 3]
    assert output.started().begin(3) is not None


@pytest.mark.parametrize("lost", ["the state", "the batch"])
def test_a_batch_whose_base_is_gone_is_refused(output: Output, lost: str) -> None:
    """The error says what to do."""
    if lost == "the state":
        for batch in range(3):
            output.make(batch)
        for path in (output.path / STATE / "batch=2").iterdir():
            path.unlink()
    with pytest.raises(AdapterError, match="remove the directory"):
        output.started().begin(3)


def test_a_driver_that_has_lost_its_lock_writes_no_manifest(tmp_path: Path) -> None:
    """Its files are deleted by the one that took over."""

    def lost() -> None:
        raise AdapterError("taken over")

    output = Output(tmp_path)
    publisher = Publisher(output.files, 48, lost)
    publisher.begin(0)
    with pytest.raises(AdapterError, match="taken over"):
        publisher.publish(output.write(0, "late"))
    assert output.files.complete() == []


def test_a_manifest_of_another_release_says_what_to_do(output: Output) -> None:
    """Its files cannot be known."""
    output.files.manifest(0).write(b'{"batch": 0, "rows": 1, "now": 5, "odd": 0, "rejects": 0, "brokers": {}}')
    with pytest.raises(AdapterError, match=r"of another release .* remove the directory"):
        output.files.info(0)


def test_a_table_is_read_from_the_files_of_its_manifest(output: Output) -> None:
    """Not from others in its directory."""
    paths = [f"groups/batch=0/{number}-x.parquet" for number in range(3)]
    for number, path in enumerate(paths):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"group": [str(number)], "lag": [number]}), sink)
        (output.files.output / path).write(sink.getvalue().to_pybytes())
    output.files.manifest(0).write(BatchInfo(0, 2, 0, 0, files={"groups": paths[:2]}).to_json())
    assert output.files.read(0, "groups").to_pylist() == [{"group": "0", "lag": 0}, {"group": "1", "lag": 1}]
    assert output.files.read(0, "groups", ["lag"]).column_names == ["lag"]


def test_the_history_ends_at_its_age_or_where_batches_are_deleted(tmp_path: Path) -> None:
    """Ascending, however many there are; the newest one always belongs to it."""
    files = LagFiles(Place.of(tmp_path))
    assert files.history(HOUR_US) == []
    for batch in range(600):
        files.manifest(batch).write(BatchInfo(batch, rows=0, now=10 * batch, settled=0).to_json())
    assert [info.batch for info in files.history(1_000)] == [*range(499, 600)]
    assert [info.batch for info in files.history(HOUR_US)] == [*range(600)]
    assert [info.batch for info in files.history(0)] == [599]


def test_a_manifest_that_is_deleted_while_the_history_is_read_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All before it are deleted, too."""
    files = LagFiles(Place.of(tmp_path))
    for batch in (5, 6):
        files.manifest(batch).write(BatchInfo(batch, rows=0, now=batch, settled=0).to_json())
    monkeypatch.setattr(LagFiles, "complete", lambda _: [3, 4, 5, 6])
    assert [info.batch for info in files.history(HOUR_US)] == [5, 6]
