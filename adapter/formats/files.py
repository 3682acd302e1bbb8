"""Offsets in files: chooses the format, reads and writes. Both are streams; memory does not grow with the file.

Promises that every entry of a file comes as a row or as a reject. A key that is there twice comes twice: whoever merges takes
the larger offset. A file that is written is there as a whole or not at all.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import IO

from adapter.formats import kafka_csv, offsets_json, rocketmq_json, rocketmq_rocksdb, rocketmq_rows
from adapter.formats.rocketmq_rocksdb import Layout
from adapter.formats.rows import Naming, NotReadableError, OffsetRow, Reject
from adapter.runtime import files

BACKUP = ".bak"  # RocketMQ's, of the file before: ConfigManager.persist, LocalFileOffsetStore.readLocalOffset
# Of a broker with enableLmq, which has all its offsets there: LmqConsumerOffsetManager.configFilePath.
LMQ_FILE = "lmqConsumerOffset.json"


class Format(Enum):
    """How a file holds offsets."""

    ROCKETMQ_BROKER = "rocketmq-broker"
    ROCKETMQ_CLIENT = "rocketmq-client"
    ROCKETMQ_ROCKSDB = "rocketmq-rocksdb"
    KAFKA_CSV = "kafka-csv"
    JSON = "json"

    @classmethod
    def of(cls, path: str | Path) -> "Format":
        """What the name says; a directory is RocksDB. Kafka's CSV where it says nothing."""
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
    """Every offset of a file, or what cannot be taken, in the file's order. Each call is one pass.

    Raises NotReadableError where the file turns out not to be readable, perhaps after rows: who must not use half a file makes a
    pass before. It says when RocketMQ's backup beside the file can be read: which one to take is for a person to choose.
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


def write(path: Path, kind: Format, rows: Iterable[OffsetRow], naming: Naming, layout: Layout = "v1") -> int:
    """Write a file anew: beside it, synced, then renamed. Returns how many offsets it holds; without any nothing is written.

    All rows of a (namespace, group) have to come one after the other, each key once. `layout` is for RocksDB alone. A broker's
    file of the name lmqConsumerOffset.json is made for a broker with enableLmq, any other for one without. Raises
    InvalidInputError that names what the format cannot hold, or says why the file cannot be written: it is then as it was.
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


def _is_readable(path: Path, kind: Format) -> bool:
    try:
        for _ in _read(path, kind, Naming()):
            pass
    except NotReadableError:
        return False
    return True
