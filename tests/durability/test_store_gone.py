"""A store directory that goes away, comes back older, or is another one, with real processes: nothing is lost in silence (1)."""

import shutil
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.model.records import ReadMode
from adapter.testing.history import ADAPTER, History
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests.durability.callers import WAIT_S, Callers, check_local, health_turns, remote_positions, under
from tests.integration.helpers import key, status_of, stored_in, until_clean

ALARM = "store.acknowledged_writes_lost"


async def _reason_says(adapter: ServiceProcess, text: str) -> None:
    await eventually(lambda: text in status_of(adapter).reason, WAIT_S)


def _half_copy(source: Path, path: Path) -> None:
    """A copy whose manifest has not come yet, put in its place at once."""
    half = source.with_name("half")
    shutil.copytree(source, half)
    for manifest in half.rglob("MANIFEST-*"):
        manifest.unlink()
    half.rename(path)


def _unlink(path: Path) -> None:
    shutil.rmtree(path)


def _replace(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.mkdir()


def _unlink_the_log(path: Path) -> None:
    for log in (path / "db").glob("*.log"):
        log.unlink()


@pytest.mark.parametrize("away", [_unlink, _replace, _unlink_the_log])
async def test_commits_into_files_that_are_gone_end_soon_and_reach_the_meta_service(
    tmp_path: Path, away: Callable[[Path], None]
) -> None:
    """Killed afterwards, everything acknowledged is in the Meta Service, and the fresh store is told of as one (1)."""
    meta = meta_process(tmp_path / "m")
    adapter = adapter_process(tmp_path / "a", meta.address, extra="[flush]\ninterval_ms = 60000")
    history = History()
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        async with under(Callers(adapter.address, history, places=[ADAPTER])) as load:
            await load.acknowledged_more(100)
            away(tmp_path / "a" / "adapter")
            if away is not _unlink_the_log:  # then it opens what is left at once: nobody may be quick enough to see it refuse
                noticed_at = await health_turns(adapter, serving=False)
                await load.refused_more(5)
                assert not [answer for answer in load.acknowledged if answer.sent_at > noticed_at]
                refused = load.refused[-1]
                assert refused.code is grpc.StatusCode.UNAVAILABLE
                assert "the store is gone" in refused.text
        await eventually(lambda: "store.rescued" in adapter.log, WAIT_S)
        assert "the store is gone" in adapter.log
        adapter.kill()
        least = history.least()
        found = await remote_positions(meta, least)
        assert {where: found.get(where, (0, 0)) >= position for where, position in least.items()} == dict.fromkeys(least, True)
        if away is _unlink_the_log:
            return  # the store beside is not a fresh one, and its watermark alarms
        adapter.start()
        async with OffsetClient.connect(adapter.address, WAIT_S) as client:
            status = await client.status()
            assert "remembers another store here" in status.loss.why
            where, position = next(iter(least.items()))
            row = (await client.read(where.group, [where.shard], mode=ReadMode.MEMORY))[where.shard]
            assert (row.epoch, row.offset) >= position
        assert adapter.log.count(ALARM) == 1
        adapter.kill()
        adapter.start()
        assert adapter.log.count(ALARM) == 1


async def test_what_is_in_unlinked_files_waits_for_the_meta_service(tmp_path: Path) -> None:
    """While that is away the process keeps what it acknowledged: it has the only copy (1)."""
    meta = meta_process(tmp_path / "m")
    adapter = adapter_process(tmp_path / "a", meta.address)
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        meta.kill()
        async with OffsetClient.connect(adapter.address, WAIT_S) as client:
            await client.commit("g", {"s": 7})
        shutil.rmtree(tmp_path / "a" / "adapter")
        await health_turns(adapter, serving=False)
        meta.start()
        await eventually(lambda: "store.rescued" in adapter.log, WAIT_S)
        async with OffsetClient.connect(adapter.address, WAIT_S, resend=False) as client:
            with pytest.raises(grpc.aio.AioRpcError, match="the store is gone"):
                await client.commit("g", {"s": 8})
        assert stored_in(meta) == {key(): (1, 7)}
        assert adapter.stop() == 1


async def test_the_same_directory_is_served_again_when_it_is_back_and_no_other(tmp_path: Path) -> None:
    """As when a volume is mounted again. An empty one, another store and half a copy are refused; that store stays whole."""
    meta = meta_process(tmp_path / "m")
    adapter = adapter_process(tmp_path / "a", meta.address)
    other = adapter_process(tmp_path / "b", meta.address)
    path, away, others = tmp_path / "a" / "adapter", tmp_path / "away", tmp_path / "b" / "adapter"
    history, others_history = History(), History()
    with ended(meta, adapter, other):
        meta.start()
        adapter.start()
        other.start()
        await Callers(other.address, others_history, group="other").run(turns=1)
        assert other.stop() == 0
        await Callers(adapter.address, history).run(turns=2)
        path.rename(away)  # nobody waits until the adapter has noticed, and has closed the store that is gone
        others.rename(path)
        await health_turns(adapter, serving=False)
        await _reason_says(adapter, "holds another store")
        path.rename(others)
        path.mkdir()
        await _reason_says(adapter, "the store is gone; is its disk mounted?")
        other.start()
        await check_local(other, others_history)
        path.rmdir()
        _half_copy(away, path)
        await _reason_says(adapter, "MANIFEST")
        shutil.rmtree(path)
        away.rename(path)
        await health_turns(adapter, serving=True)
        await check_local(adapter, history)
        await Callers(adapter.address, history).run(turns=1)
        adapter.kill()
        adapter.start()
        await check_local(adapter, history)
        assert ALARM not in adapter.log


async def test_an_older_copy_of_the_directory_is_found_by_what_the_meta_service_has(tmp_path: Path) -> None:
    """Put back while the adapter was down, it looks intact to itself. What is missing is looked up, and counters go on."""
    meta = meta_process(tmp_path / "m")
    adapter = adapter_process(tmp_path / "a", meta.address)
    path, copy = tmp_path / "a" / "adapter", tmp_path / "copy"
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        async with OffsetClient.connect(adapter.address, WAIT_S) as client:
            await client.commit("g", {"old": 1})
        assert adapter.stop() == 0
        shutil.copytree(path, copy)
        adapter.start()
        async with OffsetClient.connect(adapter.address, WAIT_S) as client:
            await client.commit("g", {"old": 2, "new": 3})
            await until_clean(client)
            before = (await client.status()).store
        adapter.kill()
        shutil.rmtree(path)
        copy.rename(path)
        adapter.start()
        async with OffsetClient.connect(adapter.address, WAIT_S) as client:
            status = await client.status()
            assert "it was put back from an older copy" in status.loss.why
            assert status.store.id == before.id
            assert status.store.seq >= before.seq
            found = {shard: row.offset for shard, row in (await client.read("g", mode=ReadMode.MEMORY)).items()}
            assert found == {"old": 2, "new": 3}


async def test_a_store_without_a_readable_watermark_alarms(tmp_path: Path) -> None:
    """Nobody knows then what was acknowledged. A store that was never written to is none of that."""
    meta = meta_process(tmp_path / "m")
    adapter = adapter_process(tmp_path / "a", meta.address)
    mark = tmp_path / "a" / "adapter" / "watermark"
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        adapter.kill()
        mark.unlink()
        adapter.start()
        assert ALARM not in adapter.log
        async with OffsetClient.connect(adapter.address, WAIT_S) as client:
            await client.commit("g", {"s": 1})
        adapter.kill()
        mark.write_bytes(bytes(64))
        adapter.start()
        assert adapter.log.count(ALARM) == 1
        assert "the watermark is missing or cannot be read" in status_of(adapter).loss.why
