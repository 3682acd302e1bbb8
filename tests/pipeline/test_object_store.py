"""The jobs with places behind URLs: an S3 server instead of directories. No credential is shown or stored."""

from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from adapter.model.records import OffsetRecord
from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import JobError, Switches
from adapter.pipeline.lag import job as lag_job
from adapter.pipeline.lag.files import STATE, TABLES, LagFiles
from adapter.pipeline.places import Place
from adapter.pipeline.reconcile import job as reconcile_job
from adapter.pipeline.report import job as report_job
from adapter.pipeline.report.content import Report
from adapter.pipeline.tables import MANIFEST, read_table, write_table
from adapter.pipeline.transfer import export_job, import_job
from adapter.runtime.settings.config import parse
from tests.pipeline.bulk_meta import BulkMeta, serving
from tests.pipeline.object_store import SECRET, s3_bucket
from tests.pipeline.segments import RUN, commits, write_segment
from tests.pipeline.test_reconcile_job import key, live, snapshot


@pytest.fixture(scope="module")
def bucket() -> Iterator[Place]:
    """A bucket for all tests here; each uses its own part of it."""
    with s3_bucket() as place:
        yield place


def config(address: str, **sections: Mapping[str, Any]) -> JobConfig:
    """The settings of a job, as from a file."""
    return parse({"meta": {"endpoints": [address]}, **sections}, JobConfig, source="test")


def said(console: Console) -> str:
    """What a job printed."""
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def rows_of(place: Place) -> list[dict[str, Any]]:
    """The rows of a table, by a reader of the directory."""
    system, path = place.opened()
    rows: list[dict[str, Any]] = pq.read_table(path, filesystem=system).to_pylist()
    return rows


def test_a_table_is_replaced_as_a_whole(spark: SparkSession, bucket: Place) -> None:
    """Files of the earlier one are gone; several row groups and files are read once."""
    place = bucket / "tables/a b"
    write_table(spark.range(0, 9, 1, 2).toDF("id"), place)
    written = write_table(spark.range(0, 300_000, 1, 2).toDF("id"), place)
    assert (written.count(), written.groupBy().sum("id").first()) == (300_000, (sum(range(300_000)),))
    assert {row["id"] for row in rows_of(place)} == set(range(300_000))
    assert read_table(spark, place, written.schema).where("id = 7").count() == 1
    assert len(place.entries()) == 3
    assert SECRET.encode() not in (place / MANIFEST).read()


def test_reconcile_reads_snapshots_and_writes_tables_behind_urls(spark: SparkSession, bucket: Place, tmp_path: Path) -> None:
    """And repairs; the unreadable file and the tables are named without credentials."""
    for broker, records in {"a/b": {"behind": live(1, 7)}, "c": {"missing": live(0, 7), "behind": live(1, 6)}}.items():
        path = snapshot(tmp_path / "s.parquet", broker, records)
        (bucket / f"snapshots/{broker.replace('/', '%2F')}-5.parquet").write(path.read_bytes())
    (bucket / "snapshots/torn.parquet").write(b"PAR1")
    meta = BulkMeta()
    meta.records = {key("behind"): live(1, 5)}
    console = Console(file=StringIO(), width=200)
    with serving(meta) as address:
        section = {"snapshots": [(bucket / "snapshots").url], "output": (bucket / "reconcile").url}
        assert reconcile_job.run(spark, config(address, reconcile=section), Switches(apply=True, console=console)) == 3
    stands: dict[str, OffsetRecord] = {name.shard: record for name, record in meta.records.items()}
    assert stands == {"behind": live(1, 7), "missing": live(1, 7)}
    assert {row["shard"]: row["below"] for row in rows_of(bucket / "reconcile/applied")} == {"behind": False, "missing": False}
    problems = [row["problem"] for row in rows_of(bucket / "reconcile/differences") if row["problem"]]
    assert len(problems) == 1
    assert "/snapshots/torn.parquet" in problems[0]
    assert SECRET not in problems[0] + said(console)


def test_a_damaged_file_behind_a_url_is_told(spark: SparkSession, bucket: Place, tmp_path: Path) -> None:
    """As for a local one, with what to do."""
    path = snapshot(tmp_path / "a.parquet", "a", {f"{number}": live(1, number) for number in range(500)})
    data = bytearray(path.read_bytes())
    data[4:2_000] = bytes(1_996)
    (bucket / "damaged/a.parquet").write(bytes(data))
    section = {"snapshots": [(bucket / "damaged").url], "output": (bucket / "none").url}
    with (
        serving(BulkMeta()) as address,
        pytest.raises(JobError, match="is damaged behind its footer, nothing was compared: take") as raised,
    ):
        reconcile_job.run(spark, config(address, reconcile=section), Switches(console=Console(file=StringIO())))
    assert SECRET not in str(raised.value)


