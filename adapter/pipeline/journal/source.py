"""The Spark data source `offset-journal`: the rows of journal segments, as a stream with admission control or as a batch.

Every segment is in exactly one batch of a stream. A batch that is read again has the same rows. A bad segment does not stop
others.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from adapter.errors import AdapterError, ConfigError
from adapter.pipeline.journal.listing import Lister, Listing, Segment, parse_run_key, roots_of
from adapter.pipeline.journal.offset import Limit, Step, advance, from_json, numbers_of, step, to_json
from adapter.pipeline.journal.segment import COLUMNS, GONE, read_segment, unreadable

_MAX_FILES = 1_000
_PARTITION_BYTES = 4 * 2**20
# The cost of opening a file, in bytes of reading: it keeps a partition from having thousands of tiny segments.
_OPEN_BYTES = 2**14

_NEVER_CAME = (
    "segments {first} to {last} of this run never arrived, and are not waited for any more: "
    "the disk bound deleted them before they were read, or they were not copied. Raise disk_max_bytes, or read more often"
)
_OPTIONS = ("path", "paths", "maxFilesPerTrigger", "maxBytesPerTrigger", "partitionBytes")


@dataclass(frozen=True)
class JournalOptions:
    """The options of `load`. Sizes are those of the compressed files, in bytes."""

    roots: tuple[str, ...]
    max_files: int | None
    max_bytes: int | None
    partition_bytes: int

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Parse the options. Raises ConfigError that names an invalid one."""
        known = {name.lower() for name in _OPTIONS}
        if unknown := [name for name in options if name.lower() not in known]:
            raise ConfigError(f"offset-journal: no such option: {', '.join(unknown)}; there are {', '.join(_OPTIONS)}")
        max_files, max_bytes = _number(options, "maxFilesPerTrigger"), _number(options, "maxBytesPerTrigger")
        if max_files is None and max_bytes is None:
            max_files = _MAX_FILES
        partition_bytes = _number(options, "partitionBytes") or _PARTITION_BYTES
        return cls(tuple(roots_of(_paths(options))), max_files, max_bytes, partition_bytes)


@dataclass(frozen=True)
class JournalPartition(InputPartition):
    """The segments that one task reads, and (broker, run, path, problem) of segments that are gone."""

    segments: tuple[Segment, ...] = ()
    missing: tuple[tuple[str, int, str, str], ...] = ()


