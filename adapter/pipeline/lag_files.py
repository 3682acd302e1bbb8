"""The directory of the lag job: tables and state by batch, of which only whole batches are ever read.

    <output>/shards/batch=N, groups/, rewinds/, rejects/    the tables
    <output>/state/batch=N/keys, heads, moves, clock        what batch N + 1 begins with
    <output>/complete/N.json                                batch N is whole; `now`, rows, and the newest time of each broker
    <output>/.staged/                                       a batch that is being made
    <output>/checkpoint/                                    Spark's: which segments are in which batch

A batch is made in `.staged`, from the state of the last whole batch before it. Then each table and the state are renamed to their
places, and `complete/N.json` is written last. Killed

- while it is staged: nothing outside changed; the next start removes `.staged` and makes the batch again;
- between two renames: `complete/N.json` is not there, so the state is not read; the batch is made again from the same state,
  with the same rows, and replaces what was renamed. Each directory that can be seen is whole at any time;
- after `complete/N.json`, before Spark noted the batch: Spark gives it again. Its mark is removed, and it is made again
  from the state before it, which is there: a state is deleted only when two newer batches are whole;
- while old batches are deleted: what is left of them is deleted after the next batch.

What has a higher number than the batch in work is from a stream whose checkpoint is gone: it is removed. Nothing is synced to
disk here: after a power cut, remove the directory and read the journals again.
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
class Told:
    """What is told of a whole batch. `now`, and the newest times of brokers, in microseconds; `odd`: moves and problems."""

    batch: int
    rows: int
    now: int
    odd: int = 0
    rejects: int = 0
    brokers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LagFiles:
    """The paths, and the order in which they change. `keep_hours`: how long a batch is kept, by the journals' clock."""

    output: Path
    keep_hours: int = 48

    @property
    def checkpoint(self) -> Path:
        """Where Spark notes what is in which batch."""
        return self.output / "checkpoint"

    def staged(self, name: str) -> Path:
        """Where a part of the batch in work is written."""
        return self.output / ".staged" / name

    def state(self, batch: int, name: str) -> Path:
        """A part of the state after a batch."""
        return self.output / "state" / f"batch={batch}" / name

    def complete(self) -> list[int]:
        """The whole batches, ascending."""
        return sorted(int(path.stem) for path in (self.output / "complete").glob("*.json") if path.stem.isdigit())

    def before(self, batch: int) -> Told | None:
        """The last whole batch before this one; None at the first. Raises AdapterError when its state is gone."""
        earlier = [number for number in self.complete() if number < batch]
        if not earlier and batch == 0:
            return None
        if not earlier or not self.state(earlier[-1], "").is_dir():
            raise AdapterError(
                f"{self.output}: has no state of a batch before {batch}; remove the directory to read all journals again"
            )
        return self._told(earlier[-1])

    def begin(self, batch: int) -> None:
        """Take back what was said of this batch and of all after it, and make room to stage it."""
        for number in self.complete():
            if number >= batch:
                self._mark(number).unlink()
        for directory in (*TABLES, "state"):
            for path in (self.output / directory).glob("batch=*"):
                if int(path.name.removeprefix("batch=")) > batch:
                    shutil.rmtree(path)
        shutil.rmtree(self.staged(""), ignore_errors=True)
        self.staged("").mkdir(parents=True)

    def publish(self, told: Told) -> None:
        """Show a staged batch: tables, state, the mark. Then delete what is not needed any more, or old."""
        for name in TABLES:
            _replace(self.staged(name), self.output / name / f"batch={told.batch}")
        _replace(self.staged("state"), self.state(told.batch, ""))
        mark = self._mark(told.batch)
        mark.parent.mkdir(exist_ok=True)
        files.write(str(mark), json.dumps(asdict(told)).encode())
        self._clean(told.now - self.keep_hours * _HOUR_US)

    def _clean(self, since: int) -> None:
        """Delete marks, and then what has none. The state and the shards are as large as the fleet: only two of each stay."""
        whole = self.complete()
        newest = set(whole[-_NEWEST:])
        old = set(takewhile(lambda number: self._told(number).now < since, whole[:-_NEWEST]))
        for number in old:
            self._mark(number).unlink()
        young = set(whole) - old
        for name, kept in {**dict.fromkeys(TABLES, young), "shards": newest, "state": newest}.items():
            for path in (self.output / name).glob("batch=*"):
                if int(path.name.removeprefix("batch=")) not in kept:
                    shutil.rmtree(path)

    def _told(self, batch: int) -> Told:
        return Told(**json.loads(self._mark(batch).read_text(encoding="utf-8")))

    def _mark(self, batch: int) -> Path:
        return self.output / "complete" / f"{batch}.json"


def _replace(staged: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    staged.rename(place)
