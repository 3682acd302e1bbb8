"""The data of the report, from the lag job's tables, and the job, without Spark."""

import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from adapter.errors import AdapterError, ConfigError
from adapter.pipeline.config import JobConfig, ReportSection
from adapter.pipeline.jobs import JobError, Switches, run_plain_job
from adapter.pipeline.lag.files import BatchInfo, LagFiles
from adapter.pipeline.places import Place
from adapter.pipeline.report import job as report_job
from adapter.pipeline.report.content import STEPS, Bar, Reject, Report, duplicates_over_time, gather, thinned
from tests.pipeline import lag_tables
from tests.pipeline.buckets import is_hidden, running_bucket
from tests.pipeline.lag_tables import EPOCH, START, at, complete, group, rewind, write, write_batch

START_MS = round(START.timestamp() * 1000)
BATCHES = 8
HOURS = 24
LONG_AGO_S = -HOURS * 3_600 + 7_000  # more than the period before the newest data


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet's tables, with a batch and a rewind from before the period, a batch that is not complete, and an unlisted file."""
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
def report(tables: Path) -> Report:
    """A report of these tables, with the three worst groups."""
    return gathered(tables, 3)


def gathered(tables: Path, worst: int) -> Report:
    """A report of the tables in a directory."""
    return gather(LagFiles(Place.of(tables)), HOURS, worst)


def test_the_newest_complete_batch_is_shown(report: Report) -> None:
    """The lag job may just be writing the next one; what a manifest does not list is not counted."""
    assert report.at_ms == START_MS + 7_200_000
    assert (report.groups, report.shards, report.unknown_lag_shards) == (8, 39, 4)


def test_counts_begin_with_the_worst_status_and_have_all(report: Report) -> None:
    """For groups and for shards."""
    known = (("STOP", 1, 6), ("STALL", 1, 4), ("REWIND", 1, 3), ("WARN", 1, 8))
    assert report.counts == (("BEYOND", 0, 0), *known, ("UNKNOWN", 0, 0), ("OK", 4, 18))


def test_the_worst_groups_come_first(report: Report) -> None:
    """Ordered by status; an unknown lag of a part is not added as 0."""
    assert [(row.group, row.status, row.total_lag) for row in report.worst] == [
        ("audit-export", "STOP", 350_000),
        ("search-indexer", "STALL", 97_000),
        ("billing", "REWIND", 35_700),
    ]


