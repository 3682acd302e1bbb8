"""The jobs on a standalone Spark cluster, with two workers that have working directories of their own: `make interop`."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pyarrow.parquet as pq
import pytest

from adapter.pipeline.cli import ENTRY
from adapter.pipeline.lag.files import STATE, TABLES, LagFiles
from adapter.pipeline.places import Place
from adapter.testing.processes import ServiceProcess, ended, meta_process
from tests.interop.spark_standalone import ROOT, Cluster, spark_cluster
from tests.pipeline import faults
from tests.pipeline.object_store import SECRET, s3_bucket
from tests.pipeline.segments import commits, write_segment
from tests.pipeline.test_reconcile_job import live, merge, snapshot, standing

pytestmark = pytest.mark.timeout(1_200)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers that share all file systems."""
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A real Meta Service."""
    service = meta_process(tmp_path)
    with ended(service):
        service.start()
        yield service


@pytest.fixture(scope="module")
def bucket() -> Iterator[Place]:
    """A bucket of an S3 server."""
    with s3_bucket() as place:
        yield place


def run(cluster: Cluster, directory: Path, settings: str, *arguments: str) -> tuple[int, str]:
    """Run a job with these settings; returns its exit code and what it printed, which has no credentials."""
    path = directory / "job.toml"
    path.write_text(settings)
    ran = cluster.job(*arguments, "--config", str(path))
    assert SECRET not in ran.stderr + ran.stdout
    return ran.returncode, ran.stderr


def test_lag_and_report_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """In a directory that all share; the report shows what lag wrote."""
    (tmp_path / "journal").mkdir()
    for number in range(3):
        write_segment(tmp_path / "journal", commits(1, 3, 4, first_cycle=number), number)
    lag = f"[lag]\njournals = ['{tmp_path / 'journal'}']\noutput = '{tmp_path / 'lag'}'\n"
    report = f"[report]\ntables = '{tmp_path / 'lag'}'\noutput = '{tmp_path / 'report'}'\n"
    code, said = run(cluster, tmp_path, lag, "lag", "--available-now")
    assert (code, "36 rows" in said) == (0, True), said
    (tmp_path / "report.toml").write_text(report)
    command: list[str | Path] = [sys.executable, ENTRY, "report", "--config", tmp_path / "report.toml"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=cluster.driver, check=True)  # without Spark
    page = (tmp_path / "report" / "index.html").read_text()
    assert all(f"group-{number}" in page for number in range(3))


def test_reconcile_on_a_cluster_behind_urls(cluster: Cluster, meta: ServiceProcess, bucket: Place, tmp_path: Path) -> None:
    """The Meta Service is repaired from snapshots in the object store."""
    merge(meta.address, {"behind": live(1, 5)})
    path = snapshot(tmp_path / "a.parquet", "a", {"behind": live(1, 7), "missing": live(1, 8)})
    (bucket / "snapshots/a.parquet").write(path.read_bytes())
    places = f"snapshots = ['{(bucket / 'snapshots').url}']\noutput = '{(bucket / 'reconcile').url}'"
    code, said = run(
        cluster, tmp_path, f"[meta]\nendpoints = ['{meta.address}']\n[reconcile]\n{places}\n", "reconcile", "--apply"
    )
    assert code == 0, said
    assert {shard: record.offset for shard, record in standing(meta.address).items()} == {"behind": 7, "missing": 8}
    system, table = (bucket / "reconcile/applied").opened()
    assert pq.read_table(table, filesystem=system).num_rows == 2


def test_import_and_export_on_a_cluster(cluster: Cluster, meta: ServiceProcess, bucket: Place, tmp_path: Path) -> None:
    """What was imported from a shared directory is exported to the object store."""
    lines = "".join(f"g{number % 7},t,{number},{number + 1}\n" for number in range(1_000))
    (tmp_path / "offsets.csv").write_text(lines)
    head = f"[meta]\nendpoints = ['{meta.address}']\n"
    settings = f"{head}[import]\nformat = 'kafka-csv'\nfiles = ['{tmp_path / 'offsets.csv'}']\noutput = '{tmp_path / 'import'}'\n"
    code, said = run(cluster, tmp_path, settings, "import", "--apply")
    assert (code, "1,000 offsets merged, 0 of them below" in said) == (0, True), said
    settings = f"{head}[export]\nformat = 'kafka-csv'\noutput = '{(bucket / 'export').url}'\n"
    code, said = run(cluster, tmp_path, settings, "export")
    assert code == 0, said
    assert sorted((bucket / "export/files/offsets.csv").read().decode().splitlines()) == sorted(lines.splitlines())


class Shipped:
    """An environment with nothing but the adapter; it finds what the adapter needs in ours, as in an image that has all that."""

    def __init__(self, directory: Path) -> None:
        """Build the wheel, and the environment with it."""
        self.environment = directory / "env"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.environment], check=True)
        bare = directory / "bare"
        shutil.copytree(self.environment, bare, symlinks=True)
        self.bare = bare / "bin" / "python"
        command: list[str | Path] = [Path(sys.executable).with_name("hatchling"), "build", "-t", "wheel", "-d", directory]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        (self.wheel,) = directory.glob("*.whl")
        found = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n"
        for root in (self.environment, bare):
            packages = next(root.glob("lib/python*/site-packages"))
            (packages / "sitecustomize.py").write_text(found)
        ZipFile(self.wheel).extractall(next(self.environment.glob("lib/python*/site-packages")))  # noqa: S202 - our own wheel

    def pack(self, archive: Path) -> None:
        """Pack the environment as `venv-pack` does for users."""
        subprocess.run([Path(sys.executable).with_name("venv-pack"), "-q", "-p", self.environment, "-o", archive], check=True)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    """The adapter as a wheel and as an environment."""
    return Shipped(tmp_path_factory.mktemp("shipped"))


def exporting(meta: ServiceProcess, directory: Path) -> str:
    """The settings of an export of one offset; their path."""
    merge(meta.address, {"t/0": live(1, 5)})
    section = f"[export]\nnamespace = 'n'\nformat = 'kafka-csv'\noutput = '{directory / 'out'}'\n"
    (directory / "job.toml").write_text(f"[meta]\nendpoints = ['{meta.address}']\n{section}")
    return str(directory / "job.toml")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers without the adapter."""
    with spark_cluster(tmp_path_factory.mktemp("empty"), modules=tmp_path_factory.mktemp("no-modules")) as running:
        yield running


