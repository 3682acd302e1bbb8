"""The start of a short job: Spark, a small task in Python, one of our sources, the end.

With both of Java's compilers and with the first only, as the jobs import and export; and, with the first, where Spark's Python
processes import PySpark from: the archive of Spark's directory, or what pip installed, as in the environment of the Makefile.
Each is a process of its own, in turns. CPU seconds: Python and the JVM; Spark's Python processes are not waited for.
"""

import asyncio
import json
import os
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pyspark
from rich.progress import Progress

from benchmarks.processes import ROOT
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "the start of a short job of the pipeline"
LIMIT = 0.8  # of the CPU with both compilers
TIME_LIMIT = 0.95  # of the time with the archive
BOTH, FIRST, ARCHIVE = "both compilers", "the first only", "the first only, PySpark from an archive"
SESSION = """
import json, resource, sys, time
began = time.monotonic()
from pyspark import SparkContext
from adapter.pipeline.session import spark_session

if __name__ == "__main__":
    spark = spark_session("start", "local[2]", {"spark.ui.showConsoleProgress": "false"}, short=sys.argv[1] == "short")
    spark.range(4).repartition(2).mapInArrow(lambda batches: batches, "id long").groupBy("id").count().collect()
    spark.read.format("offset-journal").load(sys.argv[2]).groupBy("group").count().collect()
    spark.stop()
    gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends
    gateway.proc.wait()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps([time.monotonic() - began, sum(one.ru_utime + one.ru_stime for one in used)]))
"""


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Start each in turns."""
    script = directory / "session.py"
    script.write_text(SESSION)
    (directory / "journal").mkdir()
    with_archive = {"SPARK_HOME": str(spark_home_with_archive(directory / "spark"))}
    found: dict[str, list[tuple[float, float]]] = {BOTH: [], FIRST: [], ARCHIVE: []}
    task = progress.add_task("short jobs", total=scale.start_rounds * len(found))
    for _ in range(scale.start_rounds):
        for name, runs in found.items():
            arguments = "long" if name == BOTH else "short", str(directory / "journal")
            runs.append(await _start(script, arguments, with_archive if name == ARCHIVE else {}))
            progress.advance(task)
    middle = {name: [statistics.median(times) for times in zip(*runs, strict=True)] for name, runs in found.items()}
    table = Table("medians, seconds", ["", "time", "CPU"], [[name, *times] for name, times in middle.items()])
    bars = [
        Bar("CPU of a short job, of that with both compilers", middle[FIRST][1] / middle[BOTH][1], LIMIT),
        Bar("time of a short job, of that with PySpark's archive", middle[FIRST][0] / middle[ARCHIVE][0], TIME_LIMIT),
    ]
    return Result("pipeline_start", TITLE, [table], bars)


def spark_home_with_archive(home: Path) -> Path:
    """A SPARK_HOME as pip makes it, with PySpark's archive; our environment has emptied it."""
    installed = Path(pyspark.__file__).parent
    (home / "python" / "lib").mkdir(parents=True)
    for entry in installed.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    with ZipFile(home / "python" / "lib" / "pyspark.zip", "w", ZIP_DEFLATED) as archive:
        for file in (*installed.rglob("*.py"), *installed.rglob("*.json")):
            archive.write(file, file.relative_to(installed.parent))
    return home


async def _start(script: Path, arguments: tuple[str, ...], environment: Mapping[str, str]) -> tuple[float, float]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), *arguments),
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    told, said = await process.communicate()
    if process.returncode:
        raise RuntimeError(said.decode(errors="replace"))
    seconds, cpu = json.loads(told.splitlines()[-1])
    return seconds, cpu
