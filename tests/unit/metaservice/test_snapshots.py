"""The call that streams a snapshot: its replies, and when it is ended or refused."""

import asyncio
from typing import Any

import grpc
import pytest

from adapter.metaservice import offset_service
from adapter.metaservice.config import LimitsSection
from adapter.metaservice.limits import Limits
from adapter.metaservice.metrics import MetaMetrics
from adapter.metaservice.offset_service import MAX_SNAPSHOTS, MetaService
from adapter.model.arrow import decode_packed
from adapter.model.records import SaveEntry
from adapter.rpc import meta_pb
from adapter.runtime.clocks import wall_ms
from tests.model.engine import MemoryEngine
from tests.unit.helpers import key, record

Reply = meta_pb.SnapshotOffsetDataReply
REQUEST = meta_pb.SnapshotOffsetDataRequest(cluster_name="c")


class EndedError(Exception):
    """The call was aborted, with this status and text."""


class Client:
    """The client's end of a call. It reads `reads` replies and then nothing."""

    def __init__(self, reads: int = 1_000) -> None:
        self.replies: list[Reply] = []
        self._reads = reads

    async def write(self, reply: Reply) -> None:
        """Take a reply, or let the server wait."""
        if len(self.replies) == self._reads:
            await asyncio.Event().wait()
        self.replies.append(reply)

    async def abort(self, code: grpc.StatusCode, text: str, _trailing: Any) -> None:
        """End the call."""
        raise EndedError(code, text)


async def service(records: int = 0) -> MetaService:
    """A service over a store with this many records."""
    engine = MemoryEngine(wall_ms)
    await engine.save("c", [SaveEntry(key(f"{at:05}"), record(at)) for at in range(records)])
    metrics = MetaMetrics()
    return MetaService(engine, Limits(LimitsSection(), metrics), metrics)


@pytest.mark.parametrize("records", [0, 1, 10_000, 25_000])
async def test_a_snapshot_begins_with_its_time_and_ends_with_its_number(records: int) -> None:
    """So a stream that was cut off cannot be taken for a whole one."""
    client: Any = Client()
    await (await service(records)).SnapshotOffsetData(REQUEST, client)
    head, *pages, end = client.replies
    assert abs(head.taken_at_ms - wall_ms()) < 3_600_000
    assert not head.HasField("packed")
    assert (end.HasField("records"), end.records) == (True, records)
    found = [
        row
        for page in (reply.packed for reply in pages)
        for row in decode_packed(page.keys, page.key_sizes, page.records, page.record_sizes)["offset"].to_pylist()
    ]
    assert found == list(range(records))


async def test_a_snapshot_that_nobody_reads_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep files on the disk for ever; the next one finds room."""
    monkeypatch.setattr(offset_service, "IDLE_S", 0.01)
    meta = await service(5)
    for _ in range(MAX_SNAPSHOTS + 1):
        stalled: Any = Client(reads=1)
        with pytest.raises(EndedError, match=r"UNAVAILABLE.*its reader did nothing for 0.01 s"):
            await meta.SnapshotOffsetData(REQUEST, stalled)


async def test_more_than_a_few_snapshots_at_a_time_are_refused() -> None:
    """Each keeps what the store would delete."""
    meta = await service(5)
    clients: list[Any] = [Client(reads=1) for _ in range(MAX_SNAPSHOTS)]
    calls = [asyncio.ensure_future(meta.SnapshotOffsetData(REQUEST, client)) for client in clients]
    while any(not client.replies for client in clients):  # noqa: ASYNC110 - until all have begun
        await asyncio.sleep(0)
    late: Any = Client()
    with pytest.raises(EndedError, match=r"RESOURCE_EXHAUSTED.*come back when one is"):
        await meta.SnapshotOffsetData(REQUEST, late)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await meta.SnapshotOffsetData(REQUEST, late)
    assert late.replies[-1].records == 5
