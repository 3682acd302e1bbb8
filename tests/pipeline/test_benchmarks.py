"""The pipeline's benchmarks run. What they measure is no test's business."""

import json
from pathlib import Path

from tests.acceptance.test_benchmarks import bench

BARS = {"pipeline_source": 4, "pipeline_lag": 1, "pipeline_reconcile": 1, "pipeline_import": 0}


def test_the_benchmarks_of_the_pipeline_run(tmp_path: Path) -> None:
    """A tiny version of each stores its tables, and its bars with their verdicts."""
    process = bench(*BARS, "--results", str(tmp_path))
    assert process.returncode == 0, process.stderr
    for name, bars in BARS.items():
        stored = json.loads((tmp_path / f"{name}.json").read_text())
        assert all(table["rows"] for table in stored["tables"])
        assert len(stored["bars"]) == bars