class JournalDataSource(DataSource):
    """`spark.readStream.format("offset-journal").load(path)`, and the same rows by `spark.read`.

    Options: `paths` (JSON list of several directories or URLs), `maxFilesPerTrigger` (default 1000 unless there is
    `maxBytesPerTrigger`), `maxBytesPerTrigger`, `partitionBytes` (4 MiB). `schema(...)` selects columns, which is faster.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "offset-journal"

    def schema(self) -> StructType:
        """The columns of the journal, plus broker, run and segment."""
        return from_arrow_schema(COLUMNS)

    def reader(self, schema: StructType) -> "JournalReader":
        """The reader of `spark.read`. Raises ConfigError for an invalid option, and for a schema with other columns."""
        return JournalReader(JournalOptions.of(self.options), _chosen(schema))

    def streamReader(self, schema: StructType) -> "JournalStreamReader":
        """The reader of `spark.readStream`. Raises ConfigError for an invalid option, and for a schema with other columns."""
        return JournalStreamReader(JournalOptions.of(self.options), _chosen(schema))


class JournalReader(DataSourceReader):
    """Reads all existing segments as a batch."""

    def __init__(self, options: JournalOptions, columns: pa.Schema = COLUMNS) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read.

        Raises ConfigError if no path exists, AdapterError if a directory cannot be listed: no segment is skipped.
        """
        listing = Lister(self._options.roots).list()
        if listing.failures:
            text = "; ".join(f"{path} {trouble}" for path, trouble in listing.failures.items())
            raise AdapterError(f"offset-journal: not all segments can be found: {text}")
        return _planned(step({}, advance({}, listing, Limit())), listing, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, with the selected columns."""
        return _rows(partition, self._columns)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming reader. Spark keeps one for a query in a separate process, and sends copies to the tasks for reading."""

    def __init__(self, options: JournalOptions, columns: pa.Schema = COLUMNS) -> None:
        self._options = options
        self._columns = columns
        self._lister: Lister | None = None
        self._seen = Listing({}, {})
        # With availableNow: all segments that the query will read.
        self._target: Listing | None = None

    def initialOffset(self) -> dict[str, Any]:
        """The offset before the first segment."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of a batch by the options. A batch has at least one segment."""
        if self._options.max_files is not None:
            return ReadMaxFiles(self._options.max_files)
        return ReadMaxBytes(self._options.max_bytes or 1)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the set of segments: later ones are not read. Raises ConfigError if no path exists."""
        self._target = self._list()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` if there is nothing new. Raises ConfigError if no path exists at the first call."""
        self._seen = self._target or self._list()
        before = from_json(start)
        after = advance(before, self._seen, self._limit(limit))
        return start if after is before else to_json(after)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the batch between two offsets. The result is the same in each call while the segments exist."""
        between = step(from_json(start), from_json(end))
        if any(_find(self._seen, key, number) is None for key, number in _numbers(between)):
            self._seen = self._list()
        return _planned(between, self._seen, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, with the selected columns."""
        return _rows(partition, self._columns)

    def _list(self) -> Listing:
        if self._lister is None:
            self._lister = Lister(self._options.roots)
        return self._lister.list()

    def _limit(self, limit: ReadLimit) -> Limit:
        if isinstance(limit, ReadAllAvailable):
            return Limit()
        return Limit(self._options.max_files, self._options.max_bytes)


def _rows(partition: InputPartition, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, JournalPartition):  # Spark's own placeholder for an empty batch
        return
    for missing in partition.missing:
        yield unreadable(*missing, columns)
    for segment in partition.segments:
        yield from read_segment(segment, columns)


def _chosen(schema: StructType) -> pa.Schema:
    """The columns to read: all, or those that `schema(...)` names. Raises ConfigError for others."""
    columns: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    if wrong := [
        field.name for field in columns if field.name not in COLUMNS.names or COLUMNS.field(field.name).type != field.type
    ]:
        raise ConfigError(f"offset-journal: no such columns, or not of this type: {', '.join(wrong)}; see docs/pipeline.md")
    return columns


def _numbers(between: Step) -> Iterator[tuple[str, int]]:
    return ((key, number) for key, ranges in between.taken.items() for number in numbers_of(ranges))


def _find(listing: Listing, key: str, number: int) -> Segment | None:
    return listing.runs.get(key, {}).get(number)


def _planned(between: Step, listing: Listing, options: JournalOptions) -> list[JournalPartition]:
    """Partitions of about the same size, each with consecutive segments."""
    segments: list[Segment] = []
    missing: list[tuple[str, int, str, str]] = []
    for key, number in sorted(_numbers(between)):
        if segment := _find(listing, key, number):
            segments.append(segment)
        else:
            missing.append(_missing(options.roots[0], key, number, f"segment {GONE}"))
    for key, ranges in sorted(between.lost.items()):
        missing += [_missing(options.roots[0], key, first, _NEVER_CAME.format(first=first, last=last)) for first, last in ranges]
    parts: dict[int, list[Segment]] = {}
    costs = [segment.size + _OPEN_BYTES for segment in segments]
    count = -(-sum(costs) // options.partition_bytes)
    begin = 0
    for segment, cost in zip(segments, costs, strict=True):
        parts.setdefault((begin + cost // 2) * count // sum(costs), []).append(segment)
        begin += cost
    planned = [JournalPartition(tuple(part)) for part in parts.values()]
    return [JournalPartition(missing=tuple(missing)), *planned] if missing else planned


def _missing(root: str, key: str, number: int, problem: str) -> tuple[str, int, str, str]:
    broker, run = parse_run_key(key)
    # Its date is no longer known.
    return broker, run, Segment(root, "*", broker, run, number, 0).path, problem


def _paths(options: Mapping[str, str]) -> list[str]:
    several = options.get("paths")
    if several is None:
        return [options["path"]] if options.get("path") else []
    try:
        paths = json.loads(several)
    except ValueError as error:
        raise ConfigError(f"offset-journal: paths = {several!r}: is no JSON: {error}") from error
    if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
        raise ConfigError(f"offset-journal: paths = {several!r}: is no JSON list of directories")
    return [*([options["path"]] if options.get("path") else []), *paths]


def _number(options: Mapping[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"offset-journal: {name} = {value!r}: is no number from 1 on")
    return int(value)
