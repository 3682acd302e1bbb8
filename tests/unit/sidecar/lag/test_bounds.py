"""The broker is asked for bounds in batches, is left alone in between, and its errors are kept."""

import asyncio
from collections.abc import Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from adapter.client.broker_log import MAX_SHARDS, NoBrokerLog
from adapter.errors import BrokerLogError
from adapter.model.bounds import Bounds, ShardKey
from adapter.sidecar.lag.bounds import Asking
from tests.unit.helpers import PATIENCE_S


class Log(NoBrokerLog):
    """A broker that knows the shards `known`, and may fail."""

    configured = True

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.failure: BrokerLogError | None = None

    async def bounds(self, namespace: str, shards: Iterable[str]) -> dict[str, Bounds]:
        """As BrokerLog."""
        names = list(shards)
        self.calls.append((namespace, len(names)))
        if self.failure:
            raise self.failure
        return {name: Bounds(0, 7, 1) for name in names if name != "unknown"}


@asynccontextmanager
async def asking(log: Log) -> Any:
    """An Asking that runs."""
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)
        await asyncio.sleep(0)

    found = Asking(log, sleep)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(found.run)
        yield found, paused
        tasks.cancel_scope.cancel()


async def _asked(found: Asking, shards: list[ShardKey]) -> None:
    found.ask(shards)
    with anyio.fail_after(PATIENCE_S):
        while not found.idle:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0)


async def test_shards_are_asked_for_in_batches_by_namespace() -> None:
    """With a pause behind each batch; a shard that the broker does not have is left out."""
    log = Log()
    async with asking(log) as (found, paused):
        await _asked(
            found, [ShardKey("n", f"s{at}") for at in range(MAX_SHARDS + 1)] + [ShardKey("m", "unknown"), ShardKey("m", "s")]
        )
        assert log.calls == [("m", 2), ("n", MAX_SHARDS), ("n", 1)]
        told = dict(found.take())
        assert (len(told), told[ShardKey("m", "s")]) == (MAX_SHARDS + 2, Bounds(0, 7, 1))
        assert (len(paused), found.take(), found.error) == (3, [], "")


async def test_an_error_is_kept_until_the_broker_answers_again() -> None:
    """What it told before is still there."""
    log = Log()
    async with asking(log) as (found, _):
        log.failure = BrokerLogError("it is away")
        await _asked(found, [ShardKey("n", "s")])
        assert (found.error, found.take()) == ("it is away", [])
        log.failure = None
        await _asked(found, [ShardKey("n", "s")])
        assert (found.error, len(found.take())) == ("", 1)


async def test_without_a_broker_nobody_is_asked() -> None:
    """Commits may still report bounds."""
    assert not Asking(NoBrokerLog()).idle
