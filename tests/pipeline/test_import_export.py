"""The jobs import and export: accepted rows, rejects, and that an import of an export restores the same offsets."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import grpc
import pytest
from pyspark.sql import DataFrame, SparkSession

from adapter.errors import ConfigError
from adapter.formats import kafka_csv
from adapter.formats.rocketmq_json import Queues, broker_file, data_version
from adapter.formats.rows import Naming, OffsetRow, Reject
from adapter.model.records import LONG_MAX
from adapter.pipeline.config import ExportSection
from adapter.pipeline.jobs import DONE, NOT_AS_ASKED, WITH_REJECTS
from adapter.pipeline.transfer import export_job as exports_job
from adapter.pipeline.transfer import exports
from adapter.pipeline.transfer import import_job as imports_job
from adapter.runtime.settings.config import parse as parse_config
from adapter.testing.processes import ServiceProcess, meta_process
from tests.pipeline.bulk_meta import BulkMeta, kill_the_caller, no_fault, serving
from tests.pipeline.import_runs import Jobs

DATA = Path(__file__).parents[1] / "data" / "rocketmq"
MANY = 12
REAL = ("broker-4x.json", "broker-4x-two-groups.json")

KEYED = "namespace string, group string, shard string"
RECORDS_SCHEMA = f"{KEYED}, topic string, partition bigint, offset bigint, epoch bigint, live boolean, problem string"


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A real Meta Service; each test has a namespace of its own."""
    service = meta_process(tmp_path_factory.mktemp("meta"))
    service.start()
    yield service
    service.kill()


@pytest.fixture
def jobs(spark: SparkSession, meta: ServiceProcess, tmp_path: Path) -> Jobs:
    """Jobs in the namespace of this test."""
    return Jobs(spark, meta.tcp_address, tmp_path)


def export_section(**values: Any) -> ExportSection:
    """Settings of an export."""
    return parse_config(values, ExportSection, source="test")


def rows_of(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """Some columns of the rows."""
    return [tuple(row) for row in frame.select(*names).collect()]


def written_by_the_cli(rows: list[OffsetRow], naming: Naming) -> bytes:
    """The file that the command `export` writes."""
    file = BytesIO()
    kafka_csv.write(file, rows, naming)
    return file.getvalue()


def entries(parse: Callable[[IO[bytes]], Iterable[Queues | Reject]], data: bytes) -> list[tuple[str, str, str, int, int]]:
    """(group, topic, broker, queue, offset) of the entries in a file of RocketMQ, sorted."""
    found = (entry for entry in parse(BytesIO(data)) if isinstance(entry, Queues))
    return sorted((entry.group, entry.topic, entry.broker, *offset) for entry in found for offset in entry.offsets)


def test_real_files_come_back_as_they_were(jobs: Jobs) -> None:
    """After import and export, every topic, group, queue and offset is equal."""
    files = [DATA / name for name in REAL]
    assert jobs.import_files(*files) == DONE
    assert jobs.export() == DONE
    data = jobs.file("consumerOffset.json").read_bytes()
    assert list(json.loads(data)) == ["dataVersion", "offsetTable"]
    assert entries(broker_file, data) == sorted(row for file in files for row in entries(broker_file, file.read_bytes()))
    assert not jobs.table("rejects", "export")


def test_an_import_tells_which_file_of_a_broker_is_in_use(jobs: Jobs, tmp_path: Path) -> None:
    """Of a directory both are read, and of a key the larger offset is taken, also if it is of the file that is dead."""
    for name, age_s in (("consumerOffset.json", 1_000), ("lmqConsumerOffset.json", 10)):
        path = tmp_path / "config" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b'{"offsetTable":{"T@g":{0:5}}}')
        os.utime(path, (time.time() - age_s,) * 2)
    assert jobs.import_files(tmp_path / "config", apply=False) == DONE
    (line,) = [line for line in jobs.said.getvalue().splitlines() if line.startswith("warning: ")]
    assert line.startswith(f"warning: {tmp_path}/config/consumerOffset.json: lmqConsumerOffset.json beside it was written later")


