"""The OffsetStore of broadcasting consumers: a local file with the path and format of RocketMQ's Java client.

At every moment `offsets.json` or `offsets.json.bak` is complete and holds all persisted offsets, also after a crash of the
process or the machine. An unreadable file is an error, never an absent offset. Beside them the file FORMAT says their version;
RocketMQ's client neither reads nor needs it.
"""

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import anyio
import anyio.to_thread
import structlog

from adapter.client.offset_store.store import OffsetStoreError, ReadOffsetType
from adapter.client.offset_store.table import OffsetTable
from adapter.errors import InvalidInputError, StoreDamagedError, StoreVersionError
from adapter.formats import files
from adapter.formats.files import Format
from adapter.formats.rows import Naming, OffsetRow, Reject
from adapter.model.names import check_name
from adapter.model.queues import MessageQueue, queue_of, shard_of
from adapter.model.records import DEFAULT_NAMESPACE, LONG_MAX
from adapter.runtime.durable import format_mark
from adapter.runtime.durable.files import sync_directory
from adapter.runtime.durable.format_mark import OFFSET_FILE

log = structlog.get_logger(__name__)

FOLDER = ".rocketmq_offsets"
FILE = "offsets.json"
BACKUP = ".bak"
FRESH = ".new"
_TABLE = "$.offsetTable["  # how the place of a queue begins, and the only member of the file

Offsets: TypeAlias = dict[MessageQueue, int]

_UNREADABLE = (OSError, InvalidInputError, StoreDamagedError, StoreVersionError)


