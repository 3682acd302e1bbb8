"""`spark.read.format("offsets")` and `df.write.format("offsets")`, in Spark, against a real Meta Service."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from adapter.meta.blocking import MetaCalls
from adapter.meta.config import MetaSection
from adapter.model.codec import encode_key, encode_record
from adapter.model.records import U64_MAX, OffsetKey, OffsetRecord
from adapter.model.schemas import RECORDS
from adapter.testing.processes import ServiceProcess, ended, free_port, meta_process
from tests.unit.helpers import packed_rows

AT_MS = 1_700_000_000_000
# Two namespaces, two groups in each, names that are prefixes of one another and not ASCII.
GROUPS = [("default", "g"), ("default", "gg"), ("tenant", "g"), ("tenant", "ä")]
STORED = {
    OffsetKey(namespace, group, f"s{shard}"): OffsetRecord(1, 10 * shard, committed_at_ms=AT_MS, topic="t", partition=shard)
    for namespace, group in GROUPS
    for shard in range(10)
}
BEYOND = OffsetKey("default", "odd", "beyond")
GONE = OffsetKey("default", "odd", "gone")
ODD = {BEYOND: OffsetRecord(1, U64_MAX, committed_at_ms=AT_MS), GONE: OffsetRecord(1 << 32, 0, live=False, committed_at_ms=AT_MS)}


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A Meta Service that holds STORED and ODD in its cluster `stored`."""
    service = meta_process(tmp_path_factory.mktemp("meta"))
    with ended(service):
        service.start()
        with closing(MetaCalls(MetaSection(cluster="stored", endpoints=(service.address,)))) as calls:
            entries = {**STORED, **ODD}
            calls.merge(packed_rows("stored", [*map(encode_key, entries)], [*map(encode_record, entries.values())]))
        yield service


def stored(spark: SparkSession, meta: ServiceProcess, **options: Any) -> DataFrame:
    """The content of the cluster `stored`."""
    return spark.read.format("offsets").options(endpoints=meta.address, cluster="stored", **options).load()


def found(frame: DataFrame) -> dict[OffsetKey, int | None]:
    """The record of each key; fails if a key is there twice."""
    rows = frame.select("namespace", "group", "shard", "offset").collect()
    offsets = {OffsetKey(row[0], row[1], row[2]): row[3] for row in rows}
    assert len(offsets) == len(rows)
    return offsets


def of(namespace: str | None = None, group: str | None = None) -> dict[OffsetKey, int | None]:
    """The same selection of STORED, computed without Spark."""
    return {
        key: record.offset for key, record in STORED.items() if key[0] == (namespace or key[0]) and key[1] == (group or key[1])
    }


