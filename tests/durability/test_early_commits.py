"""Commits that are acknowledged while the recovery runs, and kill -9 in the middle of it (invariants 1, 2, 3, 8 and 9)."""

from functools import partial
from pathlib import Path

import anyio

from adapter.rpc import offsets_pb
from adapter.testing.history import History
from adapter.testing.processes import adapter_process, ended, meta_process
from tests.durability.load import random_instants, running_load, status_when, watching
from tests.durability.proxy import Proxy
from tests.durability.test_crash import expect_recovered, kill_before_its_end, restart_and_verify, start, stop_and_compare

KILLS = 2
ANSWER_S = 0.1  # delay of each answer: a recovery of one key at a time takes some seconds
HANGS_S = 3_600.0  # no answer any more: the recovery neither goes on nor ends
SETTINGS = "[recovery]\nbatch_keys = 1\ntimeout_ms = 3600000\n"


def _has_compared(least: int, status: offsets_pb.StatusReply) -> bool:
    return status.recovery.compared >= least


async def test_commits_that_a_recovering_adapter_acknowledged_survive_its_kill(tmp_path: Path) -> None:
    """Whatever the recovery had compared by then; a last start brings all of it to the Meta Service."""
    rng, history = random_instants(), History()
    meta = meta_process(tmp_path)
    proxy = Proxy(meta.address)
    adapter = adapter_process(tmp_path, proxy.address, extra=SETTINGS)
    with ended(meta, adapter):
        await start(meta)
        async with proxy.listening():
            await start(adapter)
            async with running_load(adapter.address, history) as load, watching(meta.address, history) as watcher:
                await load.progress()
                for _ in range(KILLS):
                    adapter.kill()
                    proxy.delay_s = ANSWER_S
                    adapter.launch()
                    await status_when(adapter.address, partial(_has_compared, rng.randrange(1, 10)))
                    proxy.delay_s = HANGS_S
                    await load.progress()  # all of it is acknowledged before the recovery has ended
                    status = await status_when(adapter.address)
                    assert (status.state, status.recovery.done) == (offsets_pb.StatusReply.SERVING, False)
                    await anyio.sleep(rng.uniform(0.0, 0.3))
                    kill_before_its_end(adapter)
                proxy.delay_s = 0.0
                found = await restart_and_verify(load, adapter)
                await expect_recovered(load, adapter, watcher, found)
                load.resume()
                await stop_and_compare(load, adapter, watcher)
