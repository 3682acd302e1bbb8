"""Reads and writes offsets in files of any supported format, as streams: memory does not grow with the file.

Every entry of a file becomes a row or a reject. A key that occurs twice gives two rows; the importer's merge keeps the larger
offset. A file is written completely or not at all.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import chain, islice
from pathlib import Path
from typing import IO

from adapter.formats import kafka_csv, offsets_json, rocketmq_json, rocketmq_rocksdb, rocketmq_rows
from adapter.formats.rocketmq_rocksdb import Layout
from adapter.formats.rows import Naming, NotReadableError, OffsetRow, Reject
from adapter.model.queues import queue_of
from adapter.runtime.durable import files

BACKUP = ".bak"  # RocketMQ's backup of the previous file: ConfigManager.persist, LocalFileOffsetStore.readLocalOffset
# A broker with enableLmq stores all its offsets in this file: LmqConsumerOffsetManager.configFilePath.
LMQ_FILE = "lmqConsumerOffset.json"
LOOKED_AT = 20  # entries of a file, to recognise its format


class Format(Enum):
    """How a file stores offsets."""

    ROCKETMQ_BROKER = "rocketmq-broker"
    ROCKETMQ_CLIENT = "rocketmq-client"
    ROCKETMQ_ROCKSDB = "rocketmq-rocksdb"
    KAFKA_CSV = "kafka-csv"
    JSON = "json"

    @classmethod
    def of(cls, path: str | Path) -> "Format":
        """Guess the format from the name; a directory is RocksDB. Kafka's CSV if the name does not say."""
        whole = Path(path)
        if whole.is_dir():
            return cls.ROCKETMQ_ROCKSDB
        name = whole.name.removesuffix(BACKUP)
        if name in _NAMES:
            return _NAMES[name]
        return cls.JSON if name.lower().endswith(".json") else cls.KAFKA_CSV


_NAMES = {
    "consumerOffset.json": Format.ROCKETMQ_BROKER,
    LMQ_FILE: Format.ROCKETMQ_BROKER,
    "offsets.json": Format.ROCKETMQ_CLIENT,
}

Rows = Iterator[OffsetRow | Reject]

_Reader = Callable[[IO[bytes], Naming], Rows]
_READERS: dict[Format, _Reader] = {
    Format.ROCKETMQ_BROKER: lambda file, naming: rocketmq_rows.rows_of(rocketmq_json.broker_file(file), naming),
    Format.ROCKETMQ_CLIENT: lambda file, naming: rocketmq_rows.rows_of(rocketmq_json.client_file(file), naming),
    Format.KAFKA_CSV: kafka_csv.read,
    Format.JSON: offsets_json.read,
}
_Writer = Callable[[IO[bytes], Iterable[OffsetRow], Naming], int]
_WRITERS: dict[Format, _Writer] = {
    Format.ROCKETMQ_CLIENT: rocketmq_rows.write_client,
    Format.KAFKA_CSV: kafka_csv.write,
    Format.JSON: offsets_json.write,
}
_WITH_BACKUP = (Format.ROCKETMQ_BROKER, Format.ROCKETMQ_CLIENT)


def read(path: Path, kind: Format, naming: Naming) -> Rows:
    """Every offset of a file, and every rejected entry, in file order. Each call is one pass.

    Raises NotReadableError when the file turns out to be unreadable, possibly after some rows: a caller that must not use half a
    file reads it twice. The message says so if RocketMQ's backup next to the file is readable: a person has to choose between
    them.
    """
    if kind is Format.ROCKETMQ_ROCKSDB:
        yield from rocketmq_rocksdb.read(path, naming)
        return
    try:
        yield from _read(path, kind, naming)
    except NotReadableError as error:
        backup = Path(f"{path}{BACKUP}")
        if kind not in _WITH_BACKUP or not _is_readable(backup, kind):
            raise
        raise NotReadableError(f"{error}; {backup.name} beside it can be read") from error


def unterminated(path: Path, kind: Format) -> Reject | None:
    """The last entry of a file that may be cut in it. Raises NotReadableError.

    Of Kafka's CSV, that is a last line without a line end. JSON has a bracket at its end: without it, `read` raises.
    """
    if kind is not Format.KAFKA_CSV:
        return None
    try:
        with path.open("rb") as file:
            return kafka_csv.unterminated(file)
    except OSError as error:
        raise NotReadableError(f"cannot be read: {error.strerror}") from error


def has_name(shard: str, kind: Format) -> bool:
    """False for a shard that the format has no name for: one without a number behind a last `/`. JSON has one for all."""
    if kind is Format.JSON:
        return True
    return (kafka_csv.split_shard(shard) if kind is Format.KAFKA_CSV else queue_of(shard)) is not None


def recognised(path: Path, but: Format) -> Format | None:
    """The format, other than `but`, in which a file begins with an offset; None if no other does, or if several do."""
    found = [kind for kind in Format if kind is not but and _begins(path, kind)]
    return found[0] if len(found) == 1 else None


def write(path: Path, kind: Format, rows: Iterable[OffsetRow], naming: Naming, layout: Layout = "v1") -> int:
    """Write a new file next to the old one, sync it, then rename it. Returns the number of offsets; writes nothing for none.

    All rows of a (namespace, group) must follow each other, each key once. `layout` applies only to RocksDB. A broker's file with
    the name lmqConsumerOffset.json is written for a broker with enableLmq, any other name for one without. Raises
    InvalidInputError that names what the format cannot hold, or why the file cannot be written; the old file is then unchanged.
    """
    all_rows = iter(rows)
    first = next(all_rows, None)
    if first is None:
        return 0
    all_rows = chain([first], all_rows)
    if kind is Format.ROCKETMQ_ROCKSDB:
        return rocketmq_rocksdb.write(path, all_rows, naming, layout)
    with files.replacing(path) as file:
        if kind is Format.ROCKETMQ_BROKER:
            return rocketmq_rows.write_broker(file, all_rows, naming, lmq=path.name == LMQ_FILE)
        return _WRITERS[kind](file, all_rows, naming)


def _read(path: Path, kind: Format, naming: Naming) -> Rows:
    try:
        file = path.open("rb")
    except OSError as error:
        raise NotReadableError(f"cannot be read: {error.strerror}") from error
    with file:
        yield from _READERS[kind](file, naming)


def _begins(path: Path, kind: Format) -> bool:
    if path.is_dir() is not (kind is Format.ROCKETMQ_ROCKSDB):
        return False
    try:
        # A client's file names no group; any name shows whether it has offsets.
        naming = Naming(group="group") if kind is Format.ROCKETMQ_CLIENT else Naming()
        return any(isinstance(entry, OffsetRow) for entry in islice(read(path, kind, naming), LOOKED_AT))
    except NotReadableError:
        return False


def _is_readable(path: Path, kind: Format) -> bool:
    try:
        for _ in _read(path, kind, Naming()):
            pass
    except NotReadableError:
        return False
    return True
