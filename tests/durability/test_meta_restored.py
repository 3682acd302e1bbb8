"""A Meta Service that comes back with less than it acknowledged: running adapters push again what they hold (3).

Without a restart of them, and without new commits: also an idle adapter notices.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from adapter.client.client import OffsetClient
from adapter.rpc import offsets_pb
from adapter.testing.history import History
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests.durability.callers import WAIT_S, Callers, check_remote
from tests.durability.restored import NOTICED, at_least_in
from tests.integration.helpers import status_of, until_clean


def _older(store: Path, copy: Path) -> None:
    shutil.rmtree(store)
    copy.rename(store)


def _empty(store: Path, _: Path) -> None:
    shutil.rmtree(store)


async def _flushed(*adapters: ServiceProcess) -> None:
    for adapter in adapters:
        async with OffsetClient.connect(adapter.address, WAIT_S) as client:
            await until_clean(client)


@pytest.mark.parametrize("lose", [_older, _empty])
async def test_idle_adapters_push_everything_again(tmp_path: Path, lose: Callable[[Path, Path], None]) -> None:
    """An older copy, or nothing: told as an error, in status and metrics; what was committed since the copy is back."""
    meta = meta_process(tmp_path / "m")
    adapters = [adapter_process(tmp_path / name, meta.address, top=f"broker = '{name}'") for name in ("a", "b")]
    history = History()
    store, copy = tmp_path / "m" / "meta", tmp_path / "copy"
    with ended(meta, *adapters):
        meta.start()
        for adapter in adapters:
            adapter.launch()
        for adapter in adapters:
            adapter.wait_ready()
            await Callers(adapter.address, history, group=adapter.directory.name).run(turns=1)
        await _flushed(*adapters)
        assert meta.stop() == 0
        shutil.copytree(store, copy)
        meta.start()
        for adapter in adapters:
            await Callers(adapter.address, history, group=adapter.directory.name).run(turns=3)
        await _flushed(*adapters)
        meta.kill()
        lose(store, copy)
        meta.start()
        await at_least_in(meta, history)
        for adapter in adapters:
            await eventually(lambda adapter=adapter: _compared(adapter), WAIT_S)  # type: ignore[misc]
            status = status_of(adapter)
            assert status.state == offsets_pb.StatusReply.SERVING
            assert status.meta_losses >= 1
            assert status.meta_loss
            assert NOTICED in adapter.log


async def test_a_copy_that_others_have_written_to_since_is_noticed(tmp_path: Path) -> None:
    """One adapter sees nothing of it while another writes more into the copy than was lost: the revision hides nothing."""
    meta = meta_process(tmp_path / "m")
    busy, paused = (adapter_process(tmp_path / name, meta.address, top=f"broker = '{name}'") for name in ("busy", "paused"))
    history = History()
    store, copy = tmp_path / "m" / "meta", tmp_path / "copy"
    with ended(meta, busy, paused):
        meta.start()
        for adapter in (busy, paused):
            adapter.start()
        await Callers(paused.address, history, group="paused").run(turns=1)
        await _flushed(paused)
        assert meta.stop() == 0
        shutil.copytree(store, copy)
        meta.start()
        await Callers(paused.address, history, group="paused").run(turns=2)
        await _flushed(paused)
        paused.freeze()
        meta.kill()
        _older(store, copy)
        meta.start()
        await Callers(busy.address, history, group="busy").run(turns=6)
        await _flushed(busy)
        paused.thaw()
        await at_least_in(meta, history)
        await eventually(lambda: _compared(paused), WAIT_S)
        assert "lacks the last start of the store seen before" in paused.log


def _compared(adapter: ServiceProcess) -> bool:
    return "meta.compared_again" in adapter.log


async def test_an_adapter_that_is_killed_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    """Nothing counts as flushed from the notice on: not at the next start, and not at a start without the Meta Service."""
    meta = meta_process(tmp_path / "m")
    adapter = adapter_process(tmp_path / "a", meta.address, extra="[recovery]\ntimeout_ms = 100")
    history = History()
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        await Callers(adapter.address, history).run(turns=1)
        await _flushed(adapter)
        meta.kill()
        shutil.rmtree(tmp_path / "m" / "meta")
        meta.start()
        await eventually(lambda: NOTICED in adapter.log, WAIT_S)
        adapter.kill()
        meta.kill()
        shutil.rmtree(tmp_path / "m" / "meta")
        adapter.start()
        assert status_of(adapter).state == offsets_pb.StatusReply.DEGRADED
        meta.start()
        await at_least_in(meta, history)
        assert adapter.stop() == 0


async def test_a_meta_service_that_was_only_restarted_is_no_loss(tmp_path: Path) -> None:
    """Killed or stopped, and back with all that it had: nobody is alarmed, nothing is compared again."""
    meta = meta_process(tmp_path / "m")
    adapter = adapter_process(tmp_path / "a", meta.address)
    history = History()
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        for end in (meta.kill, meta.stop):
            await Callers(adapter.address, history).run(turns=2)
            await _flushed(adapter)
            end()
            await Callers(adapter.address, history).run(turns=1)
            meta.start()
            await _flushed(adapter)
        history.carrying().done()
        await check_remote(meta, history)
        assert status_of(adapter).meta_losses == 0
        assert adapter.stop() == 0
    assert NOTICED not in adapter.log
