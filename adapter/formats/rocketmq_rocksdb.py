"""RocketMQ's RocksDB stores of offsets, `config/consumerOffsets` (V1) and `config/rdb` (V2), to and from rows.

A single store of all configurations (5.5, `config/metadata`) has V1's rows, and is only read: topics and groups are in it too.
Reading turns every entry into an offset, or a reject with a reason, and never changes a store. Only what V2's resets leave under
swapped names (`adapter.formats.phantoms`) is neither. Writing makes a complete store
that RocketMQ 5.3 loads, or nothing.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeVar

from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict, WriteBatch

from adapter.errors import AdapterError, InvalidInputError
from adapter.formats import rocksdb_copy
from adapter.formats import rocksdb_layouts as layouts
from adapter.formats.phantoms import Names, is_phantom
from adapter.formats.problems import Sieve
from adapter.formats.rocketmq_json import SEPARATOR, Entries, Queues, data_version
from adapter.formats.rocketmq_rows import problem_of_broker, rows_of
from adapter.formats.rocksdb_layouts import Entry
from adapter.formats.rows import Naming, OffsetRow, Reject
from adapter.model.queues import queue_of
from adapter.runtime.durable import rocks
from adapter.runtime.durable.files import sync_directory

Layout = Literal["v1", "v2"]
R = TypeVar("R")

BATCH_ROWS = 1_000
FORMAT_VERSION = 5  # of table files; the newest that RocksDB 8.4, used by RocketMQ 5.3, can read
_VALUE_SHOWN = 32  # bytes shown of a rejected value
_ROCKSDICT_FILES = ("LOG*", "rocksdict-config.json")  # files of rocksdict that a broker's store does not have


def read(path: Path, naming: Naming) -> Iterator[OffsetRow | Reject]:
    """The offsets of a store, V1 or V2. The broker may have it open: then as of its last flush of the write-ahead log.

    Raises NotReadableError if it is not such a store, or is damaged.
    """
    with rocksdb_copy.opened(path) as db, rocksdb_copy.translated_errors():
        yield from rows_of(_entries(db), naming)


def write(path: Path, rows: Iterable[OffsetRow], naming: Naming, layout: Layout) -> int:
    """Write a new store to `path`, which must not exist or must be empty. Returns the number of offsets.

    All rows of a group must follow each other. Raises InvalidInputError that names all rows that the store cannot hold, or why it
    cannot be written; then nothing is written.
    """
    target = path.resolve()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise InvalidInputError(f"{path}: exists and is not empty; a store is written into a new directory")
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        fresh.mkdir(0o700)
        try:
            count = _write(fresh, rows, naming, layout)
            fresh.rename(target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        sync_directory(target.parent)
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be written: {error.strerror or error}") from error
    return count


def _entries(db: Rdict) -> Entries:
    families = rocksdb_copy.families(db)
    for name in families:
        if name not in layouts.FAMILIES and name not in layouts.SINGLE_FAMILIES:
            yield Reject(0, name, "", "is an unknown column family; its rows are not read")
    if not layouts.SINGLE_FAMILIES.isdisjoint(families):
        yield from _unknown_rows(db, b"", b"")
        if layouts.SINGLE_FAMILY in families:
            yield from _v1(rocks.guarded(db.get_column_family, layouts.SINGLE_FAMILY))
    # V2's keys start with a byte that no topic starts with. Before 5.3, V1's stores had only one column family.
    elif layouts.VERSION_FAMILY not in families and any(rocks.scan(db, layouts.TABLES, layouts.AFTER_TABLES)):
        yield from _v2(db)
    else:
        yield from _v1(db)


def _v1(rows: Rdict) -> Entries:
    for key, value in rocks.scan(rows, b"", b""):
        yield from layouts.decode_v1(key, value)


def _v2(db: Rdict) -> Entries:
    known = Names(_names(db, layouts.GROUPS), _names(db, layouts.TOPICS))
    yield from _unknown_rows(db, b"", layouts.CONSUMER)
    for names, rows in groupby(rocks.scan(db, layouts.CONSUMER, layouts.AFTER_CONSUMER), key=_without_queue):
        for entry in _topic_v2(names, rows):
            if isinstance(entry, Queues) and is_phantom(entry.group, entry.topic, known):
                yield from _without_phantoms(db, entry)
            else:
                yield entry
    yield from _unknown_rows(db, layouts.AFTER_KNOWN, b"")


def _names(db: Rdict, table: bytes) -> set[str]:
    """The names in the store's table of groups or topics."""
    names: set[str] = set()
    for key, _ in rocks.scan(db, table, table[:-1] + bytes([table[-1] + 1])):
        with suppress(InvalidInputError):  # such a name is of no offset either
            names.add(layouts.name_v2(key))
    return names


