"""The lag job as a stream: its switches, restarts, and end."""

import io
import os
import signal
from collections import Counter
from pathlib import Path
from threading import Event, Thread
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from rich.console import Console

from adapter.errors import ConfigError
from adapter.pipeline.config import HistorySection, JobConfig, LagSection
from adapter.pipeline.jobs import DONE, WITH_REJECTS, JobError, Switches
from adapter.pipeline.lag import batch as lag_batch
from adapter.pipeline.lag import job as lag_job
from adapter.pipeline.lag.batch import process
from adapter.pipeline.lag.files import BatchInfo, LagFiles
from adapter.pipeline.lag.publisher import Publisher
from adapter.pipeline.places import Place
from tests.pipeline.frames import segments
from tests.pipeline.segments import START, commits, segment_path, write_segment

ROWS = 3 * 4  # of a segment


def switches(**given: bool) -> Switches:
    """The switches of a run without a terminal."""
    return Switches(console=Console(file=io.StringIO(), width=200), **given)


def said(given: Switches) -> str:
    """The printed lines."""
    assert isinstance(given.console.file, io.StringIO)
    return given.console.file.getvalue()


def config(journal: Path, output: Path, max_files: int = 1_000, trigger_ms: int = 100) -> JobConfig:
    """Settings for a journal."""
    return JobConfig(
        lag=LagSection(journals=(Place.of(journal),), output=Place.of(output), max_files=max_files, trigger_ms=trigger_ms)
    )


def fill(journal: Path, segments: int = 4) -> None:
    """Segments of one broker, followed by an empty file that is no segment."""
    for number in range(segments):
        write_segment(journal, commits(1, 3, 4, first_cycle=number), number)
    segment_path(journal, START.date().isoformat(), "broker-1", segments).touch()


def complete(output: Path) -> list[int]:
    """The numbers of the complete batches."""
    return LagFiles(Place.of(output)).complete()


def table(output: Path, name: str, batch: int) -> list[dict[str, Any]]:
    """The rows of a batch, sorted; the directory has the same as the files of the manifest."""
    rows = LagFiles(Place.of(output)).read(batch, name).to_pylist()
    assert pq.ParquetDataset(output / name / f"batch={batch}").read().num_rows == len(rows)
    return sorted(rows, key=repr)


