"""The work of `export`: reads offsets from the adapter (which asks the Meta Service too), or from the Meta Service, into a file.

The file is written completely or not at all. Nothing is changed in the adapter or the Meta Service. What stands in the Meta
Service and is not in the file is told.
"""

import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from adapter.cli.connection import Target, connected
from adapter.cli.files.sorting import OffsetSorter
from adapter.cli.offsets.reading import exported_locally, exported_slices, meant
from adapter.cli.output import note, progress, warn
from adapter.errors import InvalidInputError
from adapter.formats import broker_places
from adapter.formats import files as formats
from adapter.formats.files import LMQ_FILE, Format
from adapter.formats.rocketmq_rocksdb import Layout
from adapter.formats.rows import Naming, NotReadableError, OffsetRow
from adapter.model.broadcast_names import is_of_client
from adapter.model.queues import queue_of
from adapter.model.records import GroupKey
from adapter.rpc import offsets_pb
from adapter.runtime.durable import files
from adapter.runtime.wording import counted

_WITHOUT_CLIENTS = (Format.ROCKETMQ_BROKER, Format.ROCKETMQ_ROCKSDB)


class Origin(NamedTuple):
    """Where the offsets come from: an adapter, or with a `cluster` its Meta Service. No groups: all of the namespace."""

    target: Target
    groups: Sequence[str]
    cluster: str = ""


class Destination(NamedTuple):
    """The file to write: its path (`-` is standard output), format and naming; `layout` is that of RocketMQ's RocksDB.

    An empty namespace in `naming` means all. `skip_unnamed`: shards for which the format has no name are left out.
    """

    path: str
    kind: Format
    naming: Naming
    layout: Layout
    skip_unnamed: bool = False


class _Kept:
    """Puts offsets into the sorter, and counts those that are left out, and why."""

    def __init__(self, sorter: OffsetSorter, to: Destination, *, named: bool) -> None:
        self.found: set[str] = set()  # groups that have an offset in the file, if they were named
        self.unnamed = 0
        self._sorter = sorter
        self._to = to
        self._named = named
        self._of_clients: set[GroupKey] = set()  # broadcasting ones
        self._of_others = 0

    def add(self, rows: list[OffsetRow]) -> int:
        """Add what belongs into the file; returns how many."""
        to = self._to
        if to.kind in _WITHOUT_CLIENTS and not self._named:
            self._of_clients.update(group for group in {row.key.group_key for row in rows} if is_of_client(group))
            if self._of_clients:
                rows = [row for row in rows if row.key.group_key not in self._of_clients]
        if to.naming.broker:
            every, rows = rows, [row for row in rows if not _of_another(row.shard, to.naming.broker)]
            self._of_others += len(every) - len(rows)
        if to.kind is not Format.JSON:
            named = [row for row in rows if formats.has_name(row.shard, to.kind)]
            self.unnamed += len(rows) - len(named)
            rows = named if to.skip_unnamed else rows
        self._sorter.add(rows)
        if self._named:
            self.found.update(row.group for row in rows)
        return len(rows)

    def tell(self) -> None:
        """Say what was left out."""
        if self._of_clients:
            note(
                f"left out {counted(len(self._of_clients), 'group')} of broadcasting clients: "
                "RocketMQ's brokers do not keep their positions"
            )
        if self._of_others:
            note(f"left out {counted(self._of_others, 'offset')} of other brokers than {self._to.naming.broker!r}")
        if self.unnamed and self._to.skip_unnamed:
            note(f"left out {counted(self.unnamed, 'offset')} of shards that are not named TOPIC/NUMBER; --format json has them")


async def export(origin: Origin, to: Destination) -> bool:
    """Write offsets; True if each named group has some, or without names, if all of the Meta Service's are in the file.

    Nothing is written if there are no offsets. Raises InvalidInputError if the format cannot hold one of them.
    """
    namespace = to.naming.namespace
    missing: list[offsets_pb.ExportOffsetsReply.Missing] = []
    with OffsetSorter() as sorter:
        kept = _Kept(sorter, to, named=bool(origin.groups))
        with progress("exporting", None) as advance:
            async with aclosing(_read(origin, namespace, missing.append)) as slices:
                async for rows in slices:
                    advance(kept.add(rows))
        kept.tell()
        absent = sorted({*origin.groups} - kept.found)
        for name in absent:
            warn(f"group {name!r} has no offsets in namespace {namespace!r}{await _meant(origin, namespace, name)}")
        whole = _tell_missing(missing[-1]) if missing else True
        if not sorter.added:
            warn("no offsets: nothing is written")
            return False
        _check_beside(to, sorter)
        try:
            written = _write(to, sorter)
        except InvalidInputError:
            if kept.unnamed:
                note(f"--skip-unnamed leaves out the {counted(kept.unnamed, 'offset')} of shards that are not named TOPIC/NUMBER")
            raise
        where = files.name_of(to.path, "standard output")
        within = f" in namespace {namespace}" if namespace else ""
        note(f"exported {counted(written, 'offset')} of {counted(sorter.groups(), 'group')}{within} to {where}")
        if to.kind in _WITHOUT_CLIENTS:
            note(broker_places.note_of(to.kind, to.layout, lmq=Path(to.path).name == LMQ_FILE))
    return whole and not absent


