"""The check that all machines see the same directories, without a cluster: workers are processes of their own here as well."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from adapter.errors import ConfigError
from adapter.pipeline import shared
from adapter.pipeline.places import Place

FIELD = "[lag] output"


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one machine nothing would be checked."""
    monkeypatch.setattr(shared, "on_one_machine", lambda _: False)


def test_directories_that_all_share_are_left_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    """The output is made; nothing is left in it. URLs, and inputs that are not there, are not checked."""
    reads = {"[lag] journals": Place.of(tmp_path), "[import] files": Place.of(tmp_path / "*.csv")}
    writes = {FIELD: Place.of(tmp_path / "out"), "[export] output": Place("s3://bucket/nowhere")}
    shared.check_shared(spark, reads, writes)
    assert list(tmp_path.rglob("*")) == [tmp_path / "out"]


def test_what_a_worker_does_not_see_is_told(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By setting, directory and machine. Here the driver does not write what it should."""
    monkeypatch.setattr(shared, "_begin", lambda *_: None)
    with pytest.raises(ConfigError) as raised:
        shared.check_shared(spark, {}, {FIELD: Place.of(tmp_path)})
    told = str(raised.value)
    assert told.startswith(f"{FIELD} = '{tmp_path}': on the machine ")
    assert told.endswith(", what the driver writes there is not seen: name a directory that every machine shares, or a URL")


def test_what_the_driver_does_not_see_is_told(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when each machine has a directory of its own with the same path. The patience is that of the driver."""
    monkeypatch.setattr(shared, "_in_time", lambda _: False)
    with pytest.raises(
        ConfigError, match=r"what the machine .* writes there is not seen by .*, where the job was started: name a"
    ):
        shared.check_shared(spark, {}, {FIELD: Place.of(tmp_path)})
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_made_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """Before Spark does anything."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"\[lag\] output = .*file/out': Not a directory"):
        shared.check_shared(spark, {}, {FIELD: Place.of(tmp_path / "file" / "out")})