def test_a_stream_that_is_broken_and_started_again_has_every_segment_once(
    spark: SparkSession, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken after a batch is complete, before Spark records it; the tables equal those of an unbroken stream."""
    fill(journal)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert lag_job.run(spark, config(journal, whole), switches(available_now=True)) == WITH_REJECTS
    publish = Publisher.publish

    def failing(publisher: Publisher, info: BatchInfo) -> None:
        publish(publisher, info)
        if info.batch == 1:
            raise OSError("the disk is gone")

    given = switches(available_now=True)
    with monkeypatch.context() as patch:
        patch.setattr(Publisher, "publish", failing)
        with pytest.raises(JobError, match=r"^lag: stopped by an error: the disk is gone$"):
            lag_job.run(spark, config(journal, broken, max_files=2), given)
    assert complete(broken) == [0, 1]
    given = switches(available_now=True)
    assert lag_job.run(spark, config(journal, broken, max_files=2), given) == WITH_REJECTS
    assert complete(broken) == [0, 1, 2]
    assert f"2 batches, {2 * ROWS + 1} rows" in said(given)
    for name in ("shards", "groups"):
        assert table(broken, name, 2) == table(whole, name, 0)
    rejects = [row["problem"] for batch in range(3) for row in table(broken, "rejects", batch)]
    assert rejects == [row["problem"] for row in table(whole, "rejects", 0)]
    assert len(rejects) == 1


def test_a_batch_that_is_complete_but_not_in_the_history_is_appended_by_the_next_start(
    spark: SparkSession, journal: Path, tmp_path: Path
) -> None:
    """The job ended between the two: no batch is processed again, and each is in the history once, of one stream."""
    fill(journal, 3)
    output, delta = tmp_path / "lag", tmp_path / "history"
    base = config(journal, output, max_files=2)
    history = HistorySection(delta=Place.of(delta))
    settings = base.model_copy(update={"lag": base.lag.model_copy(update={"history": history})})
    delta.touch()  # a file where the directory would be
    given = switches(available_now=True)
    with pytest.raises(JobError, match=rf"^lag: stopped by an error: \[lag.history\] delta: {delta}/groups: "):
        lag_job.run(spark, settings, given)
    assert complete(output) == [0]
    manifest = LagFiles(Place.of(output)).manifest(0).path
    written = manifest.stat().st_mtime_ns
    delta.unlink()
    given = switches(available_now=True)
    assert lag_job.run(spark, settings, given) == WITH_REJECTS, said(given)
    assert manifest.stat().st_mtime_ns == written
    assert complete(output) == [0, 1]
    rows = DeltaTable(str(delta / "groups")).to_pyarrow_dataset().to_table().to_pylist()
    counts = Counter((row["stream"], row["batch"]) for row in rows)
    assert counts == {(rows[0]["stream"], batch): len(table(output, "groups", batch)) for batch in (0, 1)}
    assert UUID(rows[0]["stream"])


def test_many_buckets_and_a_batch_without_segments_in_spark(
    spark: SparkSession, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark deals rows as the tests without it do: with a stage for groups the tables are the same."""
    fill(journal)
    expected = LagFiles(Place.of(tmp_path / "expected"))
    section = config(journal, tmp_path / "expected").lag
    process(segments(journal), 0, "", section, Publisher(expected, 48))
    rows = spark.createDataFrame(segments(journal).toArrow())
    monkeypatch.setattr(lag_batch, "FIRST_BUCKETS", 16)
    files = LagFiles(Place.of(tmp_path / "lag"))
    section, publisher = config(journal, tmp_path / "lag").lag, Publisher(files, 48)
    assert process(rows, 0, "", section, publisher).rows == 4 * ROWS + 1
    info = process(rows.where("number < 0"), 1, "", section, publisher)
    assert {name: len(paths) for name, paths in info.files.items() if name in {"groups", "shards"}} == {"groups": 2, "shards": 16}
    for name in ("shards", "groups"):
        assert table(tmp_path / "lag", name, 1) == table(tmp_path / "lag", name, 0) == table(tmp_path / "expected", name, 0)


def test_sigterm_ends_it_with_0_when_the_batch_is_done(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    """As a supervisor stops it; the former signal handler is restored."""
    fill(journal, 1)
    output = tmp_path / "lag"
    given, over = switches(), Event()

    def terminate() -> None:
        while not over.wait(0.05):
            if complete(output):
                os.kill(os.getpid(), signal.SIGTERM)
                return

    former = signal.getsignal(signal.SIGTERM)
    thread = Thread(target=terminate)
    thread.start()
    try:
        assert lag_job.run(spark, config(journal, output), given) == DONE
    finally:
        over.set()
        thread.join()
    assert signal.getsignal(signal.SIGTERM) is former
    assert f"1 batch, {ROWS + 1} rows" in said(given)


def test_a_dry_run_counts_and_writes_nothing(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    """It prints what would be read, from which brokers, and where tables would be."""
    fill(journal, 2)
    given = switches(dry_run=True)
    assert lag_job.run(spark, config(journal, tmp_path / "lag"), given) == DONE
    assert not (tmp_path / "lag").exists()
    text = said(given)
    assert "broker-1" in text
    assert str(2 * ROWS + 1) in text
    assert str(tmp_path / "lag" / "shards") in text.replace("\n", "")


def test_an_output_that_cannot_be_written_is_told_by_its_name(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    """Before the stream starts."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"\[lag\] output"):
        lag_job.run(spark, config(journal, tmp_path / "file" / "lag"), switches())
