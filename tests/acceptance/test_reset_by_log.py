"""`offsets reset` to the ends and by time, as a user types it, beside a broker that serves its log."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from adapter.model.bounds import ShardKey
from adapter.runtime.clocks import wall_ms
from adapter.testing.broker_log import MemoryLog, serving
from adapter.testing.processes import adapter_process, ended, meta_process
from tests.acceptance.conftest import Ran, run

OK, FAILED, ERROR = 0, 1, 2
MINUTE_MS = 60_000
SHARD = ShardKey("default", "s")


class Command:
    """`offset-adapter` on the Unix socket of one adapter, with this process still serving the broker's log meanwhile."""

    def __init__(self, socket: Path) -> None:
        self._address = f"unix:{socket}"

    async def __call__(self, *arguments: str) -> Ran:
        """Run a command in a thread."""
        return await anyio.to_thread.run_sync(partial(run, *arguments, OFFSET_ADAPTER_ADDRESS=self._address))


@asynccontextmanager
async def adapter_beside(directory: Path, broker: str) -> AsyncIterator[Command]:
    """An adapter process that knows a broker at this address (empty: none), with a Meta Service."""
    meta = meta_process(directory)
    adapter = adapter_process(directory, meta.address, extra=f"[broker_log]\naddress = '{broker}'")
    with ended(adapter, meta):
        await anyio.to_thread.run_sync(meta.start)
        await anyio.to_thread.run_sync(adapter.start)
        yield Command(directory / "a.sock")


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose name is short enough for a Unix socket in it."""
    return tmp_path_factory.mktemp("d")


async def test_a_reset_by_the_log_of_the_broker(directory: Path) -> None:
    """By date, by duration, to both ends; dry runs show where each would go, and the last one goes there."""
    log, now_ms = MemoryLog(), wall_ms()
    log.append(SHARD, *(now_ms - minutes * MINUTE_MS for minutes in (120, 90, 60, 30, 0)))
    log.trim(SHARD, 1)
    at = datetime.fromtimestamp((now_ms - 61 * MINUTE_MS) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000")
    targets = {("--to-earliest",): 1, ("--to-latest",): 5, ("--by-duration", "PT45M"): 3, ("--to-datetime", at): 2}
    async with serving(log) as broker, adapter_beside(directory, broker) as command:
        assert (await command("commit", "g", "s", "4")).code == OK
        for to, offset in targets.items():
            planned = await command("offsets", "reset", "g", *to, "--json")
            assert planned.code == OK, planned.err
            assert planned.json["executed"] is False
            assert [row["after"]["offset"] for row in planned.json["rows"]] == [offset]
        done = await command("offsets", "reset", "g", "--to-datetime", at, "--execute")
        assert done.code == OK, done.err
        assert "done: 1 offset moved, read back and equal" in done.out
        assert (await command("get", "g", "s", "--json")).json[0]["offset"] == 2


async def test_without_a_broker_log_it_says_so_and_what_can_be_done(directory: Path) -> None:
    """Nothing moves; the setting is named."""
    async with adapter_beside(directory, "") as command:
        assert (await command("commit", "g", "s", "4")).code == OK
        for to in (["--to-earliest"], ["--to-latest"], ["--by-duration", "PT1H"]):
            refused = await command("offsets", "reset", "g", *to, "--execute")
            assert refused.code == ERROR
            assert "no broker_log.address is configured" in " ".join(refused.err.split())
        assert (await command("get", "g", "s", "--json")).json[0]["offset"] == 4
