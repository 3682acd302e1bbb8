"""A sidecar before a Meta Service that knows only offsets (a RobustMQ): commits, recovery, hand-over. What is weaker: docs/."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.model.records import CommitMode, OffsetKey, OffsetRecord, ReadMode
from adapter.rpc import offsets_pb
from adapter.sidecar.process import Sidecar
from tests.dialect import Failure, RobustMeta, failing, robust_meta
from tests.integration.helpers import key, meta_section, serving

A, B = key("a"), key("b")
OVERWRITE = CommitMode.OVERWRITE
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
QUIET = {"flush": {"interval_ms": 60_000, "refused_retry_ms": 100}}  # nothing is flushed unless asked for


@pytest.fixture
def robust() -> Any:
    """A running server without epochs."""
    with robust_meta() as service:
        yield service


@asynccontextmanager
async def adapter(directory: Path, robust: RobustMeta, **sections: Any) -> AsyncIterator[tuple[Sidecar, OffsetClient]]:
    """A sidecar over `directory` with a client; drained at the end, as an orderly stop does."""
    directory.mkdir(exist_ok=True)  # noqa: ASYNC240 - nothing else runs yet
    section = meta_section(robust.address, timeout_ms=2000)
    async with GrpcMetaClient.open(section) as way, serving(directory, way, **{**QUIET, **sections}) as (sidecar, client):
        yield sidecar, client


async def _left_dirty(
    directory: Path, robust: RobustMeta, offsets: dict[str, int], *, rewound: dict[str, int] | None = None
) -> None:
    """Commit, flush; then rewind, and end like a stop that could not reach the Meta Service any more."""
    async with adapter(directory, robust, stop={"drain_timeout_ms": 1}) as (_, client):
        await client.commit("g", offsets)
        if rewound:
            await client.flush()
            await client.commit("g", rewound, mode=OVERWRITE)
        robust.stop()
    robust.start()


def _recovery(status: offsets_pb.StatusReply) -> tuple[int, int, int, int]:
    """Pushed, adopted, equal, failed."""
    recovery = status.recovery
    return recovery.pushed, recovery.adopted, recovery.equal, recovery.failed


def _stands(sidecar: Sidecar, where: OffsetKey) -> tuple[int, int] | None:
    record = sidecar.core().ledger.store.get(where)
    return record.position if record else None


async def test_commits_are_flushed_and_read_by_the_next_owner(tmp_path: Path, robust: RobustMeta) -> None:
    """The hand-over: persist and remove here, read the store there. The namespace goes as the tenant, the shard as the topic."""
    async with adapter(tmp_path / "1", robust) as (_, client):
        await client.commit("g", {"a": 5, "b": 6}, namespace="n")
        await client.persist("g", ["a"], namespace="n")
        assert await client.remove("g", ["a"], namespace="n") == 1
        assert robust.offsets[key("a", "g", "n")] == 5
        async with adapter(tmp_path / "2", robust) as (_, there):
            found = await there.read("g", ["a"], namespace="n", mode=ReadMode.STORE)
            assert (found["a"].offset, found["a"].epoch) == (5, 1)
            await there.commit("g", {"a": 9}, namespace="n")
        assert (await client.read("g", ["a"], namespace="n"))["a"].offset == 9
    assert robust.offsets == {key("a", "g", "n"): 9, key("b", "g", "n"): 6}
    assert robust.topics == {key("a", "g", "n"): "a", key("b", "g", "n"): "b"}


async def test_a_restart_takes_the_larger_offset_on_both_sides(tmp_path: Path, robust: RobustMeta) -> None:
    """Larger here: pushed by compare-and-set; larger there: adopted; absent there: pushed; equal: nothing is sent (2)."""
    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"more": 7, "less": 5, "same": 3, "gone": 4})
    robust.offsets |= {key("more"): 6, key("less"): 9}
    del robust.offsets[key("gone")]
    robust.saves.clear()
    async with adapter(tmp_path, robust) as (_, client):
        assert _recovery(await client.status()) == (2, 1, 1, 0)
        assert (await client.status()).dirty_keys == 0
        found = await client.read("g", mode=ReadMode.MEMORY)
        assert {shard: row.offset for shard, row in found.items()} == {"more": 7, "less": 9, "same": 3, "gone": 4}
    assert robust.conditional() == [{"gone": (0, 4), "more": (6, 7)}]
    assert len(robust.saves) == 1
    assert robust.offsets == {key("more"): 7, key("less"): 9, key("same"): 3, key("gone"): 4}


@pytest.mark.parametrize("bad", ["x" * 256, "a\nb"])
async def test_offsets_under_names_that_no_adapter_takes_are_left_alone(tmp_path: Path, robust: RobustMeta, bad: str) -> None:
    """RobustMQ takes any name. Commits and reads of the group go on, and the others' offset stays as it is (10)."""
    robust.offsets |= {key(bad): 7, key("b"): 6}
    robust.topics[key("b")] = "t" * 256
    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"a": 5})
        found = await client.read("g", mode=ReadMode.STORE)
        assert {shard: row.offset for shard, row in found.items()} == {"a": 5, "b": 6}
        await client.flush()
        assert (await client.status()).state == offsets_pb.StatusReply.SERVING
    assert robust.offsets == {key(bad): 7, key("b"): 6, key("a"): 5}


