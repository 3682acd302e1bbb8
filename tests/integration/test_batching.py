"""Hundreds of committers through one client, and an adapter that is killed and started again meanwhile."""

import asyncio
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import anyio
import anyio.to_thread
import grpc
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.model.records import DEFAULT_NAMESPACE, FIRST_EPOCH, CommitMode, OffsetKey, ReadMode, SaveEntry, SaveOutcome
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.history import History
from adapter.testing.processes import adapter_process, ended, meta_process
from adapter.testing.waiting import eventually, positions
from tests.integration.helpers import PATIENCE_S, serving

COMMITTERS = 200
GROUPS = 5
SHARDS = 4  # of each committer; one more is shared by all of a group
KILLS = 2  # with each gRPC server
PROGRESS = 2_000  # acknowledged commits between two kills


class Committers:
    """What they sent and were told is in the history; any error fails the test."""

    def __init__(self, client: OffsetClient, history: History) -> None:
        self.acknowledged = 0
        self._client = client
        self._history = history

    async def commit_for_ever(self, number: int) -> None:
        """One message after the other, each of another shard than the last."""
        group = f"g{number % GROUPS}"
        for offset in count(1):
            shard = f"{number}-{offset % SHARDS}" if offset % (SHARDS + 1) else "shared"
            key = OffsetKey(DEFAULT_NAMESPACE, group, shard)
            write = self._history.begin(key, (FIRST_EPOCH, offset))
            rows = await self._client.commit(group, {shard: offset})
            if rows:
                write.superseded((rows[0].epoch or FIRST_EPOCH, rows[0].offset))
            else:
                write.acknowledged()
            self.acknowledged += 1

    async def progress(self, more: int = PROGRESS) -> None:
        """Return when so many more are acknowledged."""
        goal = self.acknowledged + more
        await eventually(lambda: self.acknowledged >= goal, 2 * PATIENCE_S)


class HangingMeta(FakeMeta):
    """While it is not open, saves of one group hang."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        if any(entry.key.group == "through" for entry in entries):
            await self.open.wait()
        return await super().save(entries)


async def _read_all(client: OffsetClient, history: History) -> None:
    for at in range(GROUPS):
        expected = [key for key in history.least() if key.group == f"g{at}"]
        reading = history.reading(keys=expected)
        found = positions((await client.read(f"g{at}", mode=ReadMode.MEMORY)).values())
        reading.found({key: found[key] for key in expected if key in found})
    assert history.check() == []


async def test_commits_outlive_a_killed_adapter(directory: Path) -> None:
    """No caller sees anything of it, and all that was acknowledged is there (1, 2)."""
    meta, history = meta_process(directory), History()
    adapter = adapter_process(directory, meta.address)
    with ended(adapter, meta):
        await anyio.to_thread.run_sync(meta.start)
        await anyio.to_thread.run_sync(adapter.start)
        async with (
            OffsetClient.connect(adapter.address, 2 * PATIENCE_S) as client,
            anyio.create_task_group() as tasks,
        ):
            committers = Committers(client, history)
            for number in range(COMMITTERS):
                tasks.start_soon(committers.commit_for_ever, number)
            for _ in range(KILLS):
                await committers.progress()
                await anyio.to_thread.run_sync(adapter.kill)
                await anyio.to_thread.run_sync(adapter.start)
                await committers.progress(1)  # its channel is connected again: reads are not sent again
                await _read_all(client, history)
            await committers.progress()
            await _read_all(client, history)
            tasks.cancel_scope.cancel()
    assert history.acknowledged > KILLS * PROGRESS


async def test_concurrent_commits_share_requests(directory: Path) -> None:
    """Seen from the adapter's side: far fewer requests than commits; each caller has its own answer."""
    async with serving(directory) as (_, client):
        await client.commit("g", {"low": 1_000})
        before = (await client.status()).commits
        found = await asyncio.gather(*(client.commit("g", {f"s{at}": at, "low": at}) for at in range(500)))
        assert {tuple((row.shard, row.epoch, row.offset) for row in rows) for rows in found} == {(("low", 1, 1_000),)}
        assert {shard: row.offset for shard, row in (await client.read("g")).items()} == {
            **{f"s{at}": at for at in range(500)},
            "low": 1_000,
        }
        assert (await client.status()).commits - before < 1_000


async def test_a_bad_commit_among_many_is_refused_alone(directory: Path) -> None:
    """Its caller gets the adapter's kind of error; everybody else's is stored (10)."""
    async with serving(directory) as (_, client):
        bad = [client.commit("g", {"": 1}), client.commit("", {"s": 1}), client.commit("h", {}), client.commit("h", {"s": -1})]
        good = [client.commit("g", {f"s{at}": at}) for at in range(50)]
        found = await asyncio.gather(*good, *bad, return_exceptions=True)
        assert found[:50] == [[]] * 50
        errors = [error for error in found if isinstance(error, grpc.aio.AioRpcError)]
        assert [error.code() for error in errors] == [grpc.StatusCode.INVALID_ARGUMENT] * 4
        assert [error.details() for error in errors[:2]] == ["shard is empty", "group is empty"]
        assert len(await client.read("g")) == 50


async def test_a_meta_service_that_hangs_holds_up_nobody_but_its_group(directory: Path) -> None:
    """The adapter says which groups it writes through: after the first time they go by themselves."""
    meta, policy = HangingMeta(), [{"groups": "through", "mode": "write_through"}]
    async with serving(directory, meta, policy=policy) as (_, client):
        await asyncio.gather(client.commit("through", {"s": 1}), client.commit("g", {"s": 1}))
        meta.open.clear()
        hanging = [asyncio.create_task(client.commit("through", {"s": at})) for at in range(2, 9)]
        for at in range(2, 100):
            await asyncio.gather(client.commit("g", {"s": at}), client.commit("h", {"s": at}))
        assert not any(task.done() for task in hanging)
        meta.open.set()
        assert [row.offset for rows in await asyncio.gather(*hanging) for row in rows] == [8] * 6


async def test_pipelined_rewinds_apply_in_their_order(directory: Path) -> None:
    """Also between commits that may only increase."""
    async with serving(directory) as (_, client):
        modes = [CommitMode.INCREASE_ONLY, CommitMode.OVERWRITE]
        await asyncio.gather(*(client.commit("g", {"s": 100 - at}, mode=modes[at % 2]) for at in range(40)))
        row = (await client.read("g"))["s"]
        assert (row.epoch, row.offset) == (FIRST_EPOCH + 20, 61)


async def test_a_client_that_ends_answers_those_who_wait(directory: Path) -> None:
    """Leaving `connect` waits for what was committed; later commits are refused."""
    async with serving(directory) as (sidecar, other):
        async with OffsetClient.connect(sidecar.addresses[-1], PATIENCE_S) as client:
            tasks = [asyncio.create_task(client.commit("g", {f"s{at}": at})) for at in range(50)]
            await asyncio.sleep(0)
        assert await asyncio.gather(*tasks) == [[]] * 50
        with pytest.raises(grpc.aio.AioRpcError, match="the client is closed"):
            await client.commit("g", {"s": 1})
        assert len(await other.read("g")) == 50
