"""Reads of many rows from a Raft group."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from adapter.metaservice.config import EtcdSection
from adapter.metaservice.etcd.engine import EtcdEngine
from adapter.metaservice.etcd.keys import Keys, encode_value
from adapter.metaservice.etcd.reads import ROWS
from adapter.model.codec import pack_names
from tests.unit.fake_etcd import FakeCluster
from tests.unit.helpers import key, record

SECTION = EtcdSection()
KEYS = Keys(SECTION.prefix)
COUNT = 2 * ROWS + 1
Read = Callable[[EtcdEngine], Awaitable[object]]


READS: dict[str, Read] = {
    "scan_page": lambda engine: engine.scan_page("c", (), 10 * ROWS, b"", b""),
    "list_page": lambda engine: engine.list_page("c", (), 10 * ROWS, b""),
    "group_page": lambda engine: engine.group_page("c", "default", "g", 10 * ROWS, 2**30, ""),
    "expire": lambda engine: engine.expire("c", "default", "g", 10, 20),
}


@pytest.mark.parametrize("name", READS)
async def test_many_rows_are_read_some_at_a_time(name: str) -> None:
    """With the longest metadata more of them would not come within the deadline, however often they are asked for."""
    metadata, offsets = FakeCluster("metadata"), FakeCluster("a", max_ops=SECTION.max_txn_ops)
    for number in range(COUNT):
        offsets.put(KEYS.offsets + pack_names("c", *key(f"{number:05}")), encode_value(record(5)))
    engine = EtcdEngine(metadata, [offsets], SECTION)  # type: ignore[arg-type, list-item]  # as much of them as it uses
    await engine.open()
    running = asyncio.create_task(engine.run())
    await READS[name](engine)
    asked = [op.request_range for request in offsets.txns for op in request.success if op.request_range.range_end]
    assert len(asked) > COUNT // ROWS
    assert max(found.limit for found in asked) <= ROWS
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
