"""The import: a file of offsets -> merged, read back, told. A dry run unless it is to be executed.

The whole file is read before anything is sent, so that a torn one does nothing. Then it goes group by group, one request
after the other. A merge that is repeated changes nothing: an import that was killed is run again.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import grpc
import grpc.aio

from adapter.cli.connection import Target, connected
from adapter.cli.groups_show import TIMEOUT_S
from adapter.cli.import_report import Report
from adapter.cli.output import progress, warn
from adapter.cli.reset_plan_file import told
from adapter.cli.sorting import OffsetSorter
from adapter.client.client import OffsetClient
from adapter.errors import AdapterError, InvalidInputError
from adapter.formats import files as formats
from adapter.formats.files import Format
from adapter.formats.rows import Naming, NotReadableError, OffsetRow, Reject
from adapter.rpc import offsets_pb
from adapter.runtime import files

# Of one request: with names it stays under gRPC's 4 MiB, and no commit of a broker waits for long behind one.
PIECE_ROWS = 500
PIECE_METADATA_BYTES = 2**20
READ_AT_ONCE = 1_000
UNREADABLE_SHOWN = 100

Request = offsets_pb.ImportOffsetsRequest


class Source(NamedTuple):
    """The file, and what it does not tell itself."""

    path: str
    kind: Format
    naming: Naming

    @property
    def name(self) -> str:
        """As messages name it."""
        return files.name_of(self.path, "standard input")


async def import_file(target: Target, source: Source, *, execute: bool, as_json: bool) -> bool:
    """Merge the offsets of a file; True when each of them could be read and stands.

    Raises InvalidInputError for a file that is torn or has no offsets: nothing was sent then.
    """
    with OffsetSorter() as sorter:
        unreadable = read_into(sorter, source)
        async with connected(target) as client:
            report = Report(execute=execute, as_json=as_json, unreadable=unreadable)
            try:
                with progress("importing" if execute else "comparing", sorter.added) as advance:
                    for request in requests(sorter):
                        request.execute = execute
                        await _send(client, request, report)
                        advance(sum(len(group.shards) for group in request.groups))
            except (AdapterError, grpc.aio.AioRpcError):
                report.end(sorter.repeated, whole=False)
                raise
        return report.end(sorter.repeated)


async def _send(client: OffsetClient, request: Request, report: Report) -> None:
    try:
        report.add(await client.admin.ImportOffsets(request, timeout=TIMEOUT_S))
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.ABORTED:
            raise
        # Somebody moved one of these offsets at the same moment. That is no reason to leave the other requests out.
        report.add_contended(error.details() or "")


def read_into(sorter: OffsetSorter, source: Source) -> int:
    """Read a file to its end; returns how many entries could not be read, each of which is told. Raises InvalidInputError."""
    rejects = 0

    def readable(entries: Iterable[OffsetRow | Reject]) -> Iterator[OffsetRow]:
        nonlocal rejects
        for entry in entries:
            if isinstance(entry, OffsetRow):
                yield entry
                continue
            rejects += 1
            if rejects <= UNREADABLE_SHOWN:
                warn(f"{source.name}: {told(entry)}")

    try:
        with files.on_disk(source.path) as path, progress("reading", None) as advance:
            rows = readable(formats.read(path, source.kind, source.naming))
            while some := list(islice(rows, READ_AT_ONCE)):
                sorter.add(some)
                advance(len(some))
    except NotReadableError as error:
        raise InvalidInputError(f"{source.name}: {error}; nothing was sent") from error
    if rejects > UNREADABLE_SHOWN:
        warn(f"{source.name}: and {rejects - UNREADABLE_SHOWN:,} more that cannot be read")
    if not sorter.added:
        raise InvalidInputError(f"{source.name}: holds no offsets" + (" that can be read" if rejects else ""))
    return rejects


def requests(rows: Iterable[OffsetRow]) -> Iterator[Request]:
    """Sorted rows as requests. The rows of a group are together: the adapter loads each group that a request names."""
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
