"""Finds the snapshots of adapters among files, and the unreadable ones, by their Parquet footers, before Spark reads a row.

No file is skipped silently: one that is no snapshot is reported with the reason and what to do. The newest snapshot of a broker
counts.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.pandas.types import from_arrow_schema

from adapter.errors import ConfigError, InvalidInputError
from adapter.model.schemas import BROKER, SNAPSHOT, SNAPSHOT_VERSION, TAKEN_AT_MS, VERSION_OF_SNAPSHOT
from adapter.runtime.logs import harmless

# The message of Spark, which has no exception type for a damaged file. The path in it is a URL.
_FAILED_READ = re.compile(r"\[FAILED_READ_FILE\.[A-Z_]+\] Encountered error while reading file (\S+)\.\s")

AGAIN = "take it again with `offset-adapter snapshot`"


class SnapshotFile(NamedTuple):
    """A readable snapshot. Its time is Unix milliseconds by the adapter's clock."""

    path: str
    broker: str
    taken_at_ms: int
    records: int


class Unreadable(NamedTuple):
    """An unreadable file and the reason."""

    path: str
    problem: str


class Snapshots(NamedTuple):
    """The files that were found: the newest snapshot of each broker, older ones, and unreadable files."""

    newest: list[SnapshotFile]
    older: list[SnapshotFile]
    unreadable: list[Unreadable]


def find_snapshots(places: Sequence[str]) -> Snapshots:
    """Examine files and directories (*.parquet). Raises ConfigError if one does not exist, or has no snapshot."""
    readable: list[SnapshotFile] = []
    unreadable: list[Unreadable] = []
    for path in dict.fromkeys(path for place in places for path in _files(Path(place))):
        try:
            readable.append(_look_at(path))
        except InvalidInputError as error:
            unreadable.append(Unreadable(str(path), str(error)))
    newest: dict[str, SnapshotFile] = {}
    in_time = sorted(readable, key=lambda file: (file.taken_at_ms, file.path), reverse=True)
    older = [file for file in in_time if newest.setdefault(file.broker, file) is not file]
    if not newest:
        listed = "; ".join(f"{path}: {problem}" for path, problem in unreadable[:3])
        raise ConfigError(
            f"[reconcile] snapshots = {list(places)}: there is no snapshot to compare; {AGAIN}. {listed}".rstrip(". ")
        )
    return Snapshots([newest[broker] for broker in sorted(newest)], older, unreadable)


def read_snapshots(spark: SparkSession, files: Iterable[SnapshotFile]) -> DataFrame:
    """The rows of the files; `broker` is the index of the file. Damage before the footer fails the action, see `damaged_file`."""
    schema = from_arrow_schema(SNAPSHOT)
    frames = [
        spark.read.schema(schema).parquet(_literal(file.path)).withColumn("broker", F.lit(index))
        for index, file in enumerate(files)
    ]
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionByName(frame)
    return rows


def damaged_file(error: Exception) -> str | None:
    """The message for an action that failed because of a damaged file; None for other errors."""
    found = _FAILED_READ.search(str(error))
    if found is None:
        return None
    path = unquote(found[1].removeprefix("file://"))
    return f"{harmless(path)}: is damaged behind its footer, nothing was compared: {AGAIN}, or move it away"


def _files(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(path for path in place.glob("*.parquet") if not path.name.startswith((".", "_")))
    if not place.exists():
        raise ConfigError(f"[reconcile] snapshots: {place}: is not there")
    return [place]


def _look_at(path: Path) -> SnapshotFile:
    """Read the footer. Raises InvalidInputError that says why the file is no snapshot, and what to do."""
    try:
        footer = pq.read_metadata(path)
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInputError(f"is torn or no Parquet file: {AGAIN} ({_first_line(error)})") from error
    metadata = schema.metadata or {}
    version = metadata.get(VERSION_OF_SNAPSHOT)
    if version is None:
        raise InvalidInputError("is a Parquet file, but no snapshot of an adapter: move it away")
    if version.decode(errors="replace") != SNAPSHOT_VERSION:
        shown = harmless(version.decode(errors="replace"), 20)
        raise InvalidInputError(
            f"is a snapshot of version {shown}, this is for {SNAPSHOT_VERSION}: {AGAIN} of the same version as this program"
        )
    if not schema.equals(SNAPSHOT):
        raise InvalidInputError(f"says that it is a snapshot, but has other columns: {AGAIN}")
    broker, taken_at = metadata.get(BROKER, b"").decode(errors="replace"), metadata.get(TAKEN_AT_MS, b"")
    if not broker or not taken_at.isdigit():
        raise InvalidInputError(f"does not say of which broker it is, or when it was taken: {AGAIN}")
    return SnapshotFile(str(path), broker, int(taken_at), footer.num_rows)


def _first_line(error: Exception) -> str:
    return harmless(str(error).strip().partition("\n")[0], 200)


def _literal(path: str) -> str:
    """A path for Spark, with the characters escaped that it takes for patterns."""
    absolute = str(Path(path).resolve())
    return "".join(f"\\{char}" if char in "\\{}[]*?" else char for char in absolute)
