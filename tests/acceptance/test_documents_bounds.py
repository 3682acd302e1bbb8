"""The examples in docs/bounds.md run as they stand there."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from adapter.client.broker_log import BrokerLogSection, GrpcBrokerLog
from adapter.errors import BrokerLogError
from adapter.model.bounds import ShardKey
from adapter.testing.processes import free_port
from adapter.testing.waiting import PATIENCE_S
from tests.acceptance.documents import ROOT, blocks, page
from tests.integration.helpers import serving

LIMIT_S = PATIENCE_S  # for a Python process to start
SHOWN = "127.0.0.1:9540"

BOUNDS = page("bounds")


async def test_a_commit_with_bounds_is_written_like_this(tmp_path: Path) -> None:
    """The adapter has them then."""
    sample = compile(blocks(BOUNDS, "python")[0], "bounds.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with serving(tmp_path) as (sidecar, client):
        await eval(sample, {"client": client})  # noqa: S307 - the example is what is tested
        assert (await client.read("billing"))["orders/0"].offset == 42
        told = sidecar.core().bounds.get(ShardKey("default", "orders/0"))
        assert told is not None
        assert (told.low, told.high, told.log_id) == (10, 50, "topic-7f3a")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    """The address of the example as a process of its own; only the port is another one, so that tests do not meet."""
    address = f"127.0.0.1:{free_port()}"
    program = tmp_path / "broker.py"
    program.write_text(blocks(BOUNDS, "python")[1].replace(SHOWN, address))
    with subprocess.Popen([sys.executable, program], cwd=ROOT) as process:
        try:
            yield address
        finally:
            process.kill()


async def test_a_broker_log_is_served_like_this(broker: str) -> None:
    """It answers as the text says, at the address that the settings name."""
    assert f'address = "{SHOWN}"' in blocks(BOUNDS, "toml")[0]
    shards = ["orders/0", "unknown"]
    async with GrpcBrokerLog.open(BrokerLogSection(address=broker)) as log:
        await _answering(log)
        assert {shard: row[:2] for shard, row in (await log.bounds("default", shards)).items()} == {"orders/0": (0, 2)}
        for time_ms, offset in ((0, 0), (1_700_000_000_001, 1), (1_700_000_060_001, None)):
            assert await log.offsets_for_time("default", shards, time_ms) == {"orders/0": offset}


async def _answering(log: GrpcBrokerLog) -> None:
    with anyio.fail_after(LIMIT_S):
        while True:
            try:
                await log.bounds("default", ["orders/0"])
            except BrokerLogError:
                await anyio.sleep(0.05)  # another process is starting
            else:
                return
