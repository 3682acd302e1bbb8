"""Asks the broker for the bounds of the shards whose lag is kept, in batches, and rests in between. Decides nothing."""

import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby

import anyio
import structlog

from adapter.client.broker_log import MAX_SHARDS, BrokerLog
from adapter.errors import BrokerLogError
from adapter.model.bounds import Bounds, ShardKey

log = structlog.get_logger(__name__)

REST = 9  # so many times as long as a batch took, the broker is left alone: it is asked for a tenth of the time, at most


class Asking:
    """The bounds that a broker told. `error`: why some are missing; empty while none are."""

    def __init__(self, broker_log: BrokerLog, sleep: Callable[[float], Awaitable[None]] = anyio.sleep) -> None:
        self._log = broker_log
        self._sleep = sleep
        self._wanted: Sequence[ShardKey] = ()
        self._told: list[tuple[ShardKey, Bounds]] = []
        self._waiting = anyio.Event()
        self.error = ""

    @property
    def idle(self) -> bool:
        """Whether `ask` may be called: there is a broker to ask, and what was asked before is answered."""
        return self._log.configured and not self._wanted

    def ask(self, shards: Sequence[ShardKey]) -> None:
        """Ask for these soon."""
        self._wanted = shards
        self._waiting.set()

    def take(self) -> list[tuple[ShardKey, Bounds]]:
        """What was told since the last call."""
        told, self._told = self._told, []
        return told

    async def run(self) -> None:
        """Ask for what `ask` names, until cancelled."""
        while True:
            await self._waiting.wait()
            self._waiting = anyio.Event()
            await self._ask_all(sorted(self._wanted))
            self._wanted = ()

    async def _ask_all(self, wanted: Sequence[ShardKey]) -> None:
        error = ""
        for namespace, shards in groupby(wanted, lambda shard: shard.namespace):
            names = [shard.shard for shard in shards]
            for at in range(0, len(names), MAX_SHARDS):
                began = time.perf_counter()
                try:
                    found = await self._log.bounds(namespace, names[at : at + MAX_SHARDS])
                except BrokerLogError as failure:
                    error = str(failure)
                else:
                    self._told += [(ShardKey(namespace, shard), bounds) for shard, bounds in found.items()]
                await self._sleep((time.perf_counter() - began) * REST)
        if error and error != self.error:
            log.warning(
                "lag.bounds_failed", reason=error, help="the lag of these shards is that of the bounds that were told last"
            )
        self.error = error
