"""A batch of the lag job, without Spark: its files, its manifest, its buckets; with tasks that are repeated."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from adapter.errors import AdapterError
from adapter.pipeline.config import LagSection
from adapter.pipeline.journal.segment import MissingSegmentError
from adapter.pipeline.lag import batch as lag_batch
from adapter.pipeline.lag import stages
from adapter.pipeline.lag.batch import buckets_after, process
from adapter.pipeline.lag.files import STATE, TABLES, BatchInfo, LagFiles
from adapter.pipeline.lag.publisher import Publisher
from adapter.pipeline.lag.schemas import GROUPS, REJECTS, REWINDS, SHARDS
from adapter.pipeline.places import Place
from tests.pipeline.frames import segments
from tests.pipeline.segments import RUN, commits, journal_table, segment_path, write_segment

GROUPS_OF_JOURNAL, SHARDS_OF_JOURNAL, CYCLES = 3, 8, 4
ROWS = CYCLES * GROUPS_OF_JOURNAL * SHARDS_OF_JOURNAL  # of a segment
SCHEMAS = {"shards": SHARDS, "groups": GROUPS, "rewinds": REWINDS, "rejects": REJECTS}


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Three segments of commits; the second one has a rewind."""
    path = tmp_path / "journal"
    for number in range(3):
        table = commits(CYCLES, GROUPS_OF_JOURNAL, SHARDS_OF_JOURNAL, first_cycle=number * CYCLES, first_seq=number * ROWS)
        if number == 1:
            last = table.slice(table.num_rows - 1).to_pylist()[0]
            back = {"kind": "rewind", "from_epoch": 0, "from_offset": last["offset"], "offset": last["offset"] - 7, "seq": 9_999}
            table = pa.concat_tables([table, journal_table([last | back])])
        write_segment(path, table, number)
    return path


class Job:
    """The lag job's output, and its batches."""

    def __init__(self, output: Path, journal: Path, **settings: Any) -> None:
        self.section = LagSection(journals=(Place.of(journal),), output=Place.of(output), **settings)
        self.files = LagFiles(self.section.output)
        self.publisher = Publisher(self.files, 48)

    def batch(self, number: int, rows: DataFrame) -> BatchInfo:
        """Process a batch."""
        return process(rows, number, f"plan of {number}", self.section, self.publisher)

    def tables(self, number: int) -> dict[str, list[dict[str, Any]]]:
        """The rows of all tables of a batch, sorted."""
        return {name: sorted(self.files.read(number, name).to_pylist(), key=repr) for name in TABLES}

    def contents(self, number: int) -> dict[str, list[bytes]]:
        """The bytes of the files of a batch, in the order of the buckets."""
        return {name: [place.read() for place in self.files.table_files(number, name)] for name in (*TABLES, STATE)}

    def there(self, number: int) -> set[str]:
        """All files of a batch that are there, below the output."""
        output = self.files.output.path
        return {str(path.relative_to(output)) for path in output.glob(f"*/batch={number}/*")}


def listed(info: BatchInfo) -> set[str]:
    """All files of a manifest."""
    return {path for paths in info.files.values() for path in paths}


def test_a_batch_has_a_file_of_state_and_shards_for_each_bucket_and_the_manifest_lists_them(
    tmp_path: Path, journal: Path
) -> None:
    """And every row of the journal is counted once."""
    job = Job(tmp_path / "lag", journal)
    info = job.batch(0, segments(journal))
    assert (info.rows, info.odd, info.rejects) == (3 * ROWS + 1, 1, 0)
    assert {name: len(paths) for name, paths in info.files.items()} == {
        "state": info.buckets,
        "shards": info.buckets,
        "groups": 1,
        "rewinds": 1,
        "rejects": 1,
    }
    assert [int(path.rpartition("/")[2][:5]) for path in info.files["state"]] == list(range(info.buckets))
    assert job.there(0) == listed(info)
    assert job.files.info(0) == info
    tables = job.tables(0)
    counts = [GROUPS_OF_JOURNAL * SHARDS_OF_JOURNAL, GROUPS_OF_JOURNAL, 1, 0]
    assert [len(tables[name]) for name in ("shards", "groups", "rewinds", "rejects")] == counts
    for name, schema in SCHEMAS.items():
        assert job.files.read(0, name).schema.names == schema.names
        assert job.files.read(0, name).schema.field(0).metadata[b"comment"] == schema.field(0).metadata[b"comment"]