def pushed(frame: DataFrame, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Columns that Spark no longer filters itself."""
    frame.explain()
    plan = capsys.readouterr().out
    filtered = "".join(re.findall(r"\bFilter .*", plan))
    return {name for name in ("namespace", "group") if f"{name}#" not in filtered}


def test_every_column_comes_as_it_is_stored(spark: SparkSession, meta: ServiceProcess) -> None:
    """In several parts and pages; numbers too large for Spark are reported, tombstones shown only on request."""
    frame = stored(spark, meta, partitions=3, pageSize=4, tombstones="true")
    assert [(field.name, field.dataType) for field in frame.schema] == [(f.name, f.dataType) for f in from_arrow_schema(RECORDS)]
    assert [field.name for field in frame.schema if not field.nullable] == ["namespace", "group", "shard"]
    assert 1 < frame.rdd.getNumPartitions() <= 3
    rows = {
        OffsetKey(row.namespace, row.group, row.shard): row.asDict()
        for row in frame.withColumn("ms", sf.unix_millis("committed_at")).collect()
    }
    assert rows.keys() == STORED.keys() | ODD.keys()
    row = rows[OffsetKey("tenant", "ä", "s7")]
    assert {name: row[name] for name in ("topic", "partition", "epoch", "offset", "live", "ms", "metadata", "problem")} == {
        "topic": "t",
        "partition": 7,
        "epoch": 1,
        "offset": 70,
        "live": True,
        "ms": AT_MS,
        "metadata": "",
        "problem": None,
    }
    assert (rows[BEYOND]["offset"], rows[BEYOND]["problem"]) == (None, f"offset {U64_MAX} is over {2**63 - 1}")
    assert (rows[GONE]["live"], rows[GONE]["epoch"]) == (False, 1 << 32)
    assert found(stored(spark, meta)) == {**of(), BEYOND: None}


def test_equality_of_namespace_and_group_is_read_and_not_filtered(
    spark: SparkSession, meta: ServiceProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group alone is no range of keys, so Spark filters it. Contradictory or invalid values find nothing."""
    frame = stored(spark, meta)
    both = frame.filter((sf.col("namespace") == "tenant") & (sf.col("group") == "ä") & (sf.col("offset") > 50))
    assert pushed(both, capsys) == {"namespace", "group"}
    assert found(both) == {key: offset for key, offset in of("tenant", "ä").items() if offset and offset > 50}
    alone = frame.filter(sf.col("group") == "g")
    assert pushed(alone, capsys) == {"namespace"}
    assert found(alone) == of(None, "g")
    beside = stored(spark, meta, namespace="tenant").filter((sf.col("group") == "g") & (sf.col("namespace") == "default"))
    assert found(beside) == {}
    assert found(frame.filter("namespace = 'default' and namespace = 'tenant'")) == {}
    assert found(frame.filter("namespace = ''")) == {}
    assert found(stored(spark, meta, namespace="default", group="gg")) == of("default", "gg")


def test_lists_and_prefixes_of_names_are_read_and_not_filtered(
    spark: SparkSession, meta: ServiceProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ranges of keys; a namespace has to be named for groups. `explain` has only the filters that are left."""
    frame = stored(spark, meta)
    listed = frame.filter("namespace in ('default', 'tenant', 'gone') and `group` in ('g', 'ä', null)")
    assert pushed(listed, capsys) == {"namespace", "group"}
    assert found(listed) == {**of(None, "g"), **of("tenant", "ä")}
    begun = frame.filter("namespace = 'default' and `group` like 'g%'")
    assert pushed(begun, capsys) == {"namespace", "group"}
    assert found(begun) == of("default")
    assert pushed(frame.filter("`group` like 'g%'"), capsys) == {"namespace"}
    assert pushed(frame.filter("namespace = 'default' and `group` like '%g'"), capsys) == {"namespace"}


def test_without_pushdown_the_same_rows_are_read(spark: SparkSession, meta: ServiceProcess) -> None:
    """Spark then refuses a reader with filters, so the source returns one without."""
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, "false")
    try:
        assert found(stored(spark, meta).filter("namespace = 'tenant' and `group` = 'g'")) == of("tenant", "g")
    finally:
        spark.conf.set(name, str(before))


def test_what_is_written_is_read_again_and_reported(spark: SparkSession, meta: ServiceProcess, tmp_path: Path) -> None:
    """A second write changes nothing. A copy of another cluster has everything but numbers too large for Spark."""
    report = tmp_path / "report.json"

    def write(frame: DataFrame, **options: str) -> dict[str, Any]:
        target = {"endpoints": meta.address, "cluster": "copy", "report": str(report), **options}
        frame.write.format("offsets").options(**target).mode("append").save()
        counts: dict[str, Any] = json.loads(report.read_text())
        return counts

    source = stored(spark, meta, partitions=2, tombstones="true").cache()
    for _ in range(2):
        counts = write(source, badRows="skip")
        assert (counts["state"], counts["sent"], counts["applied"], counts["rejected"]) == ("committed", 41, 41, 1)
        assert f"offset {U64_MAX} is over" in counts["samples"][0]
    copy = spark.read.format("offsets").options(endpoints=meta.address, cluster="copy", tombstones="true").load()
    assert copy.exceptAll(source).isEmpty()
    assert [tuple(row)[:3] for row in source.exceptAll(copy).collect()] == [BEYOND]
    back = source.filter("`group` = 'gg'").select(
        "namespace", "group", "shard", (sf.col("offset") - 5).alias("offset"), "epoch", "live"
    )
    assert write(back.filter("offset >= 0"))["superseded"] == 9


def test_a_read_that_cannot_be_done_says_why(spark: SparkSession) -> None:
    """Before any task begins, so that Spark shows the text of the error."""
    for options, problem in (
        ({"endpoints": "a:1", "pageSise": "1"}, "pagesise: is no option of reading; there are endpoints,"),
        ({"endpoints": f"127.0.0.1:{free_port()}", "retryMs": "0"}, "no Meta Service answered, tried for 0 s"),
    ):
        with pytest.raises(PySparkException, match=re.escape(problem)):
            spark.read.format("offsets").options(**options).load().isEmpty()


def test_a_write_that_cannot_be_done_says_why(spark: SparkSession, meta: ServiceProcess) -> None:
    """Wrong mode, columns or rows: each is refused before anything is sent."""
    rows = spark.createDataFrame(
        [("default", "g", "new", 1), ("default", "g", "\x07", 1)], "namespace string, group string, shard string, offset long"
    )
    into = {"endpoints": meta.address, "cluster": "refused"}
    for frame, mode, problem in (
        (rows, "overwrite", r"mode\('overwrite'\) would take away"),
        (rows.drop("group"), "append", "column `group` is missing"),
        (rows.withColumn("lag", sf.lit(1)), "append", "column `lag` is not known: drop it"),
        (rows.coalesce(1), "append", r"group 'g', shard '\\x07': shard has the control character U\+0007"),
    ):
        with pytest.raises(PySparkException, match=problem):
            frame.write.format("offsets").options(**into).mode(mode).save()
    assert spark.read.format("offsets").options(**into).load().isEmpty()