async def test_what_another_broker_saves_during_a_recovery_is_adopted(tmp_path: Path, robust: RobustMeta) -> None:
    """Between the read and the push: compare-and-set refuses it, the second look finds it (2)."""
    await _left_dirty(tmp_path, robust, {"a": 150, "b": 7})

    def overtake(name: str, _: Any) -> None:
        if name == "SaveOffsetData" and len(robust.saves) == 0:
            robust.offsets[A] = 200

    robust.before = overtake
    async with adapter(tmp_path, robust) as (sidecar, client):
        assert _recovery(await client.status()) == (1, 1, 0, 0)
        assert _stands(sidecar, A) == (1, 200)
    assert robust.offsets == {A: 200, B: 7}


async def test_a_key_that_stays_contended_fails_alone_and_is_never_written_plainly(tmp_path: Path, robust: RobustMeta) -> None:
    """It stays dirty, and the flusher compares it as well, until a larger one stands there or it gets through (2, 3)."""
    await _left_dirty(tmp_path, robust, {"a": 150, "b": 7})

    def move(name: str, _: Any) -> None:
        if name == "SaveOffsetData":
            robust.offsets[A] = robust.offsets.get(A, 0) + 1

    robust.before = move
    async with adapter(tmp_path, robust) as (sidecar, client):
        assert _recovery(await client.status()) == (1, 0, 0, 1)
        assert (await client.status()).refused_keys == 1
        robust.offsets[A] = 200
        await client.flush()
        assert _stands(sidecar, A) == (1, 200)
    assert robust.offsets == {A: 200, B: 7}


async def test_a_push_that_failed_is_compared_by_the_flusher_too(tmp_path: Path, robust: RobustMeta) -> None:
    """The recovery ends without it; it is still unknown what stands there by then (2)."""
    await _left_dirty(tmp_path, robust, {"a": 150})
    robust.before = failing(UNAVAILABLE)
    async with adapter(tmp_path, robust) as (sidecar, client):
        assert _recovery(await client.status()) == (0, 0, 0, 1)
        robust.offsets[A] = 200
        await client.flush()
        assert _stands(sidecar, A) == (1, 200)
        await client.commit("g", {"a": 201})
        await client.flush()
    assert robust.offsets == {A: 201}
    assert robust.conditional() == [{"a": (200, 201)}]


