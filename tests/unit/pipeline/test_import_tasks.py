"""What Spark's workers do in an import, without Spark: rows by bucket, tables, and that a repeated task changes nothing."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapter.errors import AdapterError, ConfigError
from adapter.model.schemas import RECORDS
from adapter.pipeline.config import ImportSection
from adapter.pipeline.offsets.reader import OffsetsReader
from adapter.pipeline.offsets.writer import OffsetsWriter
from adapter.pipeline.places import Place
from adapter.pipeline.transfer.import_files import Piece
from adapter.pipeline.transfer.import_tasks import COUNTS, REJECTS, Work, buckets_of, publish, unpacked, write_part

BUCKETS = 5


class Stored:
    """A reader of stored offsets of the group g: shard -> (epoch, offset), each in a page of its own."""

    def __init__(self, offsets: dict[str, tuple[int, int]]) -> None:
        self._offsets = offsets

    def read(self, _part: object) -> Iterator[pa.RecordBatch]:
        """Yield the pages."""
        for shard, (epoch, offset) in self._offsets.items():
            names = {"namespace": "n", "group": "g", "shard": shard, "topic": "", "metadata": ""}
            values = {"partition": 0, "epoch": epoch, "offset": offset, "live": True}
            yield pa.RecordBatch.from_pylist([{**names, **values}], RECORDS)


class Merged:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Keep the rows."""
        self.rows += [row for batch in batches for row in batch.to_pylist()]


def work(tmp_path: Path, texts: Sequence[str], stored: dict[str, tuple[int, int]] | None = None) -> Work:
    """An import of CSVs with these contents."""
    pieces = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.csv"
        path.write_text(text)
        pieces.append(Piece(Place.of(path), 1, 0, len(text)))
    section = ImportSection(format="kafka-csv", namespace="n")
    reader = cast("OffsetsReader", Stored(stored or {}))
    return Work(section, Place.of(tmp_path / "out"), "run", pieces, reader, ["all"], BUCKETS)


def numbers(*values: int) -> list[pa.RecordBatch]:
    """Work items as Spark passes them."""
    return [pa.RecordBatch.from_pydict({"id": [value]}) for value in values]


