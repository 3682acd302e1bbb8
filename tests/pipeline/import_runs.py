"""Shared by the tests of import and export: the jobs with their settings."""

from io import StringIO
from pathlib import Path
from typing import Any

import grpc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console

from adapter.model.codec import encode_key, encode_record
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import Switches
from adapter.pipeline.transfer import export_job as exports_job
from adapter.pipeline.transfer import import_job as imports_job
from adapter.rpc import meta_grpc, meta_pb
from adapter.runtime.settings.config import parse as parse_config


class Jobs:
    """Runs import and export against a Meta Service, in one namespace and directory."""

    def __init__(self, spark: SparkSession, endpoint: str, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self._meta = {"endpoints": [endpoint]}
        self._namespace = directory.name
        self.said = StringIO()

    def import_files(self, *files: Path, apply: bool = True, dry_run: bool = False, **section: Any) -> int:
        """Run an import; returns its exit code."""
        values = {"files": [str(path) for path in files], "output": str(self.directory / "import"), **section}
        return imports_job.run(self.spark, self._config("import", values), self._switches(apply=apply, dry_run=dry_run))

    def export(self, *, dry_run: bool = False, **section: Any) -> int:
        """Run an export; returns its exit code."""
        values = {"output": str(self.directory / "export"), **section}
        return exports_job.run(self.spark, self._config("export", values), self._switches(dry_run=dry_run))

    def table(self, name: str, job: str = "import") -> list[dict[str, Any]]:
        """The rows of a job's table."""
        rows: list[dict[str, Any]] = pq.read_table(self.directory / job / name).to_pylist()
        return rows

    def file(self, name: str) -> Path:
        """The path of an exported file."""
        return self.directory / "export" / "files" / name

    def store(self, offsets: dict[tuple[str, str], int]) -> None:
        """Store these offsets in the Meta Service: (group, shard) -> offset."""
        keys = [encode_key(OffsetKey(self._namespace, *key)) for key in offsets]
        records = [encode_record(OffsetRecord(1, offset)) for offset in offsets.values()]
        with grpc.insecure_channel(self._meta["endpoints"][0]) as channel:
            request = meta_pb.MergeOffsetDataRequest(cluster_name="default", keys=keys, records=records)
            assert meta_grpc.MetaServiceServiceStub(channel).MergeOffsetData(request).applied == len(offsets)

    def _config(self, job: str, values: dict[str, Any]) -> JobConfig:
        return parse_config({"meta": self._meta, job: {"namespace": self._namespace, **values}}, JobConfig, source="test")

    def _switches(self, **switches: bool) -> Switches:
        return Switches(console=Console(file=self.said, width=200), **switches)
