"""Policies, flush times and expiry that are replaced while commits are under way: what was promised to whom."""

import asyncio
from pathlib import Path
from typing import Any

from adapter.errors import MetaUnavailableError
from adapter.rpc import offsets_pb
from adapter.sidecar.api.commit_stream import CommitStream
from adapter.sidecar.api.commits import Commits, PreparedCommit
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.engine.core import Core
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config
from adapter.testing.waiting import eventually
from tests.unit.calls import arrived
from tests.unit.helpers import PATIENCE_S, HeldMeta, core_over, key, record

PAYMENTS = {"groups": "payments", "mode": "write_through"}
BACK: dict[str, Any] = {}
SOME_THROUGH: dict[str, Any] = {"policy": [PAYMENTS]}
ALL_THROUGH: dict[str, Any] = {"mode": "write_through"}
BOTH_THROUGH: dict[str, Any] = {"policy": [PAYMENTS, {"groups": "g", "mode": "write_through"}]}


def settings(directory: Path, **sections: Any) -> AdapterConfig:
    """The settings of a test, with these instead of the defaults."""
    return adapter_config(directory, **sections)


def request_of(offset: int, *groups: str) -> offsets_pb.CommitOffsetsRequest:
    """A commit of the shard `s` of these groups."""
    shards = [offsets_pb.ShardCommit(shard="s", offset=offset)]
    return offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=group, shards=shards) for group in groups])


def commits_to(core: Core) -> Commits:
    """The way of a request to its answer."""
    return Commits(lambda: core, AdapterMetrics())


async def test_a_commit_is_answered_by_the_policy_that_is_in_force(tmp_path: Path) -> None:
    """Also by the fast path, which is off while any group is written through, and on again afterwards."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        commits = commits_to(core)
        await commits.commit(request_of(1, "g"))
        await commits.commit(request_of(2, "g"))
        assert meta.saves == []
        core.take(settings(tmp_path, **ALL_THROUGH))
        for offset in (3, 4):
            assert list((await commits.commit(request_of(offset, "g"))).written_through) == [0]
            assert meta.records[key("s")] == record(offset, committed_at_ms=meta.records[key("s")].committed_at_ms)
        core.take(settings(tmp_path, **BACK))
        saves = len(meta.saves)
        meta.down = MetaUnavailableError("down by the test")
        assert list((await commits.commit(request_of(5, "g"))).written_through) == []
        assert (len(meta.saves), core.ledger.store.get(key("s")).offset) == (saves, 5)  # type: ignore[union-attr]
        await asyncio.sleep(0)
        assert core.ledger.takes_plain
        assert key("s") in core.ledger.dirty


async def test_the_fast_path_closes_before_the_next_commit(tmp_path: Path) -> None:
    """In the same turn of the event loop: what is acknowledged from then on is in the Meta Service."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        commits = commits_to(core)
        await commits.commit(request_of(1, "g"))
        core.take(settings(tmp_path, **ALL_THROUGH))
        await commits.commit(request_of(2, "g"))
        assert meta.records[key("s")].offset == 2


async def test_what_was_dirty_before_is_flushed_as_before(tmp_path: Path) -> None:
    """A commit that is written through over it does not make it clean by less; a repeated one does by itself."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        commits = commits_to(core)
        await commits.commit(request_of(7, "g"))
        await commits.commit(request_of(7, "other"))
        core.take(settings(tmp_path, **ALL_THROUGH))
        assert {key("s"), key("s", "other")} <= core.ledger.dirty.keys()
        # Lower than what stands here and not there: acknowledged is what stands, so the Meta Service must have it.
        reply = await commits.commit(request_of(3, "g"))
        assert [row.offset for row in reply.superseded] == [7]
        assert meta.records[key("s")].offset == 7
        await core.flusher.flush_all()
        assert meta.records[key("s", "other")].offset == 7
        assert len(core.ledger.dirty) == 0


async def test_a_commit_under_way_keeps_the_rule_that_it_began_with_and_says_so(tmp_path: Path) -> None:
    """One that waits for the Meta Service goes on waiting; its answer does not come from the new rule."""
    meta = HeldMeta()
    async with core_over(tmp_path, meta, **ALL_THROUGH) as core:
        commits = commits_to(core)
        waiting = asyncio.create_task(commits.commit(request_of(1, "g")))
        await asyncio.wait_for(meta.entered.wait(), PATIENCE_S)
        core.take(settings(tmp_path, **BACK))
        later = await commits.commit(request_of(2, "g"))
        assert (list(later.written_through), waiting.done()) == ([], False)
        meta.gate.set()
        assert list((await waiting).written_through) == [0]
        # What was adopted from the save does not hide the later commit (2, 3).
        assert core.ledger.store.get(key("s")).offset == 2  # type: ignore[union-attr]
        assert key("s") in core.ledger.dirty
        await core.flusher.flush_all()
        assert meta.records[key("s")].offset == 2


async def test_a_commit_prepared_before_does_not_claim_what_it_is_not(tmp_path: Path) -> None:
    """It was write-back when it was checked: it is answered at once, and does not say that it was written through."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, **SOME_THROUGH) as core:
        commits = commits_to(core)
        prepared = await commits.begin(request_of(1, "g"))
        meta.down = MetaUnavailableError("down by the test")
        core.take(settings(tmp_path, **ALL_THROUGH))
        assert isinstance(prepared, PreparedCommit)
        assert prepared.written_through == []
        await commits.finish(prepared)
        assert core.ledger.store.get(key("s")).offset == 1  # type: ignore[union-attr]
        assert key("s") in core.ledger.dirty