def test_export_writes_files_behind_a_url(spark: SparkSession, bucket: Place) -> None:
    """And the table of what the format cannot hold."""
    meta = BulkMeta()
    meta.records = {key("t/0")._replace(namespace="default"): live(1, 7), key("odd")._replace(namespace="default"): live(1, 8)}
    section = {"output": (bucket / "export").url, "format": "kafka-csv"}
    console = Console(file=StringIO(), width=200)
    with serving(meta) as address:
        assert export_job.run(spark, config(address, export=section), Switches(console=console)) == 3
    assert (bucket / "export/files/offsets.csv").read() == b"g,t,0,7\n"
    assert [row["shard"] for row in rows_of(bucket / "export/rejects")] == ["odd"]
    assert SECRET not in said(console)


def test_import_reads_files_and_writes_its_tables_behind_urls(spark: SparkSession, bucket: Place) -> None:
    """Files are named in tables and lines without credentials."""
    (bucket / "from/offsets.csv").write(b"g,t,0,5\ng,t,x,5\n")
    section = {"files": [(bucket / "from").url], "format": "kafka-csv", "output": (bucket / "import").url}
    console = Console(file=StringIO(), width=200)
    meta = BulkMeta()
    with serving(meta) as address:
        assert import_job.run(spark, config(address, **{"import": section}), Switches(apply=True, console=console)) == 3
    assert {name.shard: record.offset for name, record in meta.records.items()} == {"t/0": 5}
    for name in ("preview", "rejects", "applied"):
        rows = rows_of(bucket / "import" / name)
        assert len(rows) == 1
        assert SECRET not in str(rows)
    assert SECRET not in said(console)


def test_the_lag_job_reads_journals_and_writes_tables_behind_urls(spark: SparkSession, bucket: Place, tmp_path: Path) -> None:
    """Also after a start: the lease is given back, and old state is deleted."""
    for number in range(3):
        path = write_segment(tmp_path / "journal", commits(2, 3, 4, first_cycle=2 * number), number)
        (bucket / f"journal/{path.relative_to(tmp_path / 'journal')}").write(path.read_bytes())
    torn = bucket / f"journal/{path.relative_to(tmp_path / 'journal').with_name(f'{RUN}-{3:08}.parquet')}"
    torn.write(b"PAR1")
    urls = {"journals": [(bucket / "journal").url], "output": (bucket / "lag").url}
    local = {"journals": [str(tmp_path / "journal")], "output": str(tmp_path / "lag")}
    console = Console(file=StringIO(), width=200)
    placed = urls | {"checkpoint": str(tmp_path / "checkpoint")}
    for section, code in ((placed, 3), (placed, 0), (local, 0)):  # nothing is left for the second one
        settings = config("127.0.0.1:1", lag={**section, "max_files": 2})
        assert lag_job.run(spark, settings, Switches(available_now=True, console=console)) == code, said(console)
    remote, plain = LagFiles(bucket / "lag"), LagFiles(Place.of(tmp_path / "lag"))
    assert remote.complete() == plain.complete() == [0, 1]
    for name in ("shards", "groups"):
        assert remote.read(1, name).to_pylist() == plain.read(1, name).to_pylist()
    (reject,) = remote.read(1, "rejects").to_pylist()
    assert reject["segment"] == str(torn)
    listed = {place.url for batch in (0, 1) for name in (*TABLES, STATE) for place in remote.table_files(batch, name)}
    entries = [entry.path for entry in (bucket / "lag").entries(recursive=True) if not entry.is_directory]
    assert {(bucket / f"lag/{path}").url for path in entries} - listed == {remote.manifest(batch).url for batch in (0, 1)}
    everything = b"".join((bucket / f"lag/{path}").read() for path in entries)
    assert SECRET.encode() not in everything
    assert SECRET not in said(console)


def test_the_report_is_written_behind_a_url(bucket: Place) -> None:
    """The page does not show credentials either."""
    page = report_job.write(Report(), bucket / "lag", bucket / "report", made_ms=1)
    assert SECRET.encode() not in page.read()
    assert SECRET not in str(page)
