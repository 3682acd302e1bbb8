"""Pages of bulk reads as they are sent: as four columns, or with a key and a record for each row. Yields to the event loop."""

import struct
from collections.abc import Sequence

from adapter.metaservice.engine import RawPage
from adapter.model.codec import pack_names
from adapter.rpc import meta_pb
from adapter.runtime.slices import in_slices, others

SLICE = 2_000  # rows packed before the event loop runs other tasks: 0.2 ms
_NO_SEQ = bytes(8)


async def packed(page: RawPage) -> meta_pb.PackedRows:
    """The page as columns."""
    keys, key_sizes = await _column(page.keys)
    records, record_sizes = await _column(page.records)
    return meta_pb.PackedRows(keys=keys, key_sizes=key_sizes, records=records, record_sizes=record_sizes)


async def _column(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The values one after the other, and their sizes."""
    joined, sizes = bytearray(), bytearray()
    for at in range(0, len(values), SLICE):
        some = values[at : at + SLICE]
        joined += b"".join(some)
        sizes += struct.pack(f"<{len(some)}H", *map(len, some))
        await others()
    return bytes(joined), bytes(sizes)


async def by_row(page: RawPage, cluster: str) -> meta_pb.ScanOffsetDataReply:
    """The page with a key, without the cluster, and a record without a write counter for each row."""
    reply = meta_pb.ScanOffsetDataReply(next_page_token=page.after)
    cut = len(pack_names(cluster))
    async for keys in in_slices(page.keys):
        reply.keys.extend([key[cut:] for key in keys])
    async for records in in_slices(page.records):
        reply.records.extend([_NO_SEQ + record[len(_NO_SEQ) :] for record in records])
    return reply