class LocalFileOffsetStore(OffsetTable):
    """An `OffsetStore` in the file `<directory>/.rocketmq_offsets/<client_id>/<group>/offsets.json`.

    For the Java client, the directory is its user's home; its system property `rocketmq.client.localOffsetStoreDir` replaces
    everything before `<client_id>`. Its client id is `<ip>@<instance name>`, as in `192.168.1.5@DEFAULT`.
    Queues need a broker name, and offsets are at most 2^63 - 1. Processes that share a file keep each other's queues.
    Raises InvalidInputError for a client id or group that is not a single part of a path.
    """

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        super().__init__(group, LONG_MAX)
        self._path = directory / FOLDER / _part(client_id, "client_id") / _part(group, "group") / FILE
        self._naming = Naming(group=group)
        self._lock = anyio.Lock()
        self._newest_write = 0  # the number of the write that was started last

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._path

    async def load(self) -> None:
        """Read the file into memory. Raises OffsetStoreError if neither the file nor its .bak can be read."""
        for queue, offset in (await self._read("loading")).items():
            self.remove_offset(queue)
            self._refresh(queue, offset)

    async def read_offset(
        self, queue: MessageQueue, read_type: ReadOffsetType = ReadOffsetType.MEMORY_FIRST_THEN_STORE
    ) -> int | None:
        """The offset of a queue, None if there is none.

        Raises OffsetStoreError if the file is unreadable (RocketMQ: returns -1).
        """
        held = self._in_memory(queue)
        if read_type is ReadOffsetType.READ_FROM_MEMORY or (held is not None and read_type is not ReadOffsetType.READ_FROM_STORE):
            return held
        self._shard(queue)
        entry = self._entries.get(queue)
        before = entry and entry.state
        offset = (await self._read("reading the offset", queue)).get(queue)
        # An update or removal by the consumer during the read is newer than what was read.
        if offset is not None and self._entries.get(queue) is entry and (entry and entry.state) == before:
            self._refresh(queue, offset)
        return offset

    async def persist(self, queue: MessageQueue) -> None:
        """Write the offset of a queue to the file. Raises OffsetStoreError."""
        await self._persist([queue])

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Write the offsets of these queues, and forget all others in memory; the file keeps them. RocketMQ forgets none here."""
        if queues:
            self._retain(queues)
            await self._persist(queues)

    async def force_persist(self, queues: Collection[MessageQueue]) -> None:
        """The same as `persist_all` without forgetting: in broadcasting mode no consumer takes over a queue."""
        await self._persist(queues)

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Write the offsets of these queues, then forget them in memory. Raises OffsetStoreError."""
        await self._persist(queues)
        self._forget_stored(queues)

    async def update_consume_offset_to_broker(self, queue: MessageQueue, offset: int) -> None:
        """Do nothing, as RocketMQ does (LocalFileOffsetStore.java:211): no broker keeps these offsets."""

    async def _persist(self, queues: Collection[MessageQueue]) -> None:
        async with self._lock:
            entries = {queue: entry for queue in queues if (entry := self._entries.get(queue))}
            # If one changed, all are written, so that a removed file is restored completely.
            offsets = {queue: entry.offset for queue, entry in entries.items() if entry.offset is not None}
            sent = {queue: entry.take() for queue, entry in entries.items() if entry.dirty}
            if not sent:
                return
            self._newest_write += 1
            try:
                await anyio.to_thread.run_sync(self._merge_into_file, offsets, self._newest_write)
            except BaseException as error:
                for queue, value in sent.items():
                    entries[queue].put_back(value)
                if isinstance(error, _UNREADABLE):
                    raise OffsetStoreError.of("storing the offset", dict.fromkeys(sent, str(error))) from error
                raise
            for queue, value in sent.items():
                entries[queue].settle(value)

    async def _read(self, what: str, *queues: MessageQueue) -> Offsets:
        try:
            async with self._lock:
                return await anyio.to_thread.run_sync(self._read_file)
        except _UNREADABLE as error:
            raise OffsetStoreError(f"{what} failed: {error}", dict.fromkeys(queues, str(error))) from error

    def _shard(self, queue: MessageQueue) -> str:
        if not queue.broker_name:
            raise InvalidInputError(f"broker_name: {queue} has none, and RocketMQ's file names each queue with its broker")
        return super()._shard(queue)

    # These run in a worker thread.

    def _read_file(self) -> Offsets:
        if not self._path.parent.is_dir():
            return {}
        with self._directory_locked(fcntl.LOCK_SH):
            return self._read_either()[0]

    def _merge_into_file(self, offsets: Offsets, number: int) -> None:
        """Write offsets into the file, keeping those of other queues (LocalFileOffsetStore.java:140)."""
        _make_directory(self._path.parent)
        with self._directory_locked(fcntl.LOCK_EX):
            if number != self._newest_write:
                return  # cancelled while it waited for the lock; a newer write must not be overwritten
            stored, whole = self._read_either()
            if not format_mark.is_marked(OFFSET_FILE, self._path.parent):
                format_mark.write(OFFSET_FILE, self._path.parent)
            rows = (
                OffsetRow(DEFAULT_NAMESPACE, self._naming.group, shard_of(queue), offset)
                for queue, offset in (stored | offsets).items()
            )
            for left in self._path.parent.glob(f"*{FILE}{FRESH}*"):
                left.unlink()  # left by a crash
            fresh = self._path.with_name(FILE + FRESH)
            files.write(fresh, Format.ROCKETMQ_CLIENT, rows, self._naming)
            if whole:  # a torn file must not replace the .bak
                self._path.replace(self._backup)
            # After a crash here, the .bak is the newest complete file; RocketMQ's client reads it too.
            fresh.replace(self._path)
            sync_directory(self._path.parent)

    def _read_either(self) -> tuple[Offsets, bool]:
        """The offsets of the file, or if it is unreadable those of its .bak; and whether the file itself was read.

        A file of a later version is not unreadable: its .bak, which may be older, does not stand for it.
        """
        format_mark.is_marked(OFFSET_FILE, self._path.parent)
        reasons: dict[Path, str] = {}
        for path in (self._path, self._backup):
            try:
                offsets = self._read_one(path)
            except FileNotFoundError:
                continue
            except (OSError, InvalidInputError) as error:
                reasons[path] = str(error)
                continue
            if path == self._backup:
                log.warning("offset_store.backup_used", path=str(path), reason=reasons.get(self._path, "the file is not there"))
            return offsets, path == self._path
        if reasons:
            raise InvalidInputError(
                "; ".join(f"{path}: {reasons.get(path, 'is not there')}" for path in (self._path, self._backup))
                + ". Restore one of them, or remove both: the group then has no offsets here"
            )
        return {}, False

    def _read_one(self, path: Path) -> Offsets:
        path.stat()
        offsets: Offsets = {}
        for row in files.read(path, Format.ROCKETMQ_CLIENT, self._naming):
            queue = None if isinstance(row, Reject) else queue_of(row.shard)
            if isinstance(row, Reject) and not f"{row.place}[".startswith(_TABLE):
                raise StoreVersionError(
                    f"{path}: is not of version {OFFSET_FILE.version}: {row.reason}. If a later offset-adapter wrote it, "
                    "use that one; if it is damaged, restore it or remove it"
                )
            if isinstance(row, Reject) or queue is None:
                raise InvalidInputError(f"line {row.line}: {row.place}: {row.reason}" if isinstance(row, Reject) else row.shard)
            offsets[queue] = row.offset
        return offsets

    @property
    def _backup(self) -> Path:
        return self._path.with_name(FILE + BACKUP)

    @contextmanager
    def _directory_locked(self, kind: int) -> Iterator[None]:
        """Hold a lock against other processes that use this class. RocketMQ's client does not respect it."""
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # NFS cannot lock a directory: then only one process may write there
                fcntl.flock(directory, kind)
            yield
        finally:
            os.close(directory)


def _part(name: str, field: str) -> str:
    check_name(name, field)
    if name in {".", ".."} or "/" in name or os.sep in name:
        raise InvalidInputError(f"{field}: {name!r} is not one part of a path")
    return name


def _make_directory(path: Path) -> None:
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)
