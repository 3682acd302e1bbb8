"""The data source `offsets` in SQL: tables and views that are read and written, and what Spark refuses."""

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from adapter.model.schemas import RECORDS
from adapter.pipeline.journal.segment import COLUMNS
from tests.pipeline.bulk_meta import BulkMeta, serving
from tests.unit.helpers import key, record

META = BulkMeta()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a Meta Service."""
    with serving(META) as found:
        yield found


@pytest.fixture
def meta(spark: SparkSession) -> Iterator[BulkMeta]:
    """A Meta Service with the offset of one shard; tables and views are dropped at the end."""
    META.records = {key("s1"): record(5)}
    yield META
    for name in ("fleet", "other", "bare"):
        spark.sql(f"drop table if exists {name}")
    spark.catalog.dropTempView("seen")


def standing(meta: BulkMeta) -> dict[str, int]:
    """The offsets by shard."""
    return {found.shard: value.offset for found, value in meta.records.items()}


def test_a_table_keeps_its_options_for_reads_and_writes(spark: SparkSession, meta: BulkMeta, address: str) -> None:
    """Spark passes those of CREATE TABLE to neither. What an INSERT leaves out has the defaults of a write."""
    spark.sql(f"create table fleet using offsets options (endpoints '{address}', timeoutMs '20000', badRows 'skip')")
    assert [tuple(row) for row in spark.sql("select shard, offset from fleet").collect()] == [("s1", 5)]
    spark.sql("insert into fleet (namespace, `group`, shard, offset) values ('default', 'g', 's2', 7), ('default', 'g', '', 1)")
    assert standing(meta) == {"s1": 5, "s2": 7}
    spark.sql("insert into fleet by name select * from fleet where shard = 's2'")
    assert standing(meta) == {"s1": 5, "s2": 7}
    assert spark.sql("select count(*) from fleet with (pageSize = 1) where `group` = 'g'").first() == (2,)
    assert spark.table("fleet").columns == RECORDS.names


def test_rows_of_a_table_go_to_the_meta_service_that_the_write_names(spark: SparkSession, meta: BulkMeta, address: str) -> None:
    """Not to that of the table that they were read from."""
    spark.sql(f"create table fleet using offsets options (endpoints '{address}', cluster 'a')")
    copy = BulkMeta()
    with serving(copy) as elsewhere:
        spark.table("fleet").write.format("offsets").option("endpoints", elsewhere).mode("append").save()
    assert standing(copy) == standing(meta)


def test_no_plan_shows_the_credentials_of_a_view(spark: SparkSession) -> None:
    """Nor the event log, which has the plans: the statement has the URL."""
    statement = "create temporary view j using `offset-journal` options (path 's3a://KEY:HIDDEN/%@bucket/j')"
    (row,) = spark.sql(f"explain extended {statement}").collect()
    assert "s3a://" in row.plan
    assert "HIDDEN" not in row.plan


def test_a_view_is_read_and_written(spark: SparkSession, meta: BulkMeta, address: str) -> None:
    """A temporary view has its options from Spark."""
    spark.sql(f"create temporary view seen using offsets options (endpoints '{address}')")
    spark.sql("insert into seen (namespace, `group`, shard, offset) select namespace, `group`, 's3', 9 from seen")
    assert standing(meta) == {"s1": 5, "s3": 9}
    assert spark.sql("select max(offset) from seen").first() == (9,)


def test_a_view_with_options_of_reading_is_not_written(spark: SparkSession, meta: BulkMeta, address: str) -> None:
    """Spark gives all options of a view to the writer, too."""
    spark.sql(f"create temporary view seen using offsets options (endpoints '{address}', namespace 'default')")
    with pytest.raises(PySparkException, match="namespace: is no option of writing"):
        spark.sql("insert into seen (namespace, `group`, shard, offset) values ('default', 'g', 's3', 9)")
    assert standing(meta) == {"s1": 5}


def test_a_row_that_is_not_live_is_no_delete(spark: SparkSession, meta: BulkMeta, address: str) -> None:
    """It is superseded by what stands at its offset; above it, it is as an expiry, after which a commit goes on."""
    spark.sql(f"create temporary view seen using offsets options (endpoints '{address}')")
    insert = "insert into seen (namespace, `group`, shard, offset, live) values ('default', 'g', 's1', :offset, :live)"
    for offset, live, stands in ((5, False, True), (6, False, False), (6, True, True)):
        spark.sql(insert, {"offset": offset, "live": live})
        (found,) = meta.records.values()
        assert (found.epoch, found.offset, found.live) == (1, offset, stands)


def test_columns_have_comments(spark: SparkSession, meta: BulkMeta, address: str) -> None:  # noqa: ARG001
    """In both sources, every column."""
    for source, options, schema in (
        ("offsets", f"endpoints '{address}'", RECORDS),
        ("`offset-journal`", "path '/nowhere'", COLUMNS),
    ):
        spark.sql(f"create or replace temporary view seen using {source} options ({options})")
        told = {row.col_name: row.comment for row in spark.sql("describe seen").collect()}
        assert "messages" in told["offset"]
        assert all(told[name] for name in schema.names)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("create table other using offsets options (endpoint 'a:1')", "no such option: endpoint"),
        ("create table other using offsets options (endpoints 'a:1', pageSize '0')", "option pageSize: .* 1 .*got '0'"),
        ("create table other using offsets options (cluster 'c')", "option endpoints: is missing"),
        ("create table other using offsets options (endpoints '{0}') as select 1 as offset", "and no AS SELECT"),
        ("insert into bare values ('default')", "no list of columns"),
        ("insert overwrite seen select * from seen", r"does not support .*overwrite|mode\(.overwrite.\) would take away"),
        ("delete from seen where shard = 's1'", "DELETE|delete"),
    ],
)
def test_what_cannot_be_done_is_refused(spark: SparkSession, meta: BulkMeta, address: str, statement: str, problem: str) -> None:
    """By the source when it knows, else by Spark; nothing is changed."""
    spark.sql(f"create temporary view seen using offsets options (endpoints '{address}')")
    spark.sql(f"create table bare (namespace string) using offsets options (endpoints '{address}')")
    with pytest.raises(PySparkException, match=problem):
        spark.sql(statement.format(address))
    assert standing(meta) == {"s1": 5}