async def test_no_group_of_a_commit_falls_between_two_policies(tmp_path: Path) -> None:
    """While one group waits for the Meta Service, the policy of the other changes: both are stored when it is answered (1)."""
    meta = HeldMeta()
    async with core_over(tmp_path, meta, knows=["g", "payments"], **SOME_THROUGH) as core:
        commits = commits_to(core)
        waiting = asyncio.create_task(commits.commit(request_of(1, "payments", "g")))
        await asyncio.wait_for(meta.entered.wait(), PATIENCE_S)
        core.take(settings(tmp_path, **BOTH_THROUGH))
        meta.gate.set()
        assert list((await waiting).written_through) == [0]
        assert core.ledger.store.get(key("s", "payments")).offset == 1  # type: ignore[union-attr]
        assert core.ledger.store.get(key("s")) is not None, "acknowledged, and stored nowhere"
        assert key("s") in core.ledger.dirty


async def test_a_stream_keeps_its_order_when_the_policies_change(tmp_path: Path) -> None:
    """What waits for the Meta Service is not overtaken by what is answered at once from then on: it would look superseded."""
    meta = HeldMeta()
    async with core_over(tmp_path, meta, knows=["g"], **ALL_THROUGH) as core:
        first, second, third = (offsets_pb.StreamCommitsRequest(id=at, commit=request_of(at, "g")) for at in (1, 2, 3))
        requests = arrived(first, second, ended=False)
        stream = CommitStream(commits_to(core))
        reader = asyncio.create_task(stream.read(requests))
        await asyncio.wait_for(meta.entered.wait(), PATIENCE_S)
        core.take(settings(tmp_path, **BACK))
        await asyncio.sleep(0)
        requests.put(third.SerializeToString())
        requests.end()
        await asyncio.sleep(0.05)
        assert core.ledger.store.get(key("s")) is None, "a commit overtook those before it"
        meta.gate.set()
        replies = [reply async for reply in stream.replies(reader)]
        assert [(reply.id, list(reply.superseded)) for reply in replies] in (
            [(2, []), (3, [])],
            [(1, []), (2, []), (3, [])],
            [(3, [])],
        )
        assert core.ledger.store.get(key("s")).offset == 3  # type: ignore[union-attr]


async def test_new_flush_times_end_the_pauses_that_are_under_way(tmp_path: Path) -> None:
    """The interval, and the backoff after a failure: nobody waits for a minute that is not wanted any more."""
    meta = FakeMeta()
    slow = {"interval_ms": 60_000, "backoff_max_ms": 600_000}
    async with core_over(tmp_path, meta, flush=slow) as core:
        core.tasks.start_soon(core.flusher.run)
        await commits_to(core).commit(request_of(1, "g"))
        await asyncio.sleep(0.05)
        assert meta.saves == []
        meta.down = MetaUnavailableError("down by the test")
        core.take(settings(tmp_path, flush={**slow, "interval_ms": 1}))
        await eventually(lambda: bool(meta.saves))
        core.take(settings(tmp_path, flush=slow))
        meta.down = None
        core.take(settings(tmp_path, flush={"interval_ms": 1, "backoff_max_ms": 1}))
        await eventually(lambda: key("s") in meta.records)


async def test_expiry_goes_by_the_newest_settings(tmp_path: Path) -> None:
    """A retention of 0 hours keeps everything; the time between two sweeps is the new one as well."""
    meta, now_ms = FakeMeta(), 10**12
    never = {"retention_hours": 0, "interval_ms": 86_400_000}
    async with core_over(tmp_path, meta, expiry=never) as core:
        core.expiry.now_ms = lambda: now_ms
        commits = commits_to(core)
        request = request_of(1, "g")
        request.groups[0].shards[0].committed_at_ms = now_ms - 2 * 3_600_000
        await commits.commit(request)
        await core.flusher.flush_all()
        await core.expiry.sweep_once()
        assert core.ledger.store.get(key("s")) is not None
        core.tasks.start_soon(core.expiry.run)
        await asyncio.sleep(0.05)
        core.take(settings(tmp_path, expiry={"retention_hours": 1, "interval_ms": 10}))
        await eventually(lambda: core.ledger.store.get(key("s")) is None or not core.ledger.store.get(key("s")).live)  # type: ignore[union-attr]