def test_an_import_merges_only_what_is_larger_and_keeps_what_it_cannot_read(jobs: Jobs, tmp_path: Path) -> None:
    """Tables of preview, rejects and applied offsets; of a repeated key the largest is taken."""
    file = tmp_path / "a.csv"
    file.write_bytes(b"g,t,0,4\ng,t,1,5\ng,t,2,6\ng,t,3,1\ng,t,2,9\ng,t,2,8\n\xff,t,0,1\ng,t,0,-1\n")
    jobs.store({("g", f"t/{partition}"): 5 for partition in range(3)} | {("h", "t/0"): 1})
    assert jobs.import_files(file, format="kafka-csv") == WITH_REJECTS
    preview = {row["shard"]: row for row in jobs.table("preview")}
    assert {shard: row["change"] for shard, row in preview.items()} == {
        "t/0": "lower",
        "t/1": "unchanged",
        "t/2": "raised",
        "t/3": "new",
    }
    assert (preview["t/2"]["offset"], preview["t/2"]["rows"], preview["t/2"]["place"]) == (9, 3, "line 5")
    assert (preview["t/0"]["standing_offset"], preview["t/3"]["standing_offset"]) == (5, None)
    assert [(row["file"], row["place"], row["text"], row["reason"]) for row in jobs.table("rejects")] == [
        (str(file), "line 7", "\ufffd,t,0,1", "is not UTF-8 at byte 1"),
        (str(file), "line 8", "g,t,0,-1", f"offset: '-1' is not a whole number from 0 to {LONG_MAX}"),
    ]
    assert {(row["shard"], row["offset"], row["now_offset"], row["below"]) for row in jobs.table("applied")} == {
        ("t/2", 9, 9, False),
        ("t/3", 1, 1, False),
    }
    assert f"{file}: line 8: offset: '-1' is not a whole number" in jobs.said.getvalue()
    assert jobs.export(format="kafka-csv") == DONE
    assert jobs.file("offsets.csv").read_text() == "g,t,0,5\ng,t,1,5\ng,t,2,9\ng,t,3,1\nh,t,0,1\n"


def test_a_dry_run_writes_nothing(jobs: Jobs, tmp_path: Path) -> None:
    """Neither a table, nor a file, nor an offset."""
    assert jobs.import_files(DATA / REAL[0], apply=False, dry_run=True) == DONE
    assert jobs.export(dry_run=True) == NOT_AS_ASKED
    assert list(tmp_path.iterdir()) == []


def test_an_export_names_what_the_format_cannot_hold(spark: SparkSession) -> None:
    """Each with its reason; no name is changed to fit."""
    cases: dict[tuple[str, str, str], str | None] = {
        ("g", "t/0", ""): None,
        ("g@broadcast", "t/0", "t"): None,
        ("g", "a/b/12", "a/b"): None,
        ("g", "t/01", ""): "shard is not of the form {topic}/{partition}",
        ("g", "t", ""): "shard is not of the form {topic}/{partition}",
        ("g", "t/2147483648", ""): "partition is over 2147483647",
        ("g@c", "t/0", ""): "group has an @, which separates topic and group in the file",
        ("g", "t@u/0", ""): "topic has an @, which separates topic and group in the file",
        ("g", "t/0 ", ""): "shard is not of the form {topic}/{partition}",
        ("g", "u/0", "t"): "topic is 't', but by its shard it would be 'u'",
        ("/", "t/0", ""): None,
    }
    records = spark.createDataFrame(
        [("n", group, shard, label, 0, 5, 1, True, None) for group, shard, label in cases]
        + [
            ("n", "g", "big/0", "", 0, None, 1, True, "offset is 9223372036854775808"),
            ("n", "g", "dead/0", "", 0, 0, 1, False, None),
        ],
        RECORDS_SCHEMA,
    )
    found = rows_of(exports.named(records, export_section()), "whole_group", "shard", "label", "reason")
    assert {(group, shard, label): reason for group, shard, label, reason in found} == {
        **cases,
        ("g", "big/0", ""): "offset is 9223372036854775808",
    }
    client = export_section(format="rocketmq-client", broker="b")
    assert {
        group: reason
        for group, reason in rows_of(exports.named(records, client), "whole_group", "reason")
        if reason and "directory" in reason
    } == {"/": "group cannot be the name of a directory"}