def test_the_history_has_all_groups_and_the_lines_the_worst_ones(report: Report) -> None:
    """In the order of time, within the period."""
    assert [point.at_ms for point in report.history] == [START_MS + 7_200_000 * batch // 7 for batch in range(BATCHES)]
    assert [point.bad for point in report.history] == [2] * BATCHES
    assert report.history[0].total_lag == 40_000 + 9_000 + 150 + 300
    assert len(report.lines) == len(report.worst)
    assert [point.total_lag for point in report.lines[0]] == [40_000 + round(310_000 * batch / 7) for batch in range(BATCHES)]
    assert report.from_ms == START_MS


def test_rewinds_show_the_most_duplicates_first_and_count_all(report: Report) -> None:
    """Those before the period are left out. An unknown number is not 0."""
    assert [(row.group, row.duplicates) for row in report.rewinds] == [("billing", 42_000), ("orders", 4_100), ("mail", 70)]
    assert report.rewind_totals == (5, 46_170, 500, 1)
    assert sum(bar.duplicates for bar in report.bars) == 46_170


def test_rejects_have_no_time_where_none_is_known(report: Report) -> None:
    """The lag job stored the Unix epoch as their time."""
    segment = "/journal/date=2026-11-21/broker=b1/1763711990000-00000003.parquet"
    assert report.rejects == (Reject(None, None, segment, None, None, None, "is torn: has no footer"),)
    assert report.reject_count == 1


def test_rejects_without_a_time_come_before_the_newest(tmp_path: Path) -> None:
    """A whole segment is more than a row. All are counted."""
    rows = [{"at": at(second), "problem": str(second)} for second in range(3)]
    write(tmp_path, "rejects", 0, [*rows, {"at": EPOCH, "problem": "is torn"}])
    complete(tmp_path, 0, 0)
    report = gathered(tmp_path, 3)
    assert [(row.problem, row.at_ms) for row in report.rejects] == [
        ("is torn", None),
        ("2", START_MS + 2_000),
        ("1", START_MS + 1_000),
    ]
    assert report == Report(rejects=report.rejects, reject_count=4)


def test_equal_groups_are_ordered_by_lag_then_unknown_then_none(tmp_path: Path) -> None:
    """After their status; then by name."""
    rows = [group("none"), group("unknown", lag=None), group("small", lag=1), group("large", lag=2), group("back", "REWIND")]
    write_batch(tmp_path, 0, 0, [*rows, group("warned", "WARN", 0), group("large", lag=2, namespace="a")])
    report = gathered(tmp_path, 10)
    assert [row.group for row in report.worst] == ["back", "warned", "large", "large", "small", "unknown", "none"]
    assert [row.namespace for row in report.worst[2:4]] == ["a", "default"]
    assert report.worst[5].total_lag is None


def test_the_history_is_known_where_anything_is_known(tmp_path: Path) -> None:
    """A group that is not there in a batch is unknown there; the largest numbers do not overflow."""
    write_batch(tmp_path, 0, 0, [group("old", lag=None)])
    write_batch(tmp_path, 1, 10, [group("old", lag=2**63 - 1), group("new", lag=2**63 - 1)])
    report = gathered(tmp_path, 2)
    assert [point.total_lag for point in report.history] == [None, 2.0**64]
    assert [(row.group, [point.total_lag for point in line]) for row, line in zip(report.worst, report.lines, strict=True)] == [
        ("new", [None, 2**63 - 1]),
        ("old", [None, 2**63 - 1]),
    ]


def test_of_thousands_of_batches_some_are_read_evenly_over_time() -> None:
    """The newest one is one of them; after a pause there is a gap."""
    times = [*range(10_000), *range(20_000, 30_000)]
    found = [info.now for info in thinned([BatchInfo(number, 1, now, now) for number, now in enumerate(times)], STEPS)]
    assert found[-1] == 29_999
    assert found == sorted(set(found))
    assert 2 * STEPS / 3 <= len(found) <= 2 * STEPS / 3 + 1
    assert [info.batch for info in thinned([BatchInfo(7, 1, 5, 5)], STEPS)] == [7]


def test_duplicates_are_summed_by_step() -> None:
    """Steps without any are left out; an unknown number adds nothing."""
    rewinds = pa.table({"at_ms": [25, 19, 11, 30, 31], "duplicates": pa.array([1, 2, 3, 0, None], pa.int64())})
    assert duplicates_over_time(rewinds, 10) == (Bar(10, 5), Bar(20, 1))


def test_nothing_evaluated_is_an_empty_report(tmp_path: Path) -> None:
    """A directory without a batch."""
    assert gathered(tmp_path, 5) == Report()


def test_a_batch_that_is_deleted_meanwhile_is_left_out(tmp_path: Path) -> None:
    """The lag job deletes old batches while the report is made; of the newest one everything is needed."""
    lag_tables.fleet(tmp_path, 3)
    for name in ("groups", "rewinds"):
        shutil.rmtree(tmp_path / name / "batch=1")
    assert [point.at_ms for point in gathered(tmp_path, 1).history] == [START_MS, START_MS + 7_200_000]
    shutil.rmtree(tmp_path / "shards" / "batch=2")
    with pytest.raises(FileNotFoundError):
        gathered(tmp_path, 1)


def test_shards_that_a_newer_batch_superseded_are_read_from_that_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the report takes longer than the lag job keeps them."""
    lag_tables.fleet(tmp_path, 2)
    history = LagFiles.history

    def slow(files: LagFiles, us: int) -> list[BatchInfo]:
        found = history(files, us)
        if found[-1].batch == 1:
            write_batch(tmp_path, 2, 8_000, [group("newer")])
            shutil.rmtree(tmp_path / "shards" / "batch=1")
        return found

    monkeypatch.setattr(LagFiles, "history", slow)
    assert [row.group for row in gathered(tmp_path, 1).worst] == ["newer"]


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    """In one line."""
    write_batch(tmp_path, 0, 0, [group("g")])
    path = tmp_path / "groups" / "batch=0" / "part-00000.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(AdapterError, match=r"groups/batch=0/part-00000.parquet: is damaged: "):
        gathered(tmp_path, 1)


def test_the_job_writes_one_file(tables: Path, tmp_path: Path) -> None:
    """No temporary file is left."""
    output = tmp_path / "made" / "report"
    config = JobConfig(report=ReportSection(tables=Place.of(tables), output=Place.of(output), worst=2))
    assert report_job.run(config, Switches()) == 0
    assert [path.name for path in output.iterdir()] == [report_job.PAGE]
    assert "audit-export" in (output / report_job.PAGE).read_text()


def test_tables_and_page_may_be_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser shows the page from there. Credentials of the URL are in no text."""
    lag_tables.fleet(tmp_path, 3)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    told = Console(file=StringIO())
    with running_bucket() as bucket, told.capture() as captured:
        for path in tmp_path.rglob("*.*"):
            bucket.put(tmp_path, path, "lag")
        section = ReportSection(tables=Place.of(bucket.url("lag")), output=Place.of(bucket.url("pages")))
        assert run_plain_job("report", JobConfig(report=section), Switches(console=told)) == 0
        page = bucket.client.get_object(Bucket="journals", Key="pages/index.html")
        html = page["Body"].read().decode()
    assert page["ContentType"] == "text/html; charset=utf-8"
    assert "audit-export" in html
    assert is_hidden(html, captured.get())


def test_a_dry_run_writes_nothing(tables: Path, tmp_path: Path) -> None:
    """It prints how much there is to show."""
    told = Console(file=StringIO())
    config = JobConfig(report=ReportSection(tables=Place.of(tables), output=Place.of(tmp_path / "report")))
    with told.capture() as captured:
        assert run_plain_job("report", config, Switches(dry_run=True, console=told)) == 0
    assert "8 groups, 39 shards; nothing was written" in captured.get()
    assert list(tmp_path.iterdir()) == []


def test_the_command_loads_no_spark(tables: Path, tmp_path: Path) -> None:
    """It would take seconds, and a Java."""
    (tmp_path / "job.toml").write_text(f"[report]\ntables = '{tables}'\noutput = '{tmp_path}'\n")
    code = (
        "import sys; sys.argv = ['x', 'report', '--config', 'job.toml']; from adapter.pipeline.cli import main\n"
        "try: main()\nexcept SystemExit as end: print(end.code, 'pyspark' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert answer.stdout == "0 False\n"
    assert (tmp_path / report_job.PAGE).is_file()


def test_tables_that_are_not_there_are_told(tmp_path: Path) -> None:
    """The error names the setting and says what to do."""
    config = JobConfig(report=ReportSection(tables=Place.of(tmp_path / "typo"), output=Place.of(tmp_path / "out")))
    with pytest.raises(ConfigError, match=r"\[report\] tables = .*typo.*run the job `lag` first"):
        report_job.run(config, Switches())


def test_an_output_that_cannot_be_made_is_told(tables: Path, tmp_path: Path) -> None:
    """A file is at the path of the directory."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"\[report\] output = .*file/report': Not a directory"):
        report_job.write(Report(), Place.of(tables), Place.of(tmp_path / "file" / "report"))


def test_tables_that_cannot_be_read_are_an_error_of_one_line(tables: Path, tmp_path: Path) -> None:
    """With the path."""
    copied = tmp_path / "lag"
    shutil.copytree(tables, copied)
    shutil.rmtree(copied / "shards")
    config = JobConfig(report=ReportSection(tables=Place.of(copied), output=Place.of(tmp_path / "out")))
    with pytest.raises(JobError, match=r"^\[report\] tables = '.*/lag': .*shards/batch=8"):
        run_plain_job("report", config, Switches())


def test_a_storage_that_does_not_answer_is_told_by_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the storage says does not tell which one it is; credentials are not shown."""

    def away(_: Place) -> bool:
        raise OSError("When getting information for key 'lag' in bucket 'b': AWS Error NETWORK_CONNECTION")

    monkeypatch.setattr(Place, "is_directory", away)
    config = JobConfig(report=ReportSection(tables=Place.of("s3://KEY:SECRET@b/lag")))
    with pytest.raises(JobError, match=r"^\[report\] tables = 's3://b/lag': When getting information for key 'lag'"):
        run_plain_job("report", config, Switches())
