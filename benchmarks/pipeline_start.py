"""The start of a short job: Spark, one small task in Python, the end; with both of Java's compilers, and with the first only.

The jobs import, export and report start with the first only. Each is a process of its own, in turns. CPU seconds: Python,
the JVM, and those of Spark's Python workers that were waited for.
"""

import asyncio
import json
import statistics
import sys
from pathlib import Path

from rich.progress import Progress

from benchmarks.processes import ROOT
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "the start of a short job of the pipeline"
LIMIT = 0.8  # of the CPU with both compilers
BOTH, FIRST = "both compilers", "the first only"
SESSION = """
import json, resource, sys, time
began = time.monotonic()
from pyspark import SparkContext
from adapter.pipeline.session import spark_session

if __name__ == "__main__":
    spark = spark_session("start", "local[2]", {"spark.ui.showConsoleProgress": "false"}, short=sys.argv[1] == "short")
    spark.range(4).repartition(2).mapInArrow(lambda batches: batches, "id long").groupBy("id").count().collect()
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
    found: dict[str, list[tuple[float, float]]] = {BOTH: [], FIRST: []}
    task = progress.add_task("short jobs", total=scale.start_rounds * len(found))
    for _ in range(scale.start_rounds):
        for name, runs in found.items():
            runs.append(await _start(script, "short" if name == FIRST else "long"))
            progress.advance(task)
    middle = {name: [statistics.median(times) for times in zip(*runs, strict=True)] for name, runs in found.items()}
    ratio = middle[FIRST][1] / middle[BOTH][1]
    table = Table("medians, seconds", ["", "time", "CPU"], [[name, *times] for name, times in middle.items()])
    return Result("pipeline_start", TITLE, [table], [Bar("CPU of a short job, of that with both compilers", ratio, LIMIT)])


async def _start(script: Path, kind: str) -> tuple[float, float]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), kind, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    told, said = await process.communicate()
    if process.returncode:
        raise RuntimeError(said.decode(errors="replace"))
    seconds, cpu = json.loads(told.splitlines()[-1])
    return seconds, cpu
