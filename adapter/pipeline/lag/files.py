"""The output directory of the lag job: tables and state by batch. Only complete batches are ever read.

    <output>/shards/batch=N, groups/, rewinds/, rejects/    the tables
    <output>/state/batch=N/keys, heads, moves, clock        the state with which batch N + 1 begins
    <output>/complete/N.json                                batch N is complete; `now`, rows, newest time of each broker
    <output>/.staged/                                       a batch in progress
    <output>/checkpoint/                                    Spark's checkpoint: which segments are in which batch

A batch is written to `.staged`, based on the state of the last complete batch. Then each table and the state are renamed into
place, and `complete/N.json` is written last. What a crash leaves behind:

- While staging: nothing else has changed. The next start removes `.staged` and repeats the batch.
- Between two renames: without `complete/N.json` the state is not read. The batch is repeated from the same state with the same
  rows, and replaces what was renamed. Each visible directory is complete at any time.
- After `complete/N.json`, before Spark has noted the batch: Spark repeats it. Its mark is removed, and it is computed again from
  the previous state, which still exists: a state is deleted only after two newer batches are complete.
- While old batches are deleted: the rest is deleted after the next batch.

Batches with a higher number than the current one come from a stream whose checkpoint is gone; they are removed. Nothing is synced
to disk: after a power cut, remove the directory and read the journals again.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path

from adapter.errors import AdapterError
from adapter.runtime import files

TABLES = ("shards", "groups", "rewinds", "rejects")
_NEWEST = 2
_HOUR_US = 3_600_000_000


@dataclass(frozen=True)
class BatchInfo:
    """The facts about a complete batch. `now` and the newest time of each broker are microseconds; `odd`: moves and problems."""

    batch: int
    rows: int
    now: int
    odd: int = 0
    rejects: int = 0
    brokers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LagFiles:
    """The paths in the directory, and the order of changes to them. `keep_hours`: how long batches are kept, in journal time."""

    output: Path
    keep_hours: int = 48

    @property
    def checkpoint(self) -> Path:
        """The directory of Spark's checkpoint."""
        return self.output / "checkpoint"

    def staged(self, name: str) -> Path:
        """The path at which a part of the current batch is staged."""
        return self.output / ".staged" / name

    def state(self, batch: int, name: str) -> Path:
        """The path of a part of the state after a batch."""
        return self.output / "state" / f"batch={batch}" / name

    def complete(self) -> list[int]:
        """The numbers of the complete batches, ascending."""
        return sorted(int(path.stem) for path in (self.output / "complete").glob("*.json") if path.stem.isdigit())

    def before(self, batch: int) -> BatchInfo | None:
        """The last complete batch before this one; None if there is none. Raises AdapterError if its state is missing."""
        earlier = [number for number in self.complete() if number < batch]
        if not earlier and batch == 0:
            return None
        if not earlier or not self.state(earlier[-1], "").is_dir():
            raise AdapterError(
                f"{self.output}: has no state of a batch before {batch}; remove the directory to read all journals again"
            )
        return self._info(earlier[-1])

    def begin(self, batch: int) -> None:
        """Remove the marks of this batch and all later ones, and create an empty staging directory."""
        for number in self.complete():
            if number >= batch:
                self._mark(number).unlink()
        for directory in (*TABLES, "state"):
            for path in (self.output / directory).glob("batch=*"):
                if int(path.name.removeprefix("batch=")) > batch:
                    shutil.rmtree(path)
        shutil.rmtree(self.staged(""), ignore_errors=True)
        self.staged("").mkdir(parents=True)

    def publish(self, info: BatchInfo) -> None:
        """Publish a staged batch: tables, state, then the mark. Then delete old batches."""
        for name in TABLES:
            _replace(self.staged(name), self.output / name / f"batch={info.batch}")
        _replace(self.staged("state"), self.state(info.batch, ""))
        mark = self._mark(info.batch)
        mark.parent.mkdir(exist_ok=True)
        files.write(str(mark), json.dumps(asdict(info)).encode())
        self._clean(info.now - self.keep_hours * _HOUR_US)

    def _clean(self, since: int) -> None:
        """Delete old marks, then data without a mark.

        Of the state and the table `shards`, which are large, two batches are kept.
        """
        whole = self.complete()
        newest = set(whole[-_NEWEST:])
        old = set(takewhile(lambda number: self._info(number).now < since, whole[:-_NEWEST]))
        for number in old:
            self._mark(number).unlink()
        young = set(whole) - old
        for name, kept in {**dict.fromkeys(TABLES, young), "shards": newest, "state": newest}.items():
            for path in (self.output / name).glob("batch=*"):
                if int(path.name.removeprefix("batch=")) not in kept:
                    shutil.rmtree(path)

    def _info(self, batch: int) -> BatchInfo:
        return BatchInfo(**json.loads(self._mark(batch).read_text(encoding="utf-8")))

    def _mark(self, batch: int) -> Path:
        return self.output / "complete" / f"{batch}.json"


def _replace(staged: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    staged.rename(place)
