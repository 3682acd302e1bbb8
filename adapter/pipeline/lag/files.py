"""The output directory of the lag job: what a batch is, and how to read a complete one.

    <output>/shards/batch=N/BUCKET-UNIQUE.parquet    the tables: shards, groups, rewinds, rejects
    <output>/state/batch=N/BUCKET-UNIQUE.part        the state with which batch N + 1 begins, by bucket
    <output>/complete/N.json                         the manifest of batch N: its facts, and the list of its files
    <output>/checkpoint/                             Spark's checkpoint, unless it is elsewhere: which segments are in which batch
    <output>/lock, lease.json                        the driver that writes here, see `lock.py`

A batch exists once its manifest does, and consists of the files that the manifest lists. No file is renamed or changed after
that. A file that no manifest lists is of a batch in progress, or of a task that failed, was repeated, or was thought dead; nobody
reads it, and `publisher.py` deletes it.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from adapter.errors import AdapterError
from adapter.pipeline.places import Place

TABLES = ("shards", "groups", "rewinds", "rejects")
STATE = "state"
# Of what is as large as the fleet, so many batches are kept: the newest may be repeated, from the state of the one before.
NEWEST = 2
LARGE = ("shards", STATE)
_BATCH = "batch="
# Files that are read at a time: from an object store each takes some 20 ms.
AT_ONCE = 16
# Manifests that are read before their time is looked at.
_BLOCK = 256


@dataclass(frozen=True)
class BatchInfo:
    """The manifest of a complete batch. Times are Unix times in microseconds.

    `rows` of the journals in this batch; `odd`: moves and rows with a problem among them; `rejects`: rows with a problem. `now`:
    the newest time in the journals; `settled`: up to which those of all live brokers are read; `brokers`: the newest time of
    each. `buckets`: into how many the keys are split; `largest`: the number of keys of the largest one. `plan` identifies the
    segments of the batch. `files`: the paths of each table and of the state, below the output; those of the state by bucket.
    """

    batch: int
    rows: int
    now: int
    settled: int
    odd: int = 0
    rejects: int = 0
    brokers: Mapping[str, int] = field(default_factory=dict)
    buckets: int = 1
    largest: int = 0
    plan: str = ""
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The content of the manifest."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """The inverse of `to_json`. Raises ValueError if it is no such manifest."""
        try:
            return cls(**json.loads(content))
        except TypeError as error:
            raise ValueError(str(error)) from error


@dataclass(frozen=True)
class LagFiles:
    """The paths in the directory, and its complete batches. It changes nothing."""

    output: Place

    def directory(self, name: str, batch: int) -> Place:
        """The directory of a table, or of the state, of a batch."""
        return self.output / relative(name, batch)

    def manifest(self, batch: int) -> Place:
        """The manifest of a batch."""
        return self.output / f"complete/{batch}.json"

    def complete(self) -> list[int]:
        """The numbers of the complete batches, ascending. Raises OSError."""
        stems = (
            entry.path.removesuffix(".json") for entry in (self.output / "complete").entries() if entry.path.endswith(".json")
        )
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def kept(self, name: str) -> list[int]:
        """The complete batches that still have this table, ascending: of `shards` and the state, only the newest ones."""
        batches = self.complete()
        return batches[-NEWEST:] if name in LARGE else batches

    def directories(self, name: str) -> list[int]:
        """The batches that have a directory of a table, complete or not, ascending."""
        numbers = (entry.path.removeprefix(_BATCH) for entry in (self.output / name).entries() if entry.is_directory)
        return sorted(int(number) for number in numbers if number.isdecimal())

    def info(self, batch: int) -> BatchInfo:
        """The manifest of a complete batch. Raises FileNotFoundError; AdapterError if it is damaged or of another release."""
        place = self.manifest(batch)
        try:
            return BatchInfo.from_json(place.read())
        except ValueError as error:
            raise AdapterError(f"{place}: is damaged, or of another release ({error}); {start_again(self.output)}") from error

    def history(self, us: int) -> list[BatchInfo]:
        """The manifests of the newest complete batch, and of those up to so many microseconds before it, ascending."""
        found: list[BatchInfo] = []
        batches = self.complete()[::-1]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for start in range(0, len(batches), _BLOCK):
                for info in threads.map(self._info_if_there, batches[start : start + _BLOCK]):
                    if info is None or (found and info.now < found[0].now - us):
                        return found[::-1]  # deleted since, as all before it; or too old
                    found.append(info)
        return found[::-1]

    def table_files(self, batch: int, name: str) -> list[Place]:
        """The files of a table, or of the state, of a complete batch. Raises FileNotFoundError, AdapterError."""
        return self.places(self.info(batch), name)

    def places(self, info: BatchInfo, name: str) -> list[Place]:
        """The files of a table, or of the state, that a manifest lists."""
        return [self.output / path for path in info.files[name]]

    def read(self, batch: int, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table of a complete batch, or some of its columns. Raises FileNotFoundError, OSError, AdapterError."""
        return self.read_of(self.info(batch), name, columns)

    def read_of(self, info: BatchInfo, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The same of a batch whose manifest is known."""
        return pa.concat_tables(_read(place, columns) for place in self.places(info, name))

    def _info_if_there(self, batch: int) -> BatchInfo | None:
        try:
            return self.info(batch)
        except FileNotFoundError:
            return None


def start_again(output: Place) -> str:
    """What to do when the state cannot be used."""
    return f"to read all journals again, remove the directory {output}, and that of [lag] checkpoint if it is elsewhere"


def relative(name: str, batch: int) -> str:
    """The path of the directory of a table, or of the state, below the output."""
    return f"{name}/{_BATCH}{batch}"


def _read(place: Place, columns: Sequence[str] | None) -> pa.Table:
    system, path = place.opened()
    try:
        with system.open_input_file(path) as file:
            table: Any = pq.ParquetFile(file).read(columns=columns)
    except pa.ArrowInvalid as error:
        raise AdapterError(f"{place}: is damaged: {error}") from error
    # In memory, names that repeat are dictionaries, which pyarrow does not sort.
    plain = [field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field for field in table.schema]
    return table.cast(pa.schema(plain, table.schema.metadata))