def rows(messages: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Messages one by one."""
    return [row for batch in messages for row in batch.to_pylist()]


def table(tmp_path: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table."""
    found: list[dict[str, Any]] = pq.read_table(tmp_path / "out" / name).to_pylist()
    return found


TEXTS = ("g,t,0,1\ng,t,1,5\nbad\n", "g,t,0,3\ng,t,2,2\n", "worse\n")


def test_each_key_is_compared_once_whatever_files_and_buckets_its_rows_are_in(tmp_path: Path) -> None:
    """A bucket has all rows of its keys: those of the files, and the stored one."""
    job = work(tmp_path, TEXTS, {"t/1": (1, 5), "t/2": (1, 1), "t/9": (1, 1)})
    told = rows(list(job.compare(job.read(numbers(3, 2, 0, 1)))))
    assert {(row["shard"], row["offset"], row["rows"], row["change"]) for row in table(tmp_path, "preview")} == {
        ("t/0", 3, 2, "new"),
        ("t/1", 5, 1, "unchanged"),
        ("t/2", 2, 1, "raised"),
    }
    counted = [row for row in told if row["kind"] == COUNTS]
    assert sum(unpacked(row["data"])["duplicates"][0].as_py() for row in counted) == 1
    assert [row["kind"] for row in told if row["kind"] != COUNTS] == [REJECTS]
    reason = "is not group,topic,partition,offset, nor topic,partition,offset"
    assert [(row["text"], row["place"], row["reason"]) for row in table(tmp_path, "rejects")] == [
        ("worse", "line 1", reason),
        ("bad", "line 3", reason),
    ]


def test_of_equal_offsets_that_of_the_first_file_is_named(tmp_path: Path) -> None:
    """In whatever order the tasks end."""
    job = work(tmp_path, ["g,t,0,5\n", "x\ng,t,0,5\n"])
    list(job.compare(reversed(list(job.read(numbers(0, 1))))))
    assert [(row["file"], row["place"]) for row in table(tmp_path, "preview")] == [(str(tmp_path / "0.csv"), "line 1")]


def test_repeated_tasks_write_the_same_tables_again(tmp_path: Path) -> None:
    """In any order of the messages: one file for each bucket, with the same rows."""
    job = work(tmp_path, TEXTS)
    messages = list(job.read(numbers(0, 1, 2, 3)))
    list(job.compare(messages))
    files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.parquet")}
    list(job.read(numbers(0, 1, 2, 3)))
    list(job.compare(reversed(messages)))
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.parquet")} == files
    assert len(files) > 2


def test_only_rows_of_the_preview_that_raise_an_offset_are_merged_and_read_back(tmp_path: Path) -> None:
    """A bucket in which nothing is stored afterwards is told as below."""
    job = work(tmp_path, TEXTS, {"t/1": (1, 5)})
    list(job.compare(job.read(numbers(0, 1, 2, 3))))
    keys = pa.table({"group": ["g"] * 3, "shard": ["t/0", "t/1", "t/2"]})
    merged = Merged()
    merging = sorted(set(buckets_of(keys, BUCKETS).tolist()))
    list(job.merge(numbers(*range(len(merging))), merging, cast("OffsetsWriter", merged)))
    assert {(row["shard"], row["offset"]) for row in merged.rows} == {("t/0", 3), ("t/2", 2)}
    after = work(tmp_path, TEXTS, {"t/1": (1, 5), "t/2": (1, 2)})
    told = list(after.verify(after.read_back(numbers(0)), frozenset(merging)))
    assert len(rows(told)) == len(merging)
    assert {(row["shard"], row["now_offset"], row["below"]) for row in table(tmp_path, "applied")} == {
        ("t/0", None, True),
        ("t/2", 2, False),
    }


def test_a_preview_that_another_machine_has_is_told_as_such(tmp_path: Path) -> None:
    """Not as a missing file somewhere in Spark."""
    with pytest.raises(ConfigError, match=r"run-00003.parquet: is gone, and a worker wrote it: \[import\] output has to be"):
        list(work(tmp_path, TEXTS).merge(numbers(0), [3], cast("OffsetsWriter", Merged())))


def test_a_dry_run_writes_no_table(tmp_path: Path) -> None:
    """But it tells the same."""
    job = work(tmp_path, TEXTS)
    dry = Work(job.section, None, job.run, job.pieces, job.reader, job.parts, BUCKETS)
    assert rows(list(dry.compare(dry.read(numbers(0, 1, 2, 3))))) == rows(list(job.compare(job.read(numbers(0, 1, 2, 3)))))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.csv", "1.csv", "2.csv", "out"]


def test_a_table_is_its_manifest_and_what_other_runs_left_is_deleted(tmp_path: Path) -> None:
    """A table without rows has a file with the columns."""
    place = Place.of(tmp_path / "preview")
    schema = pa.schema([("a", pa.int64())])
    write_part(place / "old-00000.parquet", schema.empty_table())
    write_part(place / "run-00001.parquet", pa.table({"a": [1]}, schema))
    publish(place, ["run-00001.parquet"], schema)
    assert sorted(path.name for path in (tmp_path / "preview").iterdir()) == ["_manifest.json", "run-00001.parquet"]
    (file,) = json.loads((place / "_manifest.json").read())["files"]
    assert file == {"name": "run-00001.parquet", "size": (tmp_path / "preview" / file["name"]).stat().st_size, "groups": 1}
    publish(place, [], schema)
    assert pq.read_table(tmp_path / "preview").schema == schema
    assert pq.read_table(tmp_path / "preview").num_rows == 0


def test_a_table_that_workers_wrote_elsewhere_is_not_published(tmp_path: Path) -> None:
    """As when each machine has a directory of its own: the previous table stands."""
    place = Place.of(tmp_path / "preview")
    schema = pa.schema([("a", pa.int64())])
    publish(place, [], schema)
    before = (place / "_manifest.json").read()
    with pytest.raises(
        AdapterError, match=r"preview: 1 of 1 files that workers wrote are not seen here, such as run-7\.parquet: name"
    ):
        publish(place, ["run-7.parquet"], schema)
    assert (place / "_manifest.json").read() == before
