"""A group that cannot be read as a whole in the time of a call: what names one shard of it works, and the rest goes in pages."""

from pathlib import Path

import anyio

from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.records import ReadMode, SaveEntry, next_era
from adapter.rpc import offsets_pb
from adapter.testing.processes import adapter_process, ended, meta_process
from adapter.testing.waiting import eventually, positions
from tests.durability.callers import WAIT_S
from tests.durability.proxy import Proxy
from tests.unit.helpers import key, record

SHARDS = 600
BYTES_PER_S = 1_000_000.0  # the group takes more than two seconds
SETTINGS = "timeout_ms = 60000\nload_timeout_ms = 1500\n"


async def test_one_shard_of_a_large_group_is_read_described_committed_and_reset(tmp_path: Path) -> None:
    """Each of them loaded the whole group within `load_timeout_ms`, and so failed every time; the whole group goes in pages."""
    meta = meta_process(tmp_path / "meta")
    proxy = Proxy(meta.address)
    adapter = adapter_process(tmp_path, proxy.address, extra=SETTINGS)
    async with proxy.listening():
        with ended(adapter, meta):
            meta.start()
            entries = [SaveEntry(key(f"s{at:04}"), record(7, 3, metadata="m" * 4_096)) for at in range(SHARDS)]
            async with GrpcMetaClient.open(MetaSection(endpoints=(meta.address,))) as client:
                for at in range(0, SHARDS, 400):
                    await client.save(entries[at : at + 400])
            adapter.launch()
            await eventually(lambda: "sidecar.serving" in adapter.log, WAIT_S)
            proxy.bytes_per_s = BYTES_PER_S
            async with OffsetClient.connect(adapter.address, WAIT_S) as client:
                read = await client.read("g", ["s0001"], mode=ReadMode.STORE)
                assert positions(read.values()) == {key("s0001"): (3, 7)}
                described = await client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group="g", shards=["s0002"]))
                assert [(row.shard, row.remote.epoch, row.remote.offset) for row in described.shards] == [("s0002", 3, 7)]
                assert not described.remote_error
                # The first one may go in with its epoch unknown: it has shown that the group is large.
                await client.commit("g", {"s0003": 8})
                with anyio.fail_after(WAIT_S):
                    while not (await client.status()).meta_available:  # until the flush is answered
                        pass
                await client.commit("g", {"s0004": 8, "new": 1})
                local = await client.read("g", ["s0004", "new"], mode=ReadMode.MEMORY)
                assert positions(local.values()) == {key("s0004"): (3, 8), key("new"): (1, 1)}
                one = offsets_pb.ResetOffsetsRequest(group="g", shards=["s0005"], to_offset=2, execute=True)
                assert [row.after.epoch for row in (await client.admin.ResetOffsets(one)).rows] == [next_era(3)]
                whole = offsets_pb.ResetOffsetsRequest(group="g", to_offset=1, execute=True)
                rows = (await client.admin.ResetOffsets(whole)).rows
                assert len(rows) == SHARDS + 1
                assert {row.after.offset for row in rows} == {1}
