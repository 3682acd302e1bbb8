"""The lag of a stock RocketMQ broker's groups: its logs have no identity, so an end that falls is that of a new log."""

from pathlib import Path

from adapter.rocketmq.config import RocketmqSection
from adapter.rpc import lag_pb
from adapter.sidecar.bridge.broker_log import RocketmqLog
from tests.fake_rocketmq import FakeBroker
from tests.integration.helpers import serving
from tests.integration.test_lag import LAG, has, until

SHARD = "broker-a/T/0"


async def test_a_topic_that_was_made_anew_at_a_stock_broker_has_nothing_of_the_dead_log(tmp_path: Path) -> None:
    """Its group is BEYOND at first; once its offset is one of the new log, lag is counted in that one alone."""
    broker = FakeBroker()
    async with broker.serving():
        broker.commit("g", "T", 0, 100_000, end=100_020)
        log = RocketmqLog(RocketmqSection(broker=broker.address))
        rocketmq = {"broker": broker.address, "poll_ms": 10}
        # So many points that those of the dead log do not leave by themselves while this waits.
        async with serving(tmp_path, broker_log=log, rocketmq=rocketmq, lag={**LAG, "head_points": 1_000}) as (_, client):
            await until(client, has(shard=SHARD, offset=100_000, high_watermark=100_020, lag=20))
            broker.logs["T", 0] = (0, 5)
            reply = await until(client, has(shard=SHARD, status=lag_pb.BEYOND))
            assert (reply.shards[0].high_watermark, reply.shards[0].HasField("lag")) == (5, False)
            broker.commit("g", "T", 0, 3, end=5)
            await until(client, has(shard=SHARD, offset=3, lag=2))
            broker.logs["T", 0] = (0, 6)
            await until(client, has(shard=SHARD, high_watermark=6, lag=3))
