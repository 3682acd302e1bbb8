"""The history of the lag job as Delta tables: each batch once, by days, with what the columns mean."""

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from adapter.errors import AdapterError, ConfigError
from adapter.pipeline.config import HistorySection
from adapter.pipeline.lag import history as history_module
from adapter.pipeline.lag import schemas
from adapter.pipeline.lag.files import BatchInfo, LagFiles
from adapter.pipeline.lag.history import History, storage
from adapter.pipeline.places import Place
from tests.pipeline.object_store import SECRET, s3_bucket

DAY_US = 86_400_000_000
NOON_US = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000


@pytest.fixture
def files(tmp_path: Path) -> LagFiles:
    """An output of the lag job."""
    return LagFiles(Place.of(tmp_path / "lag"))


@pytest.fixture
def delta(tmp_path: Path) -> Place:
    """Where the history is."""
    return Place.of(tmp_path / "a b")


def batch(files: LagFiles, number: int, now: int = NOON_US, rewinds: int = 0) -> BatchInfo:
    """A complete batch with two groups."""
    at = datetime.fromtimestamp(now / 1e6, UTC)
    rows = {
        "groups": [{"evaluated_at": at, "namespace": "n", "group": group, "total_lag": number} for group in ("g", "h")],
        "rewinds": [{"at": at, "group": "g", "offset": number}] * rewinds,
        "rejects": [],
    }
    listed = {}
    for name, schema in (("groups", schemas.GROUPS), ("rewinds", schemas.REWINDS), ("rejects", schemas.REJECTS)):
        place = files.directory(name, number) / "0.parquet"
        place.path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows[name], schema), place.path)
        listed[name] = [f"{name}/batch={number}/0.parquet"]
    return BatchInfo(number, rows=1, now=now, settled=now, files=listed)


def rows(table: Place) -> list[tuple[str, str, int]]:
    """Stream, group and batch of the rows, in order."""
    found = pa.table(DeltaTable(*_opened(table)).to_pyarrow_dataset().to_table())
    return sorted((row["stream"], row["group"], row["batch"]) for row in found.to_pylist())


def _opened(table: Place) -> tuple[str, None, dict[str, str]]:
    url, options = storage(table)
    return url, None, options


def test_a_batch_is_appended_once(files: LagFiles, delta: Place) -> None:
    """Also by a job that was killed after it, or between two of its tables. Another stream counts its own batches."""
    first = batch(files, 0, rewinds=1)
    for _ in range(2):
        History(files, HistorySection(delta=delta)).add(first, "s")
    later = History(files, HistorySection(delta=delta))
    later.add(dataclasses.replace(first, files={**first.files, "rewinds": first.files["rejects"]}), "t")  # killed before rewinds
    later.add(first, "t")
    later.add(batch(files, 1), "t")
    assert rows(delta / "groups") == [("s", "g", 0), ("s", "h", 0), ("t", "g", 0), ("t", "g", 1), ("t", "h", 0), ("t", "h", 1)]
    assert rows(delta / "rewinds") == [("s", "g", 0), ("t", "g", 0)]
    assert not DeltaTable.is_deltatable(str(delta / "rejects"))  # nothing to append


def test_columns_have_their_comments_and_the_date_is_the_partition(files: LagFiles, delta: Place) -> None:
    """As Delta's readers show them: DESCRIBE in Spark."""
    History(files, HistorySection(delta=delta)).add(batch(files, 0), "s")
    table = DeltaTable(str(delta / "groups"))
    comments = {field.name: field.metadata.get("comment") for field in table.schema().fields}
    assert comments["max_lag_seconds"] == "seconds: the largest known one of a shard"
    assert comments["date"] == "of the batch, in UTC"
    assert table.metadata().partition_columns == ["date"]


def test_days_are_compacted_and_old_ones_deleted(files: LagFiles, delta: Place) -> None:
    """By the time of the journals, when a new day begins."""
    history = History(files, HistorySection(delta=delta, keep_days=2))
    for number, day in enumerate((0, 0, 0, 1, 1, 3)):
        history.add(batch(files, number, NOON_US + day * DAY_US), "s")
    table = DeltaTable(str(delta / "groups"))
    assert {group: (batch) for _, group, batch in rows(delta / "groups")} == {"g": 5, "h": 5}
    assert sorted({number for _, _, number in rows(delta / "groups")}) == [3, 4, 5]
    assert len(table.file_uris()) == 2  # one of the day before, one of today


def test_a_history_behind_a_url_and_its_errors_have_no_credentials(files: LagFiles) -> None:
    """In an object store, which the library reaches by options of its own."""
    with s3_bucket() as bucket:
        place = bucket / "history"
        History(files, HistorySection(delta=place)).add(batch(files, 0), "s")
        assert rows(place / "groups") == [("s", "g", 0), ("s", "h", 0)]
        entries = [entry.path for entry in place.entries(recursive=True) if not entry.is_directory]
        assert all(SECRET.encode() not in (place / path).read() for path in entries)
        gone = Place(bucket.url.replace("@bucket", "@nobody")) / "history"
    with pytest.raises(AdapterError, match=r"^\[lag.history\] delta: s3a://nobody/history/groups") as raised:
        History(files, HistorySection(delta=gone)).add(batch(files, 0), "s")
    assert SECRET not in str(raised.value)
    with pytest.raises(ConfigError, match="has credentials in the URL") as refused:
        History(files, HistorySection(delta=Place.of("hdfs://user:s3cr3t@host/a")))
    assert SECRET not in str(refused.value)


def test_without_the_library_the_extra_is_named(files: LagFiles, delta: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """And without the setting it is not needed."""

    def missing(name: str) -> SimpleNamespace:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(history_module, "import_module", missing)
    History(files, HistorySection())
    with pytest.raises(ConfigError, match=r"deltalake is not installed: pip install 'deltalake<2,>=1.6'"):
        History(files, HistorySection(delta=delta))
