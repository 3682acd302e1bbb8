"""The work of `import`: reads a file of offsets and merges them through the adapter, which reads them back. A dry run by default.

The whole file is read before the first request, so a truncated file changes nothing. Then requests are sent one after the other,
group by group. Repeating a merge changes nothing, so an import that was killed can be run again.
"""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import grpc
import grpc.aio

from adapter.cli import options
from adapter.cli.connection import Target, connected
from adapter.cli.files.import_report import Report
from adapter.cli.files.sorting import OffsetSorter
from adapter.cli.offsets.reading import TIMEOUT_S
from adapter.cli.output import progress, warn
from adapter.client.client import OffsetClient
from adapter.errors import AdapterError, InvalidInputError
from adapter.formats import broker_places
from adapter.formats import files as formats
from adapter.formats.files import Format
from adapter.formats.reset_plan_file import reject_text
from adapter.formats.rows import Naming, NotReadableError, OffsetRow, Reject
from adapter.rpc import offsets_pb
from adapter.runtime.durable import files

# Limits of one request: with names it stays below gRPC's 4 MiB, and commits do not wait long behind it.
PIECE_ROWS = 500
PIECE_METADATA_BYTES = 2**20
READ_AT_ONCE = 1_000
UNREADABLE_SHOWN = 100

Request = offsets_pb.ImportOffsetsRequest


class Source(NamedTuple):
    """The file, its format, and the names that the file itself does not hold.

    `unterminated`: a last line without a line end is accepted.
    """

    path: str
    kind: Format
    naming: Naming
    unterminated: bool = False

    @property
    def name(self) -> str:
        """The file's name in messages."""
        return files.name_of(self.path, "standard input")


async def import_file(target: Target, source: Source, *, execute: bool, as_json: bool) -> bool:
    """Merge the offsets of a file; True if every entry could be read and no larger offset was stored.

    Raises InvalidInputError, before anything is sent, for a file that is truncated, or may be, or has no offsets.
    """
    with OffsetSorter() as sorter:
        unreadable = read_into(sorter, source, execute=execute)
        async with connected(target) as client:
            report = Report(execute=execute, as_json=as_json, unreadable=unreadable)
            try:
                with progress("importing" if execute else "comparing", sorter.added) as advance:
                    for request in requests(sorter):
                        request.execute = execute
                        await _send(client, request, report)
                        advance(sum(len(group.shards) for group in request.groups))
            except (AdapterError, grpc.aio.AioRpcError, asyncio.CancelledError):
                report.end(sorter.repeated, whole=False)
                raise
        return report.end(sorter.repeated)


async def _send(client: OffsetClient, request: Request, report: Report) -> None:
    try:
        report.add(await client.admin.ImportOffsets(request, timeout=TIMEOUT_S))
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.ABORTED:
            raise
        # Another writer moved one of these offsets at the same time. The other requests are still sent.
        report.add_contended(error.details() or "")


def read_into(sorter: OffsetSorter, source: Source, *, execute: bool) -> int:
    """Read a file to its end; returns how many entries were unreadable. Each is reported. Raises InvalidInputError."""
    rejects = 0
    _tell_what_is_in_use(source)

    def readable(entries: Iterable[OffsetRow | Reject]) -> Iterator[OffsetRow]:
        nonlocal rejects
        for entry in entries:
            if isinstance(entry, OffsetRow):
                yield entry
                continue
            rejects += 1
            if rejects <= UNREADABLE_SHOWN:
                warn(f"{source.name}: {reject_text(entry)}")

    try:
        with files.on_disk(source.path) as path, progress("reading", None) as advance:
            rows = readable(formats.read(path, source.kind, source.naming))
            while some := list(islice(rows, READ_AT_ONCE)):
                sorter.add(some)
                advance(len(some))
            cut = formats.unterminated(path, source.kind)
    except NotReadableError as error:
        raise InvalidInputError(f"{source.name}: {error}; nothing was sent{_other_format(source)}") from error
    if rejects > UNREADABLE_SHOWN:
        warn(f"{source.name}: and {rejects - UNREADABLE_SHOWN:,} more that cannot be read")
    if not sorter.added:
        what = "holds no offsets" + (" that can be read" if rejects else "")
        raise InvalidInputError(f"{source.name}: {what}{_of_slave(source)}{_other_format(source)}")
    if cut:
        options.check_unterminated(f"{source.name}: {reject_text(cut)}", execute=execute, accepted=source.unterminated)
    return rejects


def _tell_what_is_in_use(source: Source) -> None:
    """Warn if the broker writes another one of its files."""
    if source.kind in (Format.ROCKETMQ_BROKER, Format.ROCKETMQ_ROCKSDB):
        other = broker_places.in_use_instead(Path(source.path))
        if other:
            warn(f"{source.name}: {other}")


def _of_slave(source: Source) -> str:
    is_v2 = source.kind is Format.ROCKETMQ_ROCKSDB and Path(source.path).name == broker_places.V2_STORE
    return "; the slave of a broker with configManagerVersion=v2 keeps none on disk: read its master's" if is_v2 else ""


def _other_format(source: Source) -> str:
    """A suggestion, where the file is of another format than it was read in."""
    if source.path == files.STDIO:
        return f"; it was read as {source.kind.value}: --format names another"
    found = formats.recognised(Path(source.path), source.kind)
    return f"; it was read as {source.kind.value}, but looks like {found.value}: --format {found.value}" if found else ""


def requests(rows: Iterable[OffsetRow]) -> Iterator[Request]:
    """Sorted rows as requests. Rows of one group stay together, because the adapter loads every group that a request names."""
    request, count, size = Request(), 0, 0
    group: offsets_pb.GroupCommits | None = None
    for row in rows:
        if count >= PIECE_ROWS or size >= PIECE_METADATA_BYTES:
            yield request
            request, count, size, group = Request(), 0, 0, None
        if group is None or (group.namespace, group.group) != (row.namespace, row.group):
            group = request.groups.add(namespace=row.namespace, group=row.group)
        group.shards.add(
            shard=row.shard,
            offset=row.offset,
            metadata=row.metadata,
            committed_at_ms=row.committed_at_ms,
            topic=row.topic,
            partition=row.partition,
        )
        count += 1
        size += len(row.metadata.encode())
    if count:
        yield request
