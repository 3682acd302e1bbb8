"""Options: the error for each bad one has its documented name and says what to do."""

import re
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from adapter.errors import ConfigError
from adapter.pipeline.offsets.options import ReadOptions, WriteOptions, parse_options
from adapter.pipeline.offsets.snapshot import SnapshotReader
from adapter.pipeline.offsets.source import OffsetsDataSource
from adapter.runtime.settings.config import ClientTls


def test_options_are_read_whatever_their_capitals() -> None:
    """Spark passes them in lower case."""
    given = CaseInsensitiveDict(
        {
            "endpoints": "a:1, b:2,",
            "Cluster": "c",
            "NAMESPACE": "n",
            "group": "g",
            "pageSize": "20000",
            "timeoutMs": "500",
            "retryMs": "0",
            "tombstones": "TRUE",
            "tlsCa": "ca",
            "tlsCert": "cert",
            "tlsKey": "key",
        }
    )
    options = parse_options(ReadOptions, given)
    assert (options.meta.endpoints, options.meta.cluster, options.meta.timeout_ms) == (("a:1", "b:2"), "c", 500)
    assert options.meta.tls == ClientTls(ca=Path("ca"), cert=Path("cert"), key=Path("key"))
    assert (options.namespace, options.group, options.page_size, options.retry_ms, options.tombstones) == (
        "n",
        "g",
        20_000,
        0,
        True,
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "option endpoints: is missing; give host:port"),
        ({"endpoints": ","}, "option endpoints: is empty; give host:port"),
        ({"endpoints": "a"}, "option endpoints: 'a' is not host:port"),
        ({"endpoints": "a:1", "path": "x"}, "there is no path ('x'): call load() or save() without an argument"),
        ({"path": "s3://KEY:SECRET@b/p"}, "there is no path ('s3://b/p')"),
        ({"endpoints": "a:1", "pagesise": "1"}, "pagesise: is no option of reading; there are endpoints, cluster, timeoutMs,"),
        ({"endpoints": "a:1", "badrows": "skip"}, "badRows: is no option of reading"),
        ({"endpoints": "a:1", "pagesize": "20001"}, "option pageSize: Input should be less than or equal to 20000 (got '20001')"),
        ({"endpoints": "a:1", "partitions": "0"}, "option partitions: Input should be greater"),
        ({"endpoints": "a:1", "timeoutms": "x"}, "option timeoutMs: Input should be a valid integer"),
        ({"endpoints": "a:1", "tombstones": "x"}, "option tombstones: Input should be a valid boolean"),
        ({"endpoints": "a:1", "namespace": ""}, "option namespace: is empty"),
        ({"endpoints": "a:1", "cluster": "c\x00"}, "option cluster: has the control character"),
        ({"endpoints": "a:1", "group": "g"}, "group needs the option namespace"),
        ({"endpoints": "a:1", "tlskey": "k"}, "tlsCert and tlsKey belong together"),
        ({"endpoints": "a:1", "tlskey": "k", "tlscert": "c"}, "tlsCert needs tlsCa"),
    ],
)
def test_a_bad_option_of_a_read_is_told_by_its_name(options: dict[str, str], problem: str) -> None:
    """Before any call to the Meta Service."""
    source = OffsetsDataSource(CaseInsensitiveDict(options))
    with pytest.raises(ConfigError, match=re.escape(problem)):
        source.reader(source.schema())


@pytest.mark.parametrize(
    ("path", "problem"), [("", "is a directory"), ("gone/report.json", "does not exist on the driver's machine")]
)
def test_a_report_that_cannot_be_written_is_told_before_the_write(tmp_path: Path, path: str, problem: str) -> None:
    """Not after all rows are merged."""
    with pytest.raises(ConfigError, match=f"option report: .*{problem}"):
        parse_options(WriteOptions, {"endpoints": "a:1", "report": str(tmp_path / path)})


def test_all_bad_options_are_told_at_once() -> None:
    """One run is enough to correct all of them."""
    with pytest.raises(ConfigError) as caught:
        parse_options(WriteOptions, {"endpoints": "a", "badrows": "x", "partitions": "3"})
    assert [problem.split(":")[1].strip() for problem in str(caught.value).split("; offsets")] == [
        "option endpoints",
        "option badRows",
        "partitions",
    ]


def test_a_schema_of_the_callers_is_refused() -> None:
    """The source has its own columns; under other types values could be wrong."""
    source = OffsetsDataSource(CaseInsensitiveDict({"endpoints": "a:1"}))
    with pytest.raises(ConfigError, match=r"read without \.schema\(\)"):
        source.reader(StructType().add("namespace", "string"))


def test_a_table_of_a_snapshot_keeps_its_place_but_no_credentials() -> None:
    """Whoever reads the table has its options: they are in the schema."""
    schema = OffsetsDataSource({"option.snapshot": "/data/snapshot", "provider": "offsets"}).schema()
    assert schema[0].metadata["offsets.options"] == {"snapshot": "/data/snapshot"}
    with pytest.raises(ConfigError, match="has credentials") as caught:
        OffsetsDataSource({"option.snapshot": "s3://key:secret@bucket/snapshot"}).schema()
    assert "secret@" not in str(caught.value)


def test_a_statement_reads_what_it_names_instead_of_what_its_table_does() -> None:
    """A table of a Meta Service can be read from a snapshot; its other options stay."""
    schema = OffsetsDataSource({"option.endpoints": "a:1", "option.cluster": "c"}).schema()
    reader = OffsetsDataSource({"snapshot": "/data/snapshot"}).reader(schema)
    assert isinstance(reader, SnapshotReader)
    options = reader._options
    assert (options.endpoints, options.snapshot, options.cluster) == ((), "/data/snapshot", "c")
