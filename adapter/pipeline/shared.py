"""Checks at the start of a job that all machines of the cluster see the same directories. URLs are taken to be shared.

The driver leaves a file in each directory that a job writes, and so does each worker; both have to find the other's. What is only
read has to exist on each machine. Without this check Spark ends well although files of other machines are missing.
"""

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from adapter.errors import ConfigError
from adapter.pipeline.places import Place, unusable

_FOUND = pa.schema([(name, pa.string()) for name in ("machine", "field", "problem", "left")])
_TASKS_FOR_CORE = 2
_HOLD_S = 0.05  # a task keeps its core for so long, so that all executors get one
_PATIENCE_S = 3.0  # a network file system may show another machine's file late
_POLL_S = 0.1
_ADVICE = "name a directory that every machine shares, or a URL"


def check_shared(spark: SparkSession, reads: Mapping[str, Place], writes: Mapping[str, Place]) -> None:
    """Check the places, by the names of their settings. On one machine nothing is done.

    Raises ConfigError that names the setting, the directory and the machine.
    """
    if on_one_machine(spark):
        return
    read = {field: place.url for field, place in reads.items() if not place.is_remote and Path(place.url).exists()}
    written = {field: place for field, place in writes.items() if not place.is_remote}
    if not read and not written:
        return
    name = f".probe-{uuid.uuid4().hex}"
    probes: dict[str, Place] = {}
    try:
        for field, place in written.items():
            _begin(field, place, name)
            probes[field] = place / name
        _check(spark, read, {field: probe.url for field, probe in probes.items()})
    finally:
        for probe in probes.values():
            probe.delete_tree()


def on_one_machine(spark: SparkSession) -> bool:
    """Whether driver and workers are on the same machine."""
    return str(spark.sparkContext.master).startswith("local")


def _begin(field: str, place: Place, probe: str) -> None:
    try:
        (place / probe / "driver").write(b"")
    except OSError as error:
        raise unusable(place, field, error) from error


def _check(spark: SparkSession, read: Mapping[str, str], probes: Mapping[str, str]) -> None:
    tasks = _TASKS_FOR_CORE * spark.sparkContext.defaultParallelism
    look = partial(_look, read, probes)
    found = spark.range(0, tasks, 1, tasks).mapInArrow(look, from_arrow_schema(_FOUND)).collect()
    here = socket.gethostname()
    for machine, field, problem, left in found:
        path = read.get(field) or str(Path(probes[field]).parent)
        if problem:
            raise ConfigError(f"{field} = {path!r}: on the machine {machine}, {problem}: {_ADVICE}")
        if left and not _in_time(Path(probes[field], left).exists):
            raise ConfigError(
                f"{field} = {path!r}: what the machine {machine} writes there is not seen by {here}, where the job was started: "
                f"{_ADVICE}"
            )


def _look(read: Mapping[str, str], probes: Mapping[str, str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in the workers: a row for each place."""
    for _ in batches:
        machine = socket.gethostname()
        rows = [{"field": field, "problem": _unread(Path(path))} for field, path in read.items()]
        rows += [{"field": field, **_leave(Path(path))} for field, path in probes.items()]
        time.sleep(_HOLD_S)
        yield pa.RecordBatch.from_pylist([{"machine": machine, **row} for row in rows], _FOUND)


def _unread(path: Path) -> str | None:
    if not _in_time(path.exists):
        return "there is no such file or directory"
    return None if os.access(path, os.R_OK) else f"the user {os.getuid()} may not read it"


def _leave(probe: Path) -> dict[str, str | None]:
    """The name of the file that is left for the driver, or the problem, such as that the driver's is not there."""
    if not _in_time((probe / "driver").exists):
        return {"problem": "what the driver writes there is not seen"}
    name = uuid.uuid4().hex
    try:
        (probe / name).touch()
    except OSError as error:
        return {"problem": f"the user {os.getuid()} cannot write there ({error.strerror})"}
    return {"left": name}


def _in_time(seen: Callable[[], bool]) -> bool:
    until = time.monotonic() + _PATIENCE_S
    while not seen():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True