async def test_a_normal_flush_is_one_save_that_expects_what_was_acknowledged_last(tmp_path: Path, robust: RobustMeta) -> None:
    """Without a read before it, but for the first one of a key (5)."""
    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"a": 5})
        await client.flush()
        robust.reads.clear()
        robust.saves.clear()
        await client.commit("g", {"a": 6})
        await client.flush()
        assert (robust.offsets, robust.reads, robust.conditional()) == ({A: 6}, [], [{"a": (5, 6)}])


async def test_what_another_writer_stored_is_seen_and_merged(
    tmp_path: Path, robust: RobustMeta, capsys: pytest.CaptureFixture[str]
) -> None:
    """A larger one is adopted, a smaller one is overwritten, one that is gone is saved again; the log says what was there (2)."""
    c, d = key("c"), key("d")
    async with adapter(tmp_path, robust) as (sidecar, client):
        await client.commit("g", {"a": 100, "b": 100, "c": 100, "d": 100})
        await client.flush()
        robust.offsets |= {A: 300, B: 90}
        del robust.offsets[c]
        await client.commit("g", {"a": 160, "b": 160, "c": 160, "d": 160})
        await client.flush()
        assert robust.offsets == {A: 300, B: 160, c: 160, d: 160}
        assert _stands(sidecar, A) == (1, 300)
        assert (await client.status()).dirty_keys == 0
    [told] = [line for line in capsys.readouterr().out.splitlines() if "save.other_writer" in line]
    assert "entries=3" in told
    assert "default/g/a: 100 was acknowledged last, 300 is there now; 160 was to be saved" in told


async def test_a_rewind_after_a_flush_without_an_answer_stands(tmp_path: Path, robust: RobustMeta) -> None:
    """What stands may be this adapter's own, or not: it is read, and not taken for another writer's (3)."""

    def applied_then_lost(name: str, request: Any) -> None:
        if name == "SaveOffsetData":
            robust._save(request)
            raise Failure(UNAVAILABLE)

    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"a": 100})
        await client.flush()
        robust.before = applied_then_lost
        await client.commit("g", {"a": 160})
        with pytest.raises(grpc.aio.AioRpcError):
            await client.flush()
        assert robust.offsets == {A: 160}
        robust.before = failing()
        await client.commit("g", {"a": 30}, mode=OVERWRITE)
        await until_flushed(client)
        assert robust.offsets == {A: 30}


async def test_a_first_commit_while_the_server_was_away_does_not_overwrite_what_stands(
    tmp_path: Path, robust: RobustMeta
) -> None:
    """Its group could not be loaded, its epoch is unknown: it is compared when the server is back (2)."""
    async with adapter(tmp_path, robust) as (sidecar, client):
        robust.stop()
        await client.commit("g", {"a": 5, "b": 5})
        await client.commit("h", {"a": 5})
        robust.offsets = {A: 100, B: 3}
        robust.start()
        await until_flushed(client)
        assert robust.offsets == {A: 100, B: 5, key("a", "h"): 5}
        assert [_stands(sidecar, where) for where in (A, B, key("a", "h"))] == [(1, 100), (1, 5), (1, 5)]
        # Its epoch is known from now on: a rewind is taken.
        await client.commit("g", {"a": 50}, mode=OVERWRITE)
        await client.flush()
        assert robust.offsets[A] == 50


async def until_flushed(client: OffsetClient) -> None:
    """Flush until it gets through."""
    flushed = False
    while not flushed:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await client.flush()
            flushed = True
    assert not (await client.status()).dirty_keys


async def test_a_rewind_is_flushed_and_survives_a_restart(tmp_path: Path, robust: RobustMeta) -> None:
    """Local (2, 30) against remote 30: equal. The epoch is kept here, the server knows only the offset."""
    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"a": 160})
        await client.flush()
        await client.commit("g", {"a": 30}, mode=OVERWRITE)
        await client.flush()
        assert robust.offsets == {A: 30}
    async with adapter(tmp_path, robust) as (sidecar, client):
        assert _recovery(await client.status()) == (0, 0, 1, 0)
        assert _stands(sidecar, A) == (2, 30)