def test_exported_lines_are_those_of_rocketmq_and_kafka(spark: SparkSession) -> None:
    """With the same quotes, one file for each broker, and a second file for light message queues."""
    shards = [("g", "b1/t/10", 1), ("g", "b1/t/9", 2), ('g"\\\u00e4', "b2/t/0", LONG_MAX), ("%LMQ%g", "b2/%LMQ%t/0", 3)]
    records = spark.createDataFrame(
        [("n", group, shard, "", 0, offset, 1, True, None) for group, shard, offset in shards], RECORDS_SCHEMA
    )
    section = export_section(shard="{broker}/{topic}/{partition}")
    before_ms = time.time_ns() // 1_000_000
    lines = exports.lines(exports.named(records, section), section)
    files = dict(exports_job.contents(lines.toArrow()))
    version, table = files["b1/consumerOffset.json"].split(b",\n", 1)
    assert table == b'\t"offsetTable":{\n\t\t"t@g":{"9":2,"10":1}\n\t}\n}\n'
    counters = [json.loads(data)["dataVersion"]["counter"] for data in files.values()]
    assert version == b'{\n\t"dataVersion":' + data_version(counters[0])
    assert min(counters) >= before_ms, "a broker with RocksDB ignores a file whose counter it has reached"
    plain, light = ("t", [(0, LONG_MAX)]), ("%LMQ%t", [(0, 3)])
    assert {
        name: {row.place: (row.topic, row.offsets) for row in broker_file(BytesIO(data)) if isinstance(row, Queues)}
        for name, data in files.items()
        if name.startswith("b2/")
    } == {
        "b2/consumerOffset.json": {'$.offsetTable["t@g\\"\\\\\u00e4"]': plain, '$.offsetTable["%LMQ%t@%LMQ%g"]': light},
        "b2/lmqConsumerOffset.json": {'$.offsetTable["t@g\\"\\\\\u00e4"]': plain, '$.lmqOffsetTable["%LMQ%t@%LMQ%g"]': light},
    }
    assert set(files) == {"b1/consumerOffset.json", "b2/consumerOffset.json", "b2/lmqConsumerOffset.json"}
    names = ["a", "B" * 24, "c" * 25, "d,e", 'f"g', "h i", "\u00e4", "j-k", "l+m", "'"]
    rows = sorted(OffsetRow("n", name, f"{name}/0", 5) for name in names)
    records = spark.createDataFrame([("n", row.group, row.shard, "", 0, 5, 1, True, None) for row in rows], RECORDS_SCHEMA)
    section = export_section(format="kafka-csv")
    lines = exports.lines(exports.named(records, section), section)
    assert dict(exports_job.contents(lines.toArrow())) == {"offsets.csv": written_by_the_cli(rows, Naming("n"))}
    section = export_section(format="kafka-csv", group="d,e")
    lines = exports.lines(exports.named(records, section), section)
    assert dict(exports_job.contents(lines.toArrow())) == {"offsets.csv": b'"d,e",0,5\n'}


def test_a_place_without_files_stops_the_import(jobs: Jobs, tmp_path: Path) -> None:
    """Before anything is read or written."""
    with pytest.raises(ConfigError, match="there is no such file or directory"):
        jobs.import_files(tmp_path / "none.json")


def test_an_import_that_was_killed_is_completed_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is killed while it merges, and Spark gives up. The next run finds what was merged, and adds the rest."""
    monkeypatch.setattr(imports_job, "BUCKET_ROWS", 1)
    monkeypatch.setattr(imports_job, "MERGING_TASKS", MANY)  # a call for each bucket
    file = tmp_path / "a.csv"
    file.write_text("".join(f"g,t,{partition},{partition}\n" for partition in range(MANY)))
    meta = BulkMeta()
    with serving(meta) as address:
        jobs = Jobs(spark, address, tmp_path)

        def kill_and_go_down(merge: Callable[[], None], context: grpc.ServicerContext) -> None:
            meta.down = True  # else the other tasks may have merged everything before Spark gives up
            kill_the_caller(merge, context)

        meta.faults.extend([no_fault, no_fault, kill_and_go_down])
        with pytest.raises(Exception, match="Python worker exited unexpectedly"):
            jobs.import_files(file, format="kafka-csv")
        assert 0 < len(meta.records) < MANY
        meta.down = False
        assert not (tmp_path / "import" / "applied").exists()
        assert jobs.import_files(file, format="kafka-csv") == DONE
    assert {key.shard: record.offset for key, record in meta.records.items()} == {f"t/{number}": number for number in range(MANY)}
    merged = sum(row["change"] == "unchanged" for row in jobs.table("preview"))  # a task of the first run may have ended since
    assert 0 < merged <= MANY
    assert len(jobs.table("applied")) == MANY - merged
    manifest = json.loads((tmp_path / "import" / "preview" / "_manifest.json").read_bytes())
    files = {path.name for path in (tmp_path / "import" / "preview").glob("*.parquet")}
    assert {file["name"] for file in manifest["files"]} == files, "those of the first run are deleted"