def test_a_batch_that_is_repeated_has_the_same_bytes_and_replaces_the_files(tmp_path: Path, journal: Path) -> None:
    """Whatever tasks were repeated, in whatever partitions and order their parts came."""
    job = Job(tmp_path / "lag", journal)
    job.batch(0, segments(journal, [0]))
    job.batch(1, segments(journal, [1, 2]))
    before, names = job.contents(1), job.there(1)
    again = job.batch(1, segments(journal, [1, 2], partitions=3, attempts=3))
    assert job.contents(1) == before
    assert job.there(1) == listed(again)
    assert names.isdisjoint(job.there(1))


def test_batches_and_buckets_do_not_change_the_tables(tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets are split while the state goes on, and groups are combined in a stage of their own: the same rows."""
    whole = Job(tmp_path / "whole", journal)
    whole.batch(0, segments(journal))
    monkeypatch.setattr(lag_batch, "MOST_KEYS", 4)
    monkeypatch.setattr(lag_batch, "_DRIVERS_BUCKETS", 2)
    cut = Job(tmp_path / "cut", journal)
    found = [cut.batch(number, segments(journal, [number], attempts=2)) for number in range(3)]
    assert [info.buckets for info in found] == [4, 8, 8]
    assert [len(info.files["groups"]) for info in found] == [2, 4, 4]
    assert cut.tables(2)["shards"] == whole.tables(0)["shards"]
    assert cut.tables(2)["groups"] == whole.tables(0)["groups"]
    assert [row for number in range(3) for row in cut.tables(number)["rewinds"]] == whole.tables(0)["rewinds"]
    assert [info.rows for info in found] == [ROWS, ROWS + 1, ROWS]


def test_buckets_grow_by_two_until_none_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """They never shrink; a bucket of the new number is a part of one of the old number."""
    assert buckets_after(None) == lag_batch.FIRST_BUCKETS
    info = BatchInfo(0, 0, 0, 0, buckets=8, largest=lag_batch.MOST_KEYS)
    assert buckets_after(info) == 8
    monkeypatch.setattr(lag_batch, "MOST_KEYS", 10)
    assert [buckets_after(BatchInfo(0, 0, 0, 0, buckets=8, largest=largest)) for largest in (0, 10, 11, 20, 21, 81)] == [
        8,
        8,
        16,
        16,
        32,
        128,
    ]


def test_a_batch_without_segments_has_the_tables_of_the_one_before(tmp_path: Path, journal: Path) -> None:
    """Its files are its own: those of the one before are deleted some day."""
    job = Job(tmp_path / "lag", journal)
    job.batch(0, segments(journal))
    info = job.batch(1, segments(journal, []))
    assert info.rows == 0
    assert job.tables(1) == {**job.tables(0), "rewinds": []}
    assert job.there(1) == listed(info)


def test_what_cannot_be_read_is_a_reject_and_a_segment_that_a_task_does_not_find_fails_the_batch(
    tmp_path: Path, journal: Path
) -> None:
    """Nothing of it is published; the next attempt has every row."""
    job = Job(tmp_path / "lag", journal)
    segment_path(journal, "2025-12-01", "broker-1", 3).write_bytes(b"torn")
    rows = segments(journal)
    lost = segment_path(journal, "2025-12-01", "broker-1", 1, RUN)
    lost.rename(tmp_path / "lost")
    with pytest.raises(MissingSegmentError):
        job.batch(0, rows)
    assert job.files.complete() == []
    (tmp_path / "lost").rename(lost)
    info = job.batch(0, rows)
    assert (info.rows, info.rejects) == (3 * ROWS + 1 + 1, 1)
    (reject,) = job.tables(0)["rejects"]
    assert "is torn" in reject["problem"]


@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_state_that_cannot_be_read_stops_the_batch_and_says_what_to_do(tmp_path: Path, journal: Path, damage: str) -> None:
    """As it would be without its keys, the tables would be wrong."""
    job = Job(tmp_path / "lag", journal)
    info = job.batch(0, segments(journal, [0]))
    place = job.files.output / info.files[STATE][0]
    if damage == "gone":
        place.delete()
    else:
        place.write(place.read()[:-1])
    expected = "let all machines of the cluster share" if damage == "gone" else "is damaged"
    with pytest.raises(AdapterError, match=rf"{info.files[STATE][0]}: .*{expected}.* remove the directory"):
        job.batch(1, segments(journal, [1]))
    assert job.files.complete() == [0]


def test_buckets_that_have_not_heard_of_the_same_rows_are_not_published(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every bucket hears of every task; one that has missed some would be judged by another time."""
    job = Job(tmp_path / "lag", journal)
    evaluated = stages._evaluated

    def deaf(work: stages.Work, bucket: int, gathered: Any) -> Any:
        return evaluated(work, bucket, gathered[1:] if bucket == 1 else gathered)

    monkeypatch.setattr(stages, "_evaluated", deaf)
    with pytest.raises(AdapterError, match="do not agree"):
        job.batch(0, segments(journal))
    assert job.files.complete() == []
