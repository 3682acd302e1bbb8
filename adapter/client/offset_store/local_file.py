"""The OffsetStore of broadcasting consumers: a file of this machine, where and as RocketMQ's Java client has it.

Promises that at every moment `offsets.json` or `offsets.json.bak` is whole and has all that was persisted, wherever the process
or the machine dies; and that what cannot be read is an error, never an absent offset.
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
from adapter.errors import InvalidInputError
from adapter.formats import files
from adapter.formats.files import Format
from adapter.formats.rows import LONG_MAX, Naming, OffsetRow, Reject
from adapter.model.names import check_name
from adapter.model.queues import MessageQueue, queue_of, shard_of
from adapter.model.records import DEFAULT_NAMESPACE
from adapter.runtime.files import sync_directory

log = structlog.get_logger(__name__)

FOLDER = ".rocketmq_offsets"
FILE = "offsets.json"
BACKUP = ".bak"
FRESH = ".new"

Offsets: TypeAlias = dict[MessageQueue, int]


class LocalFileOffsetStore(OffsetTable):
    """See `OffsetStore`. The file is `<directory>/.rocketmq_offsets/<client_id>/<group>/offsets.json`.

    For the Java client the directory is its user's home; or all that stands before `<client_id>` is its system property
    `rocketmq.client.localOffsetStoreDir`. Its client id is `<ip>@<instance name>`, as in `192.168.1.5@DEFAULT`.
    Queues need a broker's name, and offsets are at most 2^63 - 1. Processes that share a file keep each other's queues.
    Raises InvalidInputError for a client id or group that is not one part of a path.
    """

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        super().__init__(group, LONG_MAX)
        self._path = directory / FOLDER / _part(client_id, "client_id") / _part(group, "group") / FILE
        self._naming = Naming(group=group)
        self._lock = anyio.Lock()
        self._turn = 0  # of the last write that was begun

    @property
    def path(self) -> Path:
        """Where the offsets are."""
        return self._path

    async def load(self) -> None:
        """See `OffsetStore`. Raises OffsetStoreError when neither the file nor its .bak can be read."""
        for queue, offset in (await self._read("loading")).items():
            self.remove_offset(queue)
            self._refresh(queue, offset)

    async def read_offset(
        self, queue: MessageQueue, read_type: ReadOffsetType = ReadOffsetType.MEMORY_FIRST_THEN_STORE
    ) -> int | None:
        """See `OffsetStore`. RocketMQ's returns -1 for a file that it cannot read."""
        held = self._in_memory(queue)
        if read_type is ReadOffsetType.READ_FROM_MEMORY or (held is not None and read_type is not ReadOffsetType.READ_FROM_STORE):
            return held
        self._shard(queue)
        entry = self._entries.get(queue)
        told = entry and entry.told
        offset = (await self._read("reading the offset", queue)).get(queue)
        # What the consumer says or forgets while it is read is newer than what is read.
        if offset is not None and self._entries.get(queue) is entry and (entry and entry.told) == told:
            self._refresh(queue, offset)
        return offset

    async def persist(self, queue: MessageQueue) -> None:
        """See `OffsetStore`."""
        await self._persist([queue])

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """See `OffsetStore`. RocketMQ's forgets nothing in broadcasting mode; here what is forgotten stays in the file."""
        if queues:
            self._retain(queues)
            await self._persist(queues)

    async def force_persist(self, queues: Collection[MessageQueue]) -> None:
        """See `OffsetStore`. Nobody takes over a queue that everybody reads: the same as a persist."""
        await self._persist(queues)

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """See `OffsetStore`."""
        await self._persist(queues)
        self._forget_stored(queues)

    async def update_consume_offset_to_broker(self, queue: MessageQueue, offset: int) -> None:
        """Nothing, as in RocketMQ (LocalFileOffsetStore.java:211): no broker keeps it. `persist` stores at once."""

    async def _persist(self, queues: Collection[MessageQueue]) -> None:
        async with self._lock:
            entries = {queue: entry for queue in queues if (entry := self._entries.get(queue))}
            # With one that changed all are written, so that a file that somebody removed is made anew as a whole.
            offsets = {queue: entry.offset for queue, entry in entries.items() if entry.offset is not None}
            sent = {queue: entry.take() for queue, entry in entries.items() if entry.dirty}
            if not sent:
                return
            self._turn += 1
            try:
                await anyio.to_thread.run_sync(self._merge_into_file, offsets, self._turn)
            except BaseException as error:
                for queue, value in sent.items():
                    entries[queue].put_back(value)
                if isinstance(error, (OSError, InvalidInputError)):
                    raise OffsetStoreError.of("storing the offset", dict.fromkeys(sent, str(error))) from error
                raise
            for queue, value in sent.items():
                entries[queue].settle(value)

    async def _read(self, what: str, *queues: MessageQueue) -> Offsets:
        try:
            async with self._lock:
                return await anyio.to_thread.run_sync(self._read_file)
        except (OSError, InvalidInputError) as error:
            raise OffsetStoreError(f"{what} failed: {error}", dict.fromkeys(queues, str(error))) from error

    def _shard(self, queue: MessageQueue) -> str:
        if not queue.broker_name:
            raise InvalidInputError(f"broker_name: {queue} has none, and RocketMQ's file names each queue with its broker")
        return super()._shard(queue)

    # In a thread

    def _read_file(self) -> Offsets:
        if not self._path.parent.is_dir():
            return {}
        with self._directory_locked(fcntl.LOCK_SH):
            return self._read_either()[0]

    def _merge_into_file(self, offsets: Offsets, turn: int) -> None:
        """LocalFileOffsetStore.java:140: what the file has of other queues stays."""
        _make_directory(self._path.parent)
        with self._directory_locked(fcntl.LOCK_EX):
            if turn != self._turn:
                return  # it was cancelled while it waited, and a newer one must not be written over
            stored, whole = self._read_either()
            rows = (
                OffsetRow(DEFAULT_NAMESPACE, self._naming.group, shard_of(queue), offset)
                for queue, offset in (stored | offsets).items()
            )
            for left in self._path.parent.glob(f"*{FILE}{FRESH}*"):
                left.unlink()  # by a crash, perhaps of a process with the number of this one
            fresh = self._path.with_name(FILE + FRESH)
            files.write(fresh, Format.ROCKETMQ_CLIENT, rows, self._naming)
            if whole:  # only then: a torn file must not take the place of the .bak
                self._path.replace(self._backup)
            # Dies it here, the .bak is the newest; RocketMQ's client then reads that, too.
            fresh.replace(self._path)
            sync_directory(self._path.parent)

    def _read_either(self) -> tuple[Offsets, bool]:
        """The offsets of the file, or else of its .bak; and whether it was the file."""
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
            if isinstance(row, Reject) or queue is None:
                raise InvalidInputError(f"line {row.line}: {row.place}: {row.reason}" if isinstance(row, Reject) else row.shard)
            offsets[queue] = row.offset
        return offsets

    @property
    def _backup(self) -> Path:
        return self._path.with_name(FILE + BACKUP)

    @contextmanager
    def _directory_locked(self, kind: int) -> Iterator[None]:
        """Keep other processes of this kind away. RocketMQ's own does not look at it."""
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # NFS cannot lock a directory: one process is then all that may write there
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