def _without_phantoms(db: Rdict, entry: Queues) -> Entries:
    """The queues of a group and topic that cannot be, but for those whose mirror is there: a reset left them."""
    mirrors = (layouts.encode_v2(Entry(entry.topic, entry.group, queue, 0))[0] for queue, _ in entry.offsets)
    left = [pair for pair, mirror in zip(entry.offsets, mirrors, strict=True) if db.get(mirror) is None]
    if left:
        yield entry._replace(offsets=left)


def _without_queue(row: tuple[bytes, bytes]) -> bytes:
    return row[0][: -layouts.QUEUE_BYTES]


def _topic_v2(names: bytes, rows: Iterable[tuple[bytes, bytes]]) -> Entries:
    try:
        group, topic = layouts.names_v2(names)
    except InvalidInputError as error:
        yield from (_reject(key, value, str(error)) for key, value in rows if key != layouts.CONSUMER_VERSION)
        return
    offsets = []
    for key, value in rows:
        try:
            offsets.append(layouts.queue_v2(key, value))
        except InvalidInputError as error:
            yield _reject(key, value, str(error))
    if offsets:
        yield Queues(0, layouts.shown_key(f"{topic}{SEPARATOR}{group}".encode()), group, topic, "", offsets, keyed=True)


def _unknown_rows(db: Rdict, start: bytes, end: bytes) -> Iterator[Reject]:
    for key, value in rocks.scan(db, start, end):
        yield _reject(key, value, "key: belongs to no known table")


def _reject(key: bytes, value: bytes, reason: str) -> Reject:
    return Reject(0, key.hex(), value[:_VALUE_SHOWN].hex(), reason)


def _write(directory: Path, rows: Iterable[OffsetRow], naming: Naming, layout: Layout) -> int:
    sieve = Sieve(naming, partial(problem_of_broker, naming.broker))
    passed = sieve.passed(rows)
    now_ms = time.time_ns() // 1_000_000
    if layout == "v1":
        version = (layouts.VERSION_FAMILY, layouts.VERSION_KEY, data_version(now_ms))
        _fill(directory, layouts.FAMILIES, _rows_v1(passed), version)
    else:
        version = ("default", layouts.CONSUMER_VERSION, layouts.version_v2(now_ms))
        _fill(directory, ("default",), map(layouts.encode_v2, map(_entry, passed)), version)
    count = sieve.done()
    for file in [file for pattern in _ROCKSDICT_FILES for file in directory.glob(pattern)]:
        file.unlink()
    sync_directory(directory)
    return count


def _rows_v1(rows: Iterable[OffsetRow]) -> Iterator[tuple[bytes, bytes]]:
    for group, of_group in groupby(map(_entry, rows), key=attrgetter("group")):
        topics: dict[str, dict[int, int]] = {}
        for entry in of_group:
            topics.setdefault(entry.topic, {})[entry.queue] = entry.offset
        for topic, queues in topics.items():
            yield layouts.encode_v1(group, topic, queues)


def _entry(row: OffsetRow) -> Entry:
    queue = queue_of(row.shard)
    assert queue, "only the shards of queues pass"  # noqa: S101
    return Entry(row.group, queue.topic, queue.queue_id, row.offset)


def _fill(
    directory: Path, families: Sequence[str], rows: Iterator[tuple[bytes, bytes]], version: tuple[str, bytes, bytes]
) -> None:
    """Write the rows into table files; the write-ahead log stays empty."""
    db = _guarded(lambda: Rdict(str(directory), options=_options(), column_families={name: _options() for name in families}))
    try:
        while found := list(islice(rows, BATCH_ROWS)):
            batch = WriteBatch(raw_mode=True)
            for key, value in found:
                batch.put(key, value)
            _guarded(db.write, batch)
        family, key, value = version
        versions = _guarded(db.get_column_family, family)
        _guarded(versions.put, key, value)
        for part in (db, versions):
            _guarded(part.flush)
    finally:
        db.close()


def _guarded(call: Callable[..., R], *arguments: Any) -> R:  # noqa: ANN401 - whatever RocksDB's call takes
    try:
        return rocks.guarded(call, *arguments)
    except AdapterError as error:
        raise InvalidInputError(f"cannot be written: {error}") from error


def _options() -> Options:
    """Options for writing. When RocketMQ opens the store it uses its own: ConfigHelper of org.apache.rocketmq.common.config."""
    options = rocks.options()
    options.set_compression_type(DBCompressionType.none())
    table = BlockBasedOptions()
    table.set_format_version(FORMAT_VERSION)
    options.set_block_based_table_factory(table)
    return options