async def _read(
    origin: Origin, namespace: str, told: Callable[[offsets_pb.ExportOffsetsReply.Missing], None]
) -> AsyncGenerator[list[OffsetRow], None]:
    names = dict.fromkeys(origin.groups)
    if origin.cluster:
        from adapter.cli.meta import listing  # noqa: PLC0415 - an export of an adapter needs no client of Meta Services

        async with listing.opened(origin.target, origin.cluster) as client:
            for name in names or ("",):
                async for page in listing.pages(client, namespace, name):
                    yield [
                        OffsetRow(*key, record.offset, record.metadata, record.committed_at_ms, *record[5:], record.epoch)
                        for key, record in page
                    ]
        return
    async with connected(origin.target) as client:
        groups = [GroupKey(namespace, name) for name in names]
        slices = exported_slices(client, groups) if groups else exported_locally(client, namespace, told)
        async for rows in slices:
            yield rows


async def _meant(origin: Origin, namespace: str, group: str) -> str:
    if origin.cluster:
        return ""
    async with connected(origin.target) as client:
        return await meant(client, namespace, group)


def _tell_missing(missing: offsets_pb.ExportOffsetsReply.Missing) -> bool:
    """Say what the Meta Service has and the file has not; True if it is nothing."""
    if missing.groups:
        warn(
            f"not in the export: {counted(missing.offsets, 'offset')} of {counted(missing.groups, 'group')} that stand in the "
            "Meta Service, and of which this adapter has none; --meta exports everything, a GROUP what is named"
        )
    if missing.unknown:
        warn(f"what the Meta Service has besides is not known: {missing.unknown}")
    return not (missing.groups or missing.unknown)


def _of_another(shard: str, broker: str) -> bool:
    """True if the shard is a queue of a broker other than `broker`."""
    queue = queue_of(shard)
    return queue is not None and queue.broker_name not in {"", broker}


def _check_beside(to: Destination, sorter: OffsetSorter) -> None:
    """Raise InvalidInputError if the broker has larger offsets in another place beside the file: it would go back to ours.

    Warns of offsets there that it would no longer have.
    """
    if to.kind not in _WITHOUT_CLIENTS or to.path == files.STDIO:
        return
    path, naming = Path(to.path), replace(to.naming, group="")  # of all groups, also for an export of one
    for place in broker_places.beside(path):
        rows = formats.read(place, Format.of(place), naming)
        lost = broker_places.replaced(place, path)
        try:
            found = sorter.beside((row for row in rows if isinstance(row, OffsetRow)), whole=lost == "groups")
        except NotReadableError as error:
            warn(f"{place}: {error}; whether the broker would go back was not checked")
            continue
        if found.larger:
            count, row, ours = found.larger
            raise InvalidInputError(
                f"-o: {place.name} beside it has larger offsets for {counted(count, 'shard')}, as {row.shard!r} of group "
                f"{row.group!r}: {row.offset}, here {ours}; a broker that takes the export over would go back. Stop the broker, "
                f"import {place} and export again; to go back on purpose, write to another directory and copy it"
            )
        if found.absent and lost:
            count, row = found.absent
            warn(
                f"{place.name} beside it has {counted(count, 'offset')} that the export has not, as {row.shard!r} of group "
                f"{row.group!r}: {row.offset}; a broker that takes the export over has none there any more"
            )


def _write(to: Destination, sorter: OffsetSorter) -> int:
    if to.path != files.STDIO:
        return formats.write(Path(to.path), to.kind, sorter, to.naming, to.layout)
    with tempfile.TemporaryDirectory(prefix="offset-adapter-") as directory:
        whole = Path(directory) / "offsets"
        written = formats.write(whole, to.kind, sorter, to.naming)
        with whole.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    return written
