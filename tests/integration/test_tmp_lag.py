import anyio, asyncio, pytest
from pathlib import Path
from adapter.rpc import lag_pb, offsets_pb
from adapter.model.bounds import ShardKey
from adapter.testing.broker_log import MemoryLog
from tests.integration.helpers import serving, PATIENCE_S
from google.protobuf.text_format import MessageToString

async def test_it(tmp_path):
    async with serving(tmp_path, lag={"interval_ms":100,"point_distance_ms":10}) as (sidecar, client):
        def req(o, h):
            return offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=[offsets_pb.ShardCommit(shard="a", offset=o, low_watermark=0, high_watermark=h)])])
        for i in range(1,6):
            await client.store.CommitOffsets(req(i, i*2))
            await client.commit("h", {"x": i, "y":i})
            await anyio.sleep(0.15)
        await anyio.sleep(0.3)
        print(await client.group_lag("g"))
        print(await client.group_lag_page())
        async for r in client.watch_group_lag():
            print("WATCH", r); break
        print(sidecar._lag.longest_s)
