"""The data of the report, from the lag job's tables, in Spark."""

import shutil
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from adapter.errors import ConfigError
from adapter.pipeline.config import JobConfig, ReportSection
from adapter.pipeline.jobs import Switches
from adapter.pipeline.places import Place
from adapter.pipeline.report import job as report_job
from adapter.pipeline.report.content import HISTORY_MS, Reject, Report, gather, over_time
from tests.pipeline import lag_tables
from tests.pipeline.lag_tables import EPOCH, START, at, complete, group, rewind, write, write_batch

START_MS = round(START.timestamp() * 1000)
BATCHES = 8
LONG_AGO_S = -HISTORY_MS / 1000 + 7_000  # more than the history before the newest data


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet's tables, with a batch and a rewind from before the history, a batch that is not complete, and an unlisted file."""
    path = tmp_path_factory.mktemp("lag")
    write_batch(path, 0, LONG_AGO_S, [group("audit-export", "OK", 1)])
    lag_tables.fleet(path, BATCHES, first=1)
    write(path, "rewinds", 1, [rewind(LONG_AGO_S, "mail", 9_000_000, 1, 8_999_999)])
    complete(path, 1, 0)
    write(path, "groups", BATCHES + 1, [{"evaluated_at": at(8_000), **group("half-written", "STOP", 10**9)}])
    newest = path / "groups" / f"batch={BATCHES}"
    shutil.copy(newest / "part-00000.parquet", newest / "of-a-repeated-task.parquet")
    return path


@pytest.fixture(scope="module")
def report(spark: SparkSession, tables: Path) -> Report:
    """A report of these tables, with the three worst groups."""
    return gather(spark, tables, 3)


def test_the_newest_complete_batch_is_shown(report: Report) -> None:
    """The lag job may just be writing the next one; what a manifest does not list is not counted."""
    assert report.at_ms == START_MS + 7_200_000
    assert (report.groups, report.shards, report.unknown_lag_shards) == (8, 39, 4)


def test_counts_begin_with_the_worst_status_and_have_all(report: Report) -> None:
    """For groups and for shards."""
    assert report.counts == (("STOP", 1, 6), ("STALL", 1, 4), ("REWIND", 1, 3), ("WARN", 1, 8), ("OK", 4, 18))


def test_the_worst_groups_come_first(report: Report) -> None:
    """Ordered by status; an unknown lag of a part is not added as 0."""
    assert [(row.group, row.status, row.total_lag) for row in report.worst] == [
        ("audit-export", "STOP", 350_000),
        ("search-indexer", "STALL", 97_000),
        ("billing", "REWIND", 35_700),
    ]


def test_lag_over_time_is_that_of_the_worst_groups_within_the_history(report: Report) -> None:
    """In the order of time."""
    line = [point for point in report.lag if point.group == "audit-export"]
    assert {point.group for point in report.lag} == {row.group for row in report.worst}
    assert [point.at_ms for point in line] == sorted({point.at_ms for point in line})
    assert [point.total_lag for point in line] == [40_000 + round(310_000 * batch / 7) for batch in range(BATCHES)]
    assert report.from_ms == line[0].at_ms == START_MS


def test_rewinds_show_the_most_duplicates_first_and_count_all(report: Report) -> None:
    """Those before the history are left out. An unknown number is not 0."""
    assert [(row.group, row.duplicates) for row in report.rewinds] == [("billing", 42_000), ("orders", 4_100), ("mail", 70)]
    assert report.rewind_totals == (5, 46_170, 500, 1)
    assert sum(bar.duplicates for bar in report.bars) == 46_170


def test_rejects_have_no_time_where_none_is_known(report: Report) -> None:
    """The lag job stored the Unix epoch as their time."""
    assert report.rejects == (
        Reject(
            None,
            None,
            "/journal/date=2026-11-21/broker=b1/1763711990000-00000003.parquet",
            None,
            None,
            None,
            "is torn: has no footer",
        ),
    )
    assert report.reject_count == 1


