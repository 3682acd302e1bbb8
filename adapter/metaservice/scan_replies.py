"""The replies of a scan by row: a key and a record for each row. Yields to the event loop."""

import struct
from collections.abc import Iterator
from itertools import islice

from adapter.metaservice.engine import SIZE, RawPage
from adapter.model.codec import pack_names
from adapter.rpc import meta_pb
from adapter.runtime.slices import SLICE, others

_NO_SEQ = bytes(8)


async def by_row(page: RawPage, cluster: str) -> meta_pb.ScanOffsetDataReply:
    """The page with keys without the cluster, and records without write counters."""
    reply = meta_pb.ScanOffsetDataReply(next_page_token=page.after)
    cut, columns = len(pack_names(cluster)), page.packed
    rows = zip(values(columns.keys, columns.key_sizes), values(columns.records, columns.record_sizes), strict=True)
    while some := list(islice(rows, SLICE)):
        reply.keys.extend([key[cut:] for key, _ in some])
        reply.records.extend([_NO_SEQ + record[len(_NO_SEQ) :] for _, record in some])
        await others()
    return reply


def values(joined: bytes, sizes: bytes) -> Iterator[bytes]:
    """The values of a column of `PackedRows`."""
    at = 0
    for (size,) in struct.iter_unpack(SIZE.format, sizes):
        yield joined[at : at + size]
        at += size
