"""The load under which the storage faults strike: callers that note when each commit was sent and answered, and how.

Unlike the consumers of `load`, they take any answer: what a failing disk does to a commit is what is tested. With them: what
both stores hold, and what the history says of it.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import NamedTuple

import anyio
import grpc
import grpc.aio

from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.records import DEFAULT_NAMESPACE, FIRST_EPOCH, OffsetKey
from adapter.testing.history import ADAPTER, META, History, Violation
from adapter.testing.processes import ServiceProcess
from adapter.testing.waiting import PATIENCE_S, eventually, positions

WAIT_S = PATIENCE_S

_offsets = count(1)  # of all callers, so that each commit is above all commits before it


class Answer(NamedTuple):
    """What became of a commit: when it was sent and answered (Unix seconds), with which status (None: acknowledged)."""

    key: OffsetKey
    offset: int
    sent_at: float
    answered_at: float
    code: grpc.StatusCode | None = None
    text: str = ""


class Callers:
    """Callers that commit ever higher offsets, each to shards of its own; what became of each is in a history, and in lists."""

    def __init__(
        self,
        address: str,
        history: History,
        *,
        group: str = "load",
        callers: int = 4,
        shards: int = 10,
        timeout_s: float = 5.0,
        places: Sequence[str] = (ADAPTER,),
    ) -> None:
        self._address = address
        self._history = history
        self._places = places
        self._group = group
        self._callers = callers
        self._shards = shards
        self._timeout_s = timeout_s
        self.sent: list[tuple[OffsetKey, int]] = []
        self.acknowledged: list[Answer] = []
        self.refused: list[Answer] = []

    async def acknowledged_more(self, more: int = 50) -> None:
        """Wait until so many more commits were acknowledged."""
        enough = len(self.acknowledged) + more
        await eventually(lambda: len(self.acknowledged) >= enough, WAIT_S)

    async def refused_more(self, more: int = 50) -> None:
        """Wait until so many more commits were refused."""
        enough = len(self.refused) + more
        await eventually(lambda: len(self.refused) >= enough, WAIT_S)

    async def run(self, turns: int | None = None) -> None:
        """Commit to every shard `turns` times; without a number until cancelled."""
        async with OffsetClient.connect(self._address, self._timeout_s, resend=False) as client:
            await asyncio.gather(*(self._call(client, f"{self._group}-{caller}", turns) for caller in range(self._callers)))

    async def _call(self, client: OffsetClient, group: str, turns: int | None) -> None:
        for _ in count() if turns is None else range(turns):
            for shard in range(self._shards):
                await self._commit(client, group, f"s{shard}", next(_offsets))

    async def _commit(self, client: OffsetClient, group: str, shard: str, offset: int) -> None:
        key, sent_at = OffsetKey(DEFAULT_NAMESPACE, group, shard), time.time()
        write = self._history.begin(key, (FIRST_EPOCH, offset), places=self._places)
        self.sent.append((key, offset))
        try:
            await client.commit(group, {shard: offset})
        except grpc.aio.AioRpcError as error:
            self.refused.append(Answer(key, offset, sent_at, time.time(), error.code(), error.details() or ""))
            await asyncio.sleep(0.01)  # a caller that is refused does not spin
        else:
            write.acknowledged()
            self.acknowledged.append(Answer(key, offset, sent_at, time.time()))


@asynccontextmanager
async def under(load: Callers) -> AsyncIterator[Callers]:
    """Meanwhile they call."""
    task = asyncio.create_task(load.run(), name="callers")
    try:
        yield load
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def local_positions(service: ServiceProcess) -> dict[OffsetKey, tuple[int, int]]:
    """Everything that an adapter holds locally."""
    async with OffsetClient.connect(service.address, WAIT_S) as client:
        return positions([row async for row in client.list()])


async def remote_positions(meta: ServiceProcess, keys: Iterable[OffsetKey]) -> dict[OffsetKey, tuple[int, int]]:
    """What a Meta Service holds of these keys."""
    async with GrpcMetaClient.open(MetaSection(endpoints=(meta.address,), timeout_ms=int(WAIT_S * 1000))) as client:
        found = await client.get(sorted(keys))
    return {key: record.position for key, record in found.items()}


async def check_local(service: ServiceProcess, history: History) -> None:
    """What an adapter holds locally contradicts nothing: it has all that it acknowledged, and nothing went back (1, 2).

    Waits for the end of its recovery: it takes commits before, and answers no reads.
    """
    await health_turns(service, serving=True)
    reading = history.reading(ADAPTER)
    reading.found(await local_positions(service))
    assert history.check() == []


async def check_remote(meta: ServiceProcess, history: History) -> None:
    """What a Meta Service holds contradicts nothing: it has all that was carried there, and nothing went back (2, 3)."""
    reading = history.reading(META)
    reading.found(await remote_positions(meta, history.least(ADAPTER).keys() | history.least(META).keys()))
    assert history.check() == []


def history_of(sent: Iterable[tuple[OffsetKey, int]], acknowledged: Iterable[Answer]) -> History:
    """A history of commits that were sent, of which these were acknowledged before it began."""
    history = History()
    answered = {(answer.key, answer.offset) for answer in acknowledged}
    for key, offset in sent:
        write = history.begin(key, (FIRST_EPOCH, offset))
        if (key, offset) in answered:
            write.acknowledged()
    return history


def contradictions(history: History, found: Mapping[OffsetKey, tuple[int, int]]) -> list[Violation]:
    """What is wrong with what an adapter holds now."""
    history.reading(ADAPTER).found(found)
    return history.check()


async def health_turns(service: ServiceProcess, *, serving: bool, timeout_s: float = WAIT_S) -> float:
    """Wait until the health is as given; returns when that was seen (Unix seconds). The event loop goes on meanwhile."""
    with anyio.fail_after(timeout_s):
        while await asyncio.to_thread(service.healthy) is not serving:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.005)
    return time.time()
