"""The work of `export`: reads offsets from the adapter (which asks the Meta Service too) and writes them to a file.

The file is written completely or not at all. Nothing is changed in the adapter or the Meta Service.
"""

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

from adapter.cli.connection import Target, connected
from adapter.cli.files.sorting import OffsetSorter
from adapter.cli.offsets.reading import PIECE, exported, groups_of
from adapter.cli.output import note, progress, warn
from adapter.client.client import OffsetClient
from adapter.errors import InvalidInputError
from adapter.formats import broker_places
from adapter.formats import files as formats
from adapter.formats.files import LMQ_FILE, Format
from adapter.formats.rocketmq_rocksdb import Layout
from adapter.formats.rows import Naming, NotReadableError, OffsetRow
from adapter.model.queues import queue_of
from adapter.model.records import GroupKey
from adapter.runtime.durable import files
from adapter.runtime.wording import counted
from adapter.sidecar.engine.broadcast import is_of_client

_WITHOUT_CLIENTS = (Format.ROCKETMQ_BROKER, Format.ROCKETMQ_ROCKSDB)


class Destination(NamedTuple):
    """The file to write: its path (`-` is standard output), format and naming; `layout` is that of RocketMQ's RocksDB."""

    path: str
    kind: Format
    naming: Naming
    layout: Layout


async def export(target: Target, groups: Sequence[str], to: Destination) -> bool:
    """Write the offsets of the named groups (of all local ones if none is named); True if each named group has offsets.

    Nothing is written if there are no offsets. Raises InvalidInputError if the format cannot hold one of them.
    """
    namespace = to.naming.namespace
    with OffsetSorter() as sorter:
        async with connected(target) as client:
            found = await _collect(client, [GroupKey(namespace, name) for name in dict.fromkeys(groups)], to, sorter)
        missing = sorted(set(groups) - found)
        for name in missing:
            warn(f"group {name!r} has no offsets in namespace {namespace!r}; `groups list` shows those that have")
        if not sorter.added:
            warn("no offsets: nothing is written")
            return False
        _check_beside(to, sorter)
        written = _write(to, sorter)
        where = files.name_of(to.path, "standard output")
        note(f"exported {counted(written, 'offset')} of {counted(sorter.groups(), 'group')} to {where}")
        if to.kind in _WITHOUT_CLIENTS:
            note(broker_places.note_of(to.kind, to.layout, lmq=Path(to.path).name == LMQ_FILE))
    return not missing


async def _collect(client: OffsetClient, named: Sequence[GroupKey], to: Destination, sorter: OffsetSorter) -> set[str]:
    """Read the offsets of some groups into `sorter`; returns those of the named groups that have any."""
    found: set[str] = set()
    left_out = 0
    with progress("exporting", None) as advance:
        async for piece in _pieces(client, to) if not named else _cut(named):
            every = [row async for row in exported(client, piece)]
            rows = [row for row in every if not _of_another(row.shard, to.naming.broker)]
            left_out += len(every) - len(rows)
            sorter.add(rows)
            advance(len(rows))
            if named:
                found.update(row.group for row in rows)
    if left_out:
        note(f"left out {counted(left_out, 'offset')} of other brokers than {to.naming.broker!r}")
    return found


def _of_another(shard: str, broker: str) -> bool:
    """True if the shard is a queue of a broker other than `broker`; an empty `broker` matches all."""
    queue = queue_of(shard) if broker else None
    return queue is not None and queue.broker_name not in {"", broker}


async def _cut(named: Sequence[GroupKey]) -> AsyncIterator[Sequence[GroupKey]]:
    for at in range(0, len(named), PIECE):
        yield named[at : at + PIECE]


async def _pieces(client: OffsetClient, to: Destination) -> AsyncIterator[Sequence[GroupKey]]:
    """All local groups, in slices. Left out for RocketMQ: broadcasting clients, whose positions a broker does not keep."""
    piece: list[GroupKey] = []
    left_out = 0
    async for row in groups_of(client, to.naming.namespace):
        group = GroupKey(row.namespace, row.group)
        if to.kind in _WITHOUT_CLIENTS and is_of_client(group):
            left_out += 1
            continue
        piece.append(group)
        if len(piece) == PIECE:
            yield piece
            piece = []
    if piece:
        yield piece
    if left_out:
        note(f"left out {counted(left_out, 'group')} of broadcasting clients: RocketMQ's brokers do not keep their positions")


def _check_beside(to: Destination, sorter: OffsetSorter) -> None:
    """Raise InvalidInputError if the broker has larger offsets in another place beside the file: it would go back to ours."""
    if to.kind not in _WITHOUT_CLIENTS or to.path == files.STDIO:
        return
    for place in broker_places.beside(Path(to.path)):
        rows = formats.read(place, Format.of(place), to.naming)
        try:
            found = sorter.smaller_than(row for row in rows if isinstance(row, OffsetRow))
        except NotReadableError as error:
            warn(f"{place}: {error}; whether the broker would go back was not checked")
            continue
        if found:
            count, row, ours = found
            raise InvalidInputError(
                f"-o: {place.name} beside it has larger offsets for {counted(count, 'shard')}, as {row.shard!r} of group "
                f"{row.group!r}: {row.offset}, here {ours}; a broker that takes the export over would go back. Stop the broker, "
                f"import {place} and export again; to go back on purpose, write to another directory and copy it"
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
