"""The lag job, killed with -9 at a chosen step: its driver, or the Python worker or executor of a task. Each fault happens once.

`python -m tests.pipeline.faulty_driver` is the job's command, `faulty_daemon` forks Spark's Python workers. The faults are in the
environment: FAULTS, a JSON list of (step, victim), and FAULTS_DONE, a directory with a file for each fault that has happened.
"""

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from adapter.pipeline.lag import batch, stages
from adapter.pipeline.places import Place

# The steps of a batch, in their order.
IN_TASKS = ("in stage 1", "in stage 2", "files written", "groups combined")
IN_DRIVER = ("before the manifest", "after the manifest", "while deleting")
BUCKETS = 16  # as many as have a stage of their own for the groups
_FAULTS, _DONE, _DRIVER = "FAULTS", "FAULTS_DONE", "FAULTS_DRIVER"
# A worker may take longer than 15 s to its first answer on a busy machine.
_CONF = "spark.python.daemon.module tests.pipeline.faulty_daemon\nspark.python.authenticate.socketTimeout 5m\n"


def environment(directory: Path, *faults: tuple[str, str]) -> Mapping[str, str]:
    """Variables for a run with these faults; files are written to the directory."""
    (directory / "conf").mkdir(parents=True, exist_ok=True)
    (directory / "conf" / "spark-defaults.conf").write_text(_CONF)
    return {_FAULTS: json.dumps(faults), _DONE: str(directory), "SPARK_CONF_DIR": str(directory / "conf")}


def happened(directory: Path, victim: str) -> list[str]:
    """The steps at which this victim was killed."""
    return sorted(path.stem for path in directory.glob(f"*.{victim}"))


def install_in_worker() -> None:
    """Let the faults of tasks happen in this process."""
    write = stages._write

    def shards_written(work: Any, name: str, *rest: Any) -> str:
        path = write(work, name, *rest)
        if name == "shards":
            _fault("files written")
        return path

    stages.read_table = _after("in stage 1", stages.read_table)  # type: ignore[attr-defined]
    stages._evaluated = _after("in stage 2", stages._evaluated)
    stages.combined = _after("groups combined", stages.combined)
    stages._write = shards_written  # type: ignore[assignment]


def install_in_driver() -> None:
    """Let the faults of the driver happen in this process."""
    os.environ[_DRIVER] = str(os.getpid())
    batch.FIRST_BUCKETS = BUCKETS
    write, delete_tree = Place.write, Place.delete_tree

    def written(place: Place, content: bytes) -> None:
        manifest = "/complete/" in place.url
        if manifest:
            _fault("before the manifest")
        write(place, content)
        if manifest:
            _fault("after the manifest")

    def deleted(place: Place) -> None:
        for entry in place.entries()[:1]:
            (place / entry.path).delete()
        _fault("while deleting")
        delete_tree(place)

    Place.write, Place.delete_tree = written, deleted  # type: ignore[method-assign,assignment]


def _after(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(*arguments: Any) -> Any:
        result = function(*arguments)
        _fault(step)
        return result

    return faulty


def _fault(step: str) -> None:
    for wanted, victim in json.loads(os.environ[_FAULTS]):
        if wanted == step and _first(step, victim):
            _kill(victim)


def _first(step: str, victim: str) -> bool:
    try:
        (Path(os.environ[_DONE]) / f"{step}.{victim}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _kill(victim: str) -> None:
    match victim:
        case "driver":  # with its JVM
            os.killpg(int(os.environ[_DRIVER]), signal.SIGKILL)
        case "executor":  # the parent of the process that forks the workers
            os.kill(int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
        case _:
            os.kill(os.getpid(), signal.SIGKILL)