def test_equal_groups_are_ordered_by_lag_then_unknown_then_none(spark: SparkSession, tmp_path: Path) -> None:
    """If a table lacks a column, the others are still read."""
    rows = [group("none"), group("unknown", lag=None), group("small", lag=1), group("large", lag=2), group("back", "REWIND")]
    write_batch(tmp_path, 0, 0, [*rows, group("warned", "WARN", 0, drain_seconds=1.0)])
    path = tmp_path / "groups" / "batch=0" / "part-00000.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["drain_seconds"]).append_column("more", pa.array([1] * 6)), path)
    report = gather(spark, tmp_path, 10)
    assert [row.group for row in report.worst] == ["back", "warned", "large", "small", "unknown", "none"]
    assert report.worst[4].total_lag is None
    assert {row.drain_seconds for row in report.worst} == {None}


def test_points_of_one_step_are_one_with_the_largest_lag(spark: SparkSession) -> None:
    """A line has a few hundred points for any number of batches. Unknown and known give known."""
    rows = spark.sql(
        "SELECT 'n' namespace, 'g' AS `group`, timestamp_seconds(col1) evaluated_at, col2 total_lag, col3 max_lag_seconds "
        "FROM VALUES (0, 3L, 1D), (1, 5L, 2D), (2, null, null), (10, null, null), (11, 0L, 0D), (20, null, null)"
    )
    found = over_time(rows, 10_000).select("at_ms", "total_lag", "lag_seconds").collect()
    assert found == [(2_000, 5, 2.0), (11_000, 0, 0.0), (20_000, None, None)]


def test_nothing_evaluated_is_an_empty_report(spark: SparkSession, tmp_path: Path) -> None:
    """Tables that are absent or empty; rejects are still shown."""
    write(tmp_path, "groups", 0, [])
    write(tmp_path, "rejects", 0, [{"at": EPOCH, "problem": "is torn"}])
    complete(tmp_path, 0, 0)
    report = gather(spark, tmp_path, 5)
    assert report == Report(rejects=report.rejects, reject_count=1)
    assert report.rejects[0].problem == "is torn"


def test_the_job_writes_the_page_last_and_takes_old_pictures_away(
    spark: SparkSession, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No temporary file is left."""
    output = tmp_path / "made" / "report"
    config = JobConfig(report=ReportSection(tables=Place.of(tables), output=Place.of(output), worst=2))
    written: list[str] = []

    def noted(place: Place, data: bytes) -> None:
        written.append(place.path.name)
        whole(place, data)

    whole = Place.write
    monkeypatch.setattr(Place, "write", noted)
    assert report_job.run(spark, config, Switches()) == 0
    assert written == [*report_job.PICTURES, report_job.PAGE]
    assert sorted(path.name for path in output.iterdir()) == sorted(written)
    report_job.write(Report(), Place.of(tables), Place.of(output), START_MS)
    assert [path.name for path in output.iterdir()] == [report_job.PAGE]


def test_a_dry_run_writes_nothing(
    spark: SparkSession, report: Report, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints how much there is to show."""
    monkeypatch.setattr(report_job, "gather", lambda *_: report)
    told = Console(file=StringIO())
    config = JobConfig(report=ReportSection(tables=Place.of(tables), output=Place.of(tmp_path / "report")))
    with told.capture() as captured:
        assert report_job.run(spark, config, Switches(dry_run=True, console=told)) == 0
    assert "8 groups, 39 shards; nothing was written" in captured.get()
    assert list(tmp_path.iterdir()) == []


def test_tables_that_are_not_there_are_told(spark: SparkSession, tmp_path: Path) -> None:
    """The error names the setting and says what to do."""
    config = JobConfig(report=ReportSection(tables=Place.of(tmp_path / "typo"), output=Place.of(tmp_path / "out")))
    with pytest.raises(ConfigError, match=r"\[report\] tables = .*typo.*run the job `lag` first"):
        report_job.run(spark, config, Switches())


def test_an_output_that_cannot_be_made_is_told(tables: Path, tmp_path: Path) -> None:
    """A file is at the path of the directory."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"\[report\] output = .*file/report': Not a directory"):
        report_job.write(Report(), Place.of(tables), Place.of(tmp_path / "file" / "report"), START_MS)
