"""The jobs with places behind hdfs:// and gs://: `make interop`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import Switches
from adapter.pipeline.lag import job as lag_job
from adapter.pipeline.lag.files import LagFiles
from adapter.pipeline.places import Place
from adapter.pipeline.transfer import import_job
from adapter.runtime.settings.config import parse
from tests.interop.spark_jars import google_storage, hdfs
from tests.pipeline.bulk_meta import BulkMeta, serving
from tests.pipeline.conftest import spark as _spark
from tests.pipeline.segments import commits, write_segment

pytestmark = pytest.mark.timeout(600)
spark = _spark


@pytest.mark.parametrize("server", [hdfs, google_storage])
def test_lag_and_import(server: Callable[[Path], AbstractContextManager[str]], spark: SparkSession, tmp_path: Path) -> None:
    """The same tables as from a directory; what is written replaces what was there as a whole."""
    with server(tmp_path / "server") as root:
        place = Place.of(root) / "data"
        for content in (b"torn", b"g,t,0,5\n"):
            (place / "from/offsets.csv").write(content)
        assert [entry.path for entry in (place / "from").entries()] == ["offsets.csv"]
        for number in range(2):
            path = write_segment(tmp_path / "journal", commits(2, 3, 4, first_cycle=2 * number), number)
            (place / f"journal/{path.relative_to(tmp_path / 'journal')}").write(path.read_bytes())
        console = Console(file=StringIO(), width=200)
        for journals, output in (
            (place / "journal", place / "lag"),
            (Place.of(tmp_path / "journal"), Place.of(tmp_path / "lag")),
        ):
            section = {"journals": [journals.url], "output": output.url, "max_files": 1}
            section["checkpoint"] = str(tmp_path / f"checkpoint-{output.is_remote}")
            settings = parse({"lag": section}, JobConfig, source="test")
            assert lag_job.run(spark, settings, Switches(available_now=True, console=console)) == 0
        remote, plain = LagFiles(place / "lag"), LagFiles(Place.of(tmp_path / "lag"))
        assert remote.complete() == plain.complete() == [0, 1]
        for name in ("shards", "groups"):
            assert remote.read(1, name).to_pylist() == plain.read(1, name).to_pylist()
        meta = BulkMeta()
        with serving(meta) as address:
            section = {"files": [(place / "from").url], "format": "kafka-csv", "output": (place / "import").url}
            settings = parse({"meta": {"endpoints": [address]}, "import": section}, JobConfig, source="test")
            assert import_job.run(spark, settings, Switches(apply=True, console=console)) == 0
    assert {name.shard: record.offset for name, record in meta.records.items()} == {"t/0": 5}