def test_a_packed_environment_is_shipped_to_the_workers(
    empty: Cluster, shipped: Shipped, meta: ServiceProcess, tmp_path: Path
) -> None:
    """By spark.archives; the driver runs it from a directory in which it is unpacked under the same name."""
    archive = empty.driver / "environment.tar.gz"
    shipped.pack(archive)
    with tarfile.open(archive) as packed:
        packed.extractall(empty.driver / "environment", filter="tar")
    arguments = ["export", "--config", exporting(meta, tmp_path), f"--conf=spark.archives={archive}#environment"]
    program = ["environment/bin/python", "-m", "adapter.pipeline"]
    ran = empty.job(*arguments, program=program, PYSPARK_PYTHON="environment/bin/python", PYTHONPATH="")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "out/files/offsets.csv").read_text() == "g,t,0,5\n"


def test_the_wheel_is_shipped_to_workers_that_have_the_rest(
    empty: Cluster, shipped: Shipped, meta: ServiceProcess, tmp_path: Path
) -> None:
    """By spark.submit.pyFiles; Spark takes no file that ends in .whl."""
    archive = shutil.copy(shipped.wheel, tmp_path / "offset_adapter.zip")
    arguments = ["export", "--config", exporting(meta, tmp_path), f"--conf=spark.submit.pyFiles={archive}"]
    ran = empty.job(*arguments, PYSPARK_PYTHON=str(shipped.bare))
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "out/files/offsets.csv").read_text() == "g,t,0,5\n"


def test_workers_without_the_adapter_are_told(empty: Cluster, shipped: Shipped, tmp_path: Path) -> None:
    """One line that says what to do."""
    (tmp_path / "data.csv").write_text("g,t,0,1\n")
    settings = f"[import]\nformat = 'kafka-csv'\nfiles = ['{tmp_path / 'data.csv'}']\noutput = '{tmp_path / 'out'}'\n"
    (tmp_path / "job.toml").write_text(settings)
    ran = empty.job("import", "--config", str(tmp_path / "job.toml"), PYSPARK_PYTHON=str(shipped.bare))
    assert ran.returncode == 2, ran.stderr
    assert ran.stderr.splitlines()[-1].startswith(
        "error: the Python of Spark's workers has no module adapter: ship the environment"
    )


def test_executors_of_the_lag_job_that_are_killed_are_replaced(cluster: Cluster, tmp_path: Path) -> None:
    """With kill -9, while they read and with half of their files written: all bytes are those of an undisturbed run."""
    for number in range(4):
        write_segment(tmp_path / "journal", commits(2, 3, 4, first_cycle=2 * number), number)
    done = tmp_path / "done"
    wanted = faults.environment(done, ("in stage 1", "executor"), ("files written", "executor"))
    conf = [f"--conf=spark.executorEnv.{name}={value}" for name, value in wanted.items() if name != "SPARK_CONF_DIR"]
    killing = [*conf, "--conf=spark.python.daemon.module=tests.pipeline.faulty_daemon"]
    for name, options in (("calm", []), ("killed", killing)):
        section = f"journals = ['{tmp_path / 'journal'}']\noutput = '{tmp_path / name}'\nmax_files = 2\n"
        code, said = run(cluster, tmp_path, f"[lag]\n{section}", "lag", "--available-now", *options)
        assert code == 0, said
    assert faults.happened(done, "executor") == ["files written", "in stage 1"]
    calm, killed = (LagFiles(Place.of(tmp_path / name)) for name in ("calm", "killed"))
    assert calm.complete() == killed.complete() == [0, 1]
    for table in (*TABLES, STATE):
        contents = [[place.read() for place in files.table_files(1, table)] for files in (calm, killed)]
        assert contents[0] == contents[1], table


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own needs root")
def test_a_directory_that_a_worker_does_not_share_is_told(tmp_path: Path) -> None:
    """By setting, directory and machine, before anything is read or written."""
    private = tmp_path / "private"
    private.mkdir()
    (tmp_path / "journal").mkdir()
    write_segment(tmp_path / "journal", commits(1, 3, 4), 0)
    settings = f"[lag]\njournals = ['{tmp_path / 'journal'}']\noutput = '{private}'\n"
    with spark_cluster(tmp_path / "cluster", private=private) as apart:
        code, said = run(apart, tmp_path, settings, "lag", "--available-now")
    assert code == 2, said
    assert said.splitlines()[-1] == (
        f"error: [lag] output = '{private}': on the machine worker-2, what the driver writes there is not seen: "
        "name a directory that every machine shares, or a URL"
    )
    assert list(private.iterdir()) == []
