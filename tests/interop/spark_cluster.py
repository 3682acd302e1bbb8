"""The jobs on a standalone Spark cluster, with two workers that have working directories of their own: `make interop`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.spark_standalone import Cluster, spark_cluster
from tests.pipeline.segments import commits, write_segment

pytestmark = pytest.mark.timeout(1_200)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers that share all file systems."""
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def settings(directory: Path, text: str) -> Path:
    """A job.toml."""
    path = directory / "job.toml"
    path.write_text(text)
    return path


def test_lag_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """As on one machine: all segments are read, and the tables are complete."""
    (tmp_path / "journal").mkdir()
    for number in range(3):
        write_segment(tmp_path / "journal", commits(1, 3, 4, first_cycle=number), number)
    config = settings(tmp_path, f"[lag]\njournals = ['{tmp_path / 'journal'}']\noutput = '{tmp_path / 'lag'}'\n")
    ran = cluster.job("lag", "--available-now", "--config", str(config))
    assert ran.returncode == 0, ran.stderr
    assert "36 rows" in ran.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own needs root")
def test_a_directory_that_a_worker_does_not_share_is_told(tmp_path: Path) -> None:
    """By setting, directory and machine, before anything is read or written."""
    private = tmp_path / "private"
    private.mkdir()
    (tmp_path / "journal").mkdir()
    write_segment(tmp_path / "journal", commits(1, 3, 4), 0)
    config = settings(tmp_path, f"[lag]\njournals = ['{tmp_path / 'journal'}']\noutput = '{private}'\n")
    with spark_cluster(tmp_path / "cluster", private=private) as apart:
        ran = apart.job("lag", "--available-now", "--config", str(config))
    assert ran.returncode == 2, ran.stderr
    assert ran.stderr.splitlines()[-1] == (
        f"error: [lag] output = '{private}': on the machine worker-2, what the driver writes there is not seen: "
        "name a directory that every machine shares, or a URL"
    )
    assert list(private.iterdir()) == []
