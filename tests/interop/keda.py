"""KEDA's own external scalers against an adapter and a Meta Service. `make interop` builds them.

What KEDA's operator does with the numbers is not run here: docs/keda.md says it, by KEDA's source.
"""

import asyncio
import json
import os
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from adapter.client.client import OffsetClient
from adapter.fleet.scaling import LAG_METRIC, SECONDS_METRIC
from adapter.model.bounds import ShardKey
from adapter.rpc import offsets_pb
from adapter.testing.broker_log import MemoryLog
from adapter.testing.broker_log import serving as serving_log
from adapter.testing.lag_adapters import FakeLagAdapter, shard_lag
from adapter.testing.lag_adapters import serving as serving_fake
from adapter.testing.processes import adapter_process, meta_process
from adapter.testing.waiting import PATIENCE_S

PROGRAM = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-adapter-interop/keda/client"
LIVE = "[lag]\ninterval_ms = 100\nbounds_interval_ms = 100\n"

Line = dict[str, Any]


def trigger(address: str, **metadata: str) -> str:
    """The metadata of a trigger, as KEDA has them."""
    return json.dumps({"scalerAddress": address, "group": "g", "lagThreshold": "10", **metadata})


async def once(metadata: str) -> list[Line]:
    """What KEDA's scaler is told now."""
    program = await asyncio.create_subprocess_exec(PROGRAM, "once", metadata, stdout=PIPE, stderr=PIPE)
    output, errors = await program.communicate()
    assert program.returncode == 0, errors.decode()
    return [json.loads(line) for line in output.splitlines()]


async def until_value(value: float, metadata: str) -> list[Line]:
    """What KEDA's scaler is told, as soon as its first metric has this value."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            lines = await once(metadata)
            if next((line.get("value") for line in lines if "metric" in line), None) == value:
                return lines
            await anyio.sleep(0.1)


@asynccontextmanager
async def pushed(metadata: str) -> AsyncIterator[AsyncIterator[Line]]:
    """What a trigger of type external-push is told."""
    program = await asyncio.create_subprocess_exec(PROGRAM, "push", metadata, stdin=PIPE, stdout=PIPE)
    assert program.stdin
    assert program.stdout
    reader = program.stdout

    async def lines() -> AsyncIterator[Line]:
        async for line in reader:
            yield json.loads(line)

    try:
        yield lines()
    finally:
        program.stdin.close()
        await program.wait()


async def until_pushed(lines: AsyncIterator[Line], *, active: bool) -> None:
    """Read what is pushed until it says so."""
    with anyio.fail_after(PATIENCE_S):
        async for line in lines:
            if line.get("active") is active:
                return


async def test_keda_scales_by_the_lag_of_an_adapter(tmp_path: Path) -> None:
    """From unknown, which is an error for the metric and active for the push, over a lag, to none."""
    log, shard = MemoryLog(), ShardKey("default", "a")
    log.append(shard, *[int(time.time() * 1000)] * 100)
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(serving_log(log))
        meta = meta_process(tmp_path)
        extra = f"[broker_log]\naddress = '{broker}'\n{LIVE}"
        adapter = adapter_process(tmp_path, meta.tcp_address, extra=extra)
        for process in (meta, adapter):
            stack.callback(process.kill)
            await anyio.to_thread.run_sync(process.start)
        at = trigger(adapter.tcp_address)
        spec, metric = await once(at)
        assert spec == {"spec": f"s0-{LAG_METRIC}", "average": 10}
        assert metric["metric"] == f"s0-{LAG_METRIC}"
        assert "Unavailable" in metric["error"]
        lines = await stack.enter_async_context(pushed(at))
        await until_pushed(lines, active=True)
        client = await stack.enter_async_context(OffsetClient.connect(adapter.address, PATIENCE_S))

        async def commit(offset: int) -> None:
            shards = [offsets_pb.ShardCommit(shard="a", offset=offset, topic="orders")]
            request = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=shards)])
            await client.store.CommitOffsets(request)

        await commit(93)
        assert (await until_value(7, at))[1] == {"metric": f"s0-{LAG_METRIC}", "value": 7, "active": True}
        await commit(100)
        assert (await until_value(0, at))[1]["active"] is False
        await until_pushed(lines, active=False)
        log.append(shard, int(time.time() * 1000))
        await until_pushed(lines, active=True)
        wrong = await once(trigger(adapter.tcp_address, lagThreshold="many"))
        assert wrong == [], "KEDA takes no metric at all for an error of GetMetricSpec"


async def test_keda_scales_by_the_lag_of_a_fleet(tmp_path: Path) -> None:
    """Over two brokers, by messages and by seconds."""
    now_ms = int(time.time() * 1000)
    one, other = FakeLagAdapter("one"), FakeLagAdapter("other")
    for adapter, shard in ((one, "a"), (other, "b")):
        adapter.evaluated_at_ms = now_ms
        adapter.set_group("g", [shard_lag(shard, 100, 107, bounds_at_ms=now_ms)])
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving_fake(one))]
        leaving = await stack.enter_async_context(AsyncExitStack())
        addresses.append(await leaving.enter_async_context(serving_fake(other)))
        settings = f"[fleet]\nadapters = {addresses}\ninterval_ms = 100\ntimeout_ms = 10000\n"
        meta = meta_process(tmp_path, extra=settings)
        stack.callback(meta.kill)
        await anyio.to_thread.run_sync(meta.start)
        at = trigger(meta.tcp_address, lagSecondsThreshold="2.5", limitToShards="none")
        assert await until_value(14, at) == [
            {"spec": f"s0-{LAG_METRIC}", "average": 10},
            {"spec": f"s0-{SECONDS_METRIC}", "average": 2.5},
            {"metric": f"s0-{LAG_METRIC}", "value": 14, "active": True},
            {"metric": f"s0-{SECONDS_METRIC}", "value": 7, "active": True},
        ]
        for adapter, shard in ((one, "a"), (other, "b")):
            adapter.set_group("g", [shard_lag(shard, 107, 107, bounds_at_ms=now_ms)])
        await until_value(0, at)
        lines = await stack.enter_async_context(pushed(at))
        await until_pushed(lines, active=False)
        await leaving.aclose()
        await until_pushed(lines, active=True)
        with anyio.fail_after(PATIENCE_S):
            while True:
                if "error" in (await once(at))[2]:
                    return
                await anyio.sleep(0.1)
