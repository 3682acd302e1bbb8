"""What Spark's own processes import of the data sources: for each step of a query, and to look up which sources there are."""

import subprocess
import sys

HEAVY = {"pyarrow", "numpy", "pydantic", "grpc", "structlog", "rich"}


def loaded(*modules: str) -> set[str]:
    """The modules that a process has which imports these."""
    script = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    return {*subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()}


def test_looking_up_the_sources_loads_little() -> None:
    """Every session does it in which this package is installed, whatever it reads."""
    assert not HEAVY & (loaded("pyspark_offsets", "pyspark_offset_journal") - loaded("pyspark.sql.worker.lookup_data_sources"))


def test_reading_loads_no_logging() -> None:
    """Only what goes wrong is logged there."""
    modules = ("adapter.pipeline.offsets.opening", "adapter.pipeline.offsets.reader", "adapter.pipeline.journal.readers")
    assert not {"structlog", "rich"} & loaded(*modules)