async def test_a_larger_offset_of_another_broker_wins_over_a_rewind(tmp_path: Path, robust: RobustMeta) -> None:
    """Local (2, 30), flushed, against remote 160: somebody went on there. It is taken into the local epoch (2)."""
    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"a": 160})
        await client.commit("g", {"a": 30}, mode=OVERWRITE)
    robust.offsets[A] = 161
    async with adapter(tmp_path, robust) as (sidecar, client):
        assert _recovery(await client.status()) == (0, 1, 0, 0)
        assert _stands(sidecar, A) == (2, 161)
    assert robust.offsets == {A: 161}


async def test_a_rewind_that_was_not_flushed_before_a_restart_is_lost(tmp_path: Path, robust: RobustMeta) -> None:
    """Local (2, 30), dirty, against remote 160: nobody can say whether 160 came before it; it holds with epochs (1)."""
    await _left_dirty(tmp_path, robust, {"a": 160}, rewound={"a": 30})
    async with adapter(tmp_path, robust) as (sidecar, client):
        assert _recovery(await client.status()) == (0, 1, 0, 0)
        assert _stands(sidecar, A) == (2, 160)
    assert robust.offsets == {A: 160}


async def test_a_load_does_not_undo_a_rewind_that_is_not_flushed_yet(tmp_path: Path, robust: RobustMeta) -> None:
    """The server still shows what stood before it: to a read of the store, and to the first commit of another shard."""
    async with adapter(tmp_path, robust) as (sidecar, client):
        await client.commit("g", {"a": 160})
        await client.flush()
        await client.commit("g", {"a": 30}, mode=OVERWRITE)
        assert (await client.read("g", ["a"], mode=ReadMode.STORE))["a"].offset == 30
        assert _stands(sidecar, A) == (2, 30)
        await client.flush()
    assert robust.offsets == {A: 30}


async def test_a_read_of_the_store_adopts_a_larger_offset(tmp_path: Path, robust: RobustMeta) -> None:
    """Another broker went on: also where this one had rewound before, and flushed it."""
    async with adapter(tmp_path, robust) as (sidecar, client):
        await client.commit("g", {"a": 160, "b": 5})
        await client.commit("g", {"a": 30}, mode=OVERWRITE)
        await client.flush()
        robust.offsets = {A: 170, B: 9}
        found = await client.read("g", mode=ReadMode.STORE)
        assert {shard: row.offset for shard, row in found.items()} == {"a": 170, "b": 9}
        assert (_stands(sidecar, A), _stands(sidecar, B)) == ((2, 170), (1, 9))


async def test_a_tombstone_of_a_former_server_is_not_sent(tmp_path: Path, robust: RobustMeta) -> None:
    """Absent there: the same. Committed there: alive again, here too; with epochs the delete would hold (7)."""
    async with adapter(tmp_path, robust) as (sidecar, _):
        sidecar.core().ledger.store.write(dict.fromkeys((A, B), OffsetRecord(2**32, 0, live=False, committed_at_ms=5)))
    robust.offsets = {B: 40}
    async with adapter(tmp_path, robust) as (sidecar, client):
        assert _recovery(await client.status()) == (0, 1, 1, 0)
        assert (await client.status()).dirty_keys == 0
        assert list(await client.read("g", mode=ReadMode.MEMORY)) == ["b"]
        assert _stands(sidecar, B) == (2**32 + 1, 40)
        await client.commit("g", {"a": 3})
        await client.flush()
    assert robust.offsets == {A: 3, B: 40}


async def test_the_metrics_tell_which_kind_of_server_it_is(tmp_path: Path, robust: RobustMeta) -> None:
    """1 with epochs, 0 without."""
    async with adapter(tmp_path, robust) as (sidecar, _):
        assert sidecar.gauges.gauges()["meta_knows_epochs"][1] == 0
    async with serving(tmp_path) as (sidecar, _):
        assert sidecar.gauges.gauges()["meta_knows_epochs"][1] == 1
