"""The work of `export`: reads offsets from the adapter (which asks the Meta Service too) and writes them to a file.

The file is written completely or not at all. Nothing is changed in the adapter or the Meta Service.
"""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from adapter.cli.connection import Target, connected
from adapter.cli.files.sorting import OffsetSorter
from adapter.cli.offsets.reading import exported_slices
from adapter.cli.output import note, progress, warn
from adapter.client.client import OffsetClient
from adapter.errors import InvalidInputError
from adapter.formats import broker_places
from adapter.formats import files as formats
from adapter.formats.files import LMQ_FILE, Format
from adapter.formats.rocketmq_rocksdb import Layout
from adapter.formats.rows import Naming, NotReadableError, OffsetRow
from adapter.model.broadcast_names import is_of_client
from adapter.model.queues import queue_of
from adapter.model.records import GroupKey
from adapter.runtime.durable import files
from adapter.runtime.wording import counted

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
    of_clients: set[GroupKey] = set()  # broadcasting ones, which are left out for RocketMQ unless they are named
    left_out = 0
    with progress("exporting", None) as advance:
        async for rows in exported_slices(client, named, to.naming.namespace):
            every = rows
            if to.kind in _WITHOUT_CLIENTS and not named:
                of_clients.update(group for group in {row.key.group_key for row in rows} if is_of_client(group))
                every = [row for row in rows if row.key.group_key not in of_clients] if of_clients else rows
            kept = [row for row in every if not _of_another(row.shard, to.naming.broker)] if to.naming.broker else every
            left_out += len(every) - len(kept)
            sorter.add(kept)
            advance(len(kept))
            if named:
                found.update(row.group for row in kept)
    if of_clients:
        note(
            f"left out {counted(len(of_clients), 'group')} of broadcasting clients: "
            "RocketMQ's brokers do not keep their positions"
        )
    if left_out:
        note(f"left out {counted(left_out, 'offset')} of other brokers than {to.naming.broker!r}")
    return found


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
