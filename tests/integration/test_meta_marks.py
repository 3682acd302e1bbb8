"""The client's side of store reports, over the wire: what is told with a save, and what a reply shows."""

from pathlib import Path

from adapter.meta.client import GrpcMetaClient
from adapter.model.records import SaveEntry, StoreReport
from adapter.testing.processes import ended, free_port, meta_process
from tests.integration.helpers import key, meta_section, record

STORE = StoreReport("b", "/store", b"sixteen bytes, 1", 0)


async def test_after_a_call_without_an_answer_saves_do_not_tell_of_the_store(tmp_path: Path) -> None:
    """A server that was restored meanwhile says first, in answer to a report, what it remembers."""
    meta = meta_process(tmp_path)
    told = [STORE]
    dead = f"127.0.0.1:{free_port()}"
    with ended(meta):
        meta.start()
        async with GrpcMetaClient.open(meta_section(meta.address)) as client:
            client.server_reports.store = lambda: told[-1]
            await client.save([SaveEntry(key(), record(1))])
            assert await client.report_store(STORE) is None
            told.append(STORE._replace(flushed_seq=5))
            await client.save([SaveEntry(key(), record(2))])
            known = await client.report_store(STORE)
            assert known
            assert known.store.flushed_seq == 5
            assert abs(client.server_reports.skew.ms) < 30_000
            assert client.server_reports.marks.newest("")
        async with GrpcMetaClient.open(meta_section(dead, meta.address)) as client:
            client.server_reports.store = lambda: told[-1]
            await client.report_store(STORE)
            told.append(STORE._replace(flushed_seq=6))
            await client.save([SaveEntry(key(), record(3))])
            known = await client.report_store(STORE)
            assert known
            assert known.store.flushed_seq == 5
            await client.save([SaveEntry(key(), record(4))])
            known = await client.report_store(STORE)
            assert known
            assert known.store.flushed_seq == 6
