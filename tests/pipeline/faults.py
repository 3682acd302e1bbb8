"""The lag job, killed with -9 at a chosen step: its driver, or the Python worker or executor of a task. Each fault happens once.

    python -m tests.pipeline.faults lag --config job.toml ...

runs the job's command. The faults are in the environment: FAULTS, a JSON list of (step, victim), and FAULTS_DONE, a directory in
which a file stands for each fault that has happened. SPARK_CONF_DIR has to name this module's `daemon` as Spark's.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from adapter.pipeline.lag import stages
from adapter.pipeline.places import Place

STEPS = ("in stage 1", "in stage 2", "files written", "before the manifest", "after the manifest", "while deleting")
VICTIMS = ("driver", "worker", "executor")
_FAULTS, _DONE, _DRIVER = "FAULTS", "FAULTS_DONE", "FAULTS_DRIVER"
_CONF = "spark.python.daemon.module tests.pipeline.faulty_daemon\n"


def environment(directory: Path, *faults: tuple[str, str]) -> Mapping[str, str]:
    """Variables for a run with these faults; files are written to the directory."""
    (directory / "conf").mkdir(parents=True, exist_ok=True)
    (directory / "conf" / "spark-defaults.conf").write_text(_CONF)
    return {_FAULTS: json.dumps(faults), _DONE: str(directory), "SPARK_CONF_DIR": str(directory / "conf")}


def happened(directory: Path) -> list[str]:
    """The steps at which a fault has happened."""
    return sorted(path.stem for path in directory.glob("*.done"))


def install() -> None:
    """Let the faults happen in this process: the driver's, or a Python worker's."""
    read, evaluated, write = stages.read_table, stages._evaluated, stages._write  # noqa: SLF001
    place_write, delete_tree = Place.write, Place.delete_tree

    def shards_written(work: Any, name: str, *rest: Any) -> str:
        path = write(work, name, *rest)
        if name == "shards":
            _fault("files written")
        return path

    def placed(place: Place, content: bytes) -> None:
        manifest = "/complete/" in place.url
        if manifest:
            _fault("before the manifest")
        place_write(place, content)
        if manifest:
            _fault("after the manifest")

    def deleted(place: Place) -> None:
        for entry in place.entries()[:1]:
            (place / entry.path).delete()
        _fault("while deleting")
        delete_tree(place)

    for target, name, function in (
        (stages, "read_table", _after("in stage 1", read)),
        (stages, "_evaluated", _after("in stage 2", evaluated)),
        (stages, "_write", shards_written),
        (Place, "write", placed),
        (Place, "delete_tree", deleted),
    ):
        setattr(target, name, function)


def _after(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(*arguments: Any) -> Any:
        result = function(*arguments)
        _fault(step)
        return result

    return faulty


def _fault(step: str) -> None:
    for wanted, victim in json.loads(os.environ[_FAULTS]):
        if wanted == step and _first(step):
            _kill(victim)


def _first(step: str) -> bool:
    try:
        (Path(os.environ[_DONE]) / f"{step}.done").touch(exist_ok=False)
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


if __name__ == "__main__":
    from adapter.pipeline.cli import main

    os.environ[_DRIVER] = str(os.getpid())
    install()
    sys.exit(main())
