"""Finds the snapshots of adapters among files, and the unreadable ones, by their Parquet footers, before Spark reads a row.

No file is skipped silently: one that is no snapshot is reported with the reason and what to do. The newest snapshot of a broker
counts.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from pyspark.sql.pandas.types import from_arrow_schema

from adapter.errors import ConfigError, InvalidInputError
from adapter.model.schemas import BROKER, SNAPSHOT, SNAPSHOT_VERSION, TAKEN_AT_MS, VERSION_OF_SNAPSHOT
from adapter.pipeline.places import Place, data_files, unusable
from adapter.pipeline.tables import read_parquet
from adapter.runtime.telemetry.logs import harmless

AGAIN = "take it again with `offset-adapter snapshot`"


class SnapshotFile(NamedTuple):
    """A readable snapshot. Its time is Unix milliseconds by the adapter's clock; `groups`: its row groups."""

    place: Place
    broker: str
    taken_at_ms: int
    records: int
    groups: int


class Unreadable(NamedTuple):
    """An unreadable file and the reason."""

    place: Place
    problem: str


class Snapshots(NamedTuple):
    """The files that were found: the newest snapshot of each broker, older ones, and unreadable files."""

    newest: list[SnapshotFile]
    older: list[SnapshotFile]
    unreadable: list[Unreadable]


def find_snapshots(places: Sequence[Place]) -> Snapshots:
    """Examine files and directories (*.parquet). Raises ConfigError if one does not exist, or has no snapshot."""
    readable: list[SnapshotFile] = []
    unreadable: list[Unreadable] = []
    for file in dict.fromkeys(file for place in places for file in _files(place)):
        try:
            readable.append(_look_at(file))
        except InvalidInputError as error:
            unreadable.append(Unreadable(file, str(error)))
    newest: dict[str, SnapshotFile] = {}
    in_time = sorted(readable, key=lambda file: (file.taken_at_ms, file.place.url), reverse=True)
    older = [file for file in in_time if newest.setdefault(file.broker, file) is not file]
    if not newest:
        listed = "; ".join(f"{place}: {problem}" for place, problem in unreadable[:3])
        raise ConfigError(
            f"[reconcile] snapshots = {list(map(str, places))}: there is no snapshot to compare; {AGAIN}. {listed}".rstrip(". ")
        )
    return Snapshots([newest[broker] for broker in sorted(newest)], older, unreadable)


def read_snapshots(spark: SparkSession, files: Iterable[SnapshotFile]) -> DataFrame:
    """The rows of the files; `broker` is the index of the file. Damage before the footer fails the action: `tables.damage`."""
    schema = from_arrow_schema(SNAPSHOT)
    frames = [
        read_parquet(spark, [(file.place, file.groups)], schema).withColumn("broker", F.lit(index))
        for index, file in enumerate(files)
    ]
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionByName(frame)
    return rows


def _files(place: Place) -> list[Place]:
    try:
        if place.is_directory():
            return [file for file in data_files(place) if not file.name.startswith((".", "_"))]
        if not place.is_file():
            raise ConfigError(f"[reconcile] snapshots: {place}: is not there")
    except OSError as error:
        raise unusable(place, "[reconcile] snapshots", error) from error
    return [place]


def _look_at(place: Place) -> SnapshotFile:
    """Read the footer. Raises InvalidInputError that says why the file is no snapshot, and what to do."""
    system, path = place.opened()
    try:
        with system.open_input_file(path) as opened, pq.ParquetFile(opened) as parquet:
            footer, schema = parquet.metadata, parquet.schema_arrow
    except PermissionError as error:
        raise InvalidInputError("may not be read by this user: change its mode") from error
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
    return SnapshotFile(place, broker, int(taken_at), footer.num_rows, footer.num_row_groups)


def _first_line(error: Exception) -> str:
    return harmless(str(error).strip().partition("\n")[0], 200)
