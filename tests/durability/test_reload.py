"""Reloads under load, with kill -9 between and during them: what was acknowledged before, during and after a reload is there."""

import random
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread

from adapter.client.client import OffsetClient
from adapter.rpc import offsets_pb
from adapter.testing.history import ADAPTER, History
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from tests.durability.load import CALL_S, random_instants, running_load, watching
from tests.durability.test_crash import restart_and_verify, some_load, start, stop_and_compare

KILLS = 3
RELOADS = 4  # between two kills, and one more that the kill meets

BACK = ""
SOME = "[[policy]]\ngroups = 'consumer-[0-2]'\nmode = 'write_through'\n"
ALL = "[[policy]]\ngroups = '*'\nmode = 'write_through'\n"
BAD = "[[policy]]\ngroups = '*'\nmode = 'sometimes'\n"
FLUSHES = ("", "[flush]\ninterval_ms = 10\nbackoff_max_ms = 20\n", "[expiry]\nretention_hours = 1\n", "[log]\nlevel = 'debug'\n")


async def test_nothing_acknowledged_is_lost_while_policies_come_and_go(tmp_path: Path) -> None:
    """Whatever is reloaded, a bad file included, and whenever the process is killed (1, 2, 3); in the end all is flushed (8)."""
    rng, history = random_instants(), History()
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address)
    with ended(meta, adapter):
        await start(meta, adapter)
        async with (
            running_load(adapter.address, history, places=(ADAPTER,)) as load,
            watching(meta.address, history) as watcher,
        ):
            for _ in range(KILLS):
                for _ in range(RELOADS):
                    await load.progress(20)
                    await reload(adapter, rng)
                write(adapter, rng)
                adapter.signal(signal.SIGHUP)
                await anyio.sleep(rng.uniform(0.0, 0.05))
                adapter.kill()
                adapter.settings = with_policy(adapter, BACK, "")
                await restart_and_verify(load, adapter)
                load.resume()
                await some_load(load, rng)
            write(adapter, rng)
            adapter.signal(signal.SIGHUP)
            await stop_and_compare(load, adapter, watcher)
    assert "config.reloaded" in adapter.log
    assert load.commits


def with_policy(adapter: ServiceProcess, policy: str, other: str) -> str:
    """The settings of a process with another policy and other flush times."""
    return adapter.settings.partition("# live\n")[0] + f"# live\n{policy}{other}"


def write(adapter: ServiceProcess, rng: random.Random) -> str:
    """Replace the file by one with other settings, sometimes bad ones; returns which."""
    policy = rng.choice([BACK, SOME, ALL, BAD])
    (adapter.directory / "serve.toml").write_text(with_policy(adapter, policy, rng.choice(FLUSHES)))
    return policy


async def reload(adapter: ServiceProcess, rng: random.Random) -> None:
    """Write other settings and have them taken, by signal or by the call; a bad file changes nothing."""
    async with OffsetClient.connect(adapter.address, CALL_S) as client:
        before = (await client.status()).policies
        policy = write(adapter, rng)
        if policy == BAD:
            adapter.signal(signal.SIGHUP)
            await _until(client, lambda status: bool(status.config.last_error))
            assert (await client.status()).policies == before
        else:
            await client.reload(allow_defaults=True)  # also where a policy goes
            assert len((await client.status()).policies) == policy.count("[[policy]]")


async def _until(client: OffsetClient, condition: Callable[[offsets_pb.StatusReply], bool]) -> None:
    with anyio.fail_after(CALL_S):
        while True:
            if condition(await client.status()):
                return
            await anyio.sleep(0.02)
