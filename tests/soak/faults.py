"""The faults of the soak, at instants that the seed decides. Each leaves every process alive and serving."""

import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.to_thread

from adapter.testing.processes import ServiceProcess
from tests import forking
from tests.durability.load import status_when
from tests.soak.cluster import Cluster, Node

END_S = 30.0  # of a start that is refused
SLOW_S = 0.05  # an answer, so that a recovery can be met halfway
STUCK_S = 2.0  # an answer, so that no drain ends before its kill
Fault = Callable[[Cluster, random.Random], Awaitable[None]]


async def kill_adapter(cluster: Cluster, rng: random.Random) -> None:
    """SIGKILL, and a start."""
    node = rng.choice(cluster.nodes)
    node.process.kill()
    await _a_while(rng)
    await cluster.start(node.process)


async def kill_meta(cluster: Cluster, rng: random.Random) -> None:
    """SIGKILL of the Meta Service. Commits go on without it."""
    cluster.meta.kill()
    await _a_while(rng)
    await cluster.start(cluster.meta)


async def kill_both(cluster: Cluster, rng: random.Random) -> None:
    """SIGKILL of an adapter and the Meta Service at once; either comes back first."""
    node = rng.choice(cluster.nodes)
    await _kill(cluster, rng, [node.process, cluster.meta])


async def kill_all(cluster: Cluster, rng: random.Random) -> None:
    """SIGKILL of everything at once; they come back in any order."""
    await _kill(cluster, rng, [cluster.meta, *(node.process for node in cluster.nodes)])


async def kill_recovering(cluster: Cluster, rng: random.Random) -> None:
    """An adapter with commits that the Meta Service has not seen is killed, and once more while it recovers."""
    node = rng.choice(cluster.nodes)
    cluster.meta.kill()
    await _a_while(rng)
    node.process.kill()
    node.proxy.delay_s = SLOW_S
    node.process.launch()
    await cluster.start(cluster.meta)
    await status_when(node.process.address)
    await anyio.sleep(rng.uniform(0.0, 0.3))
    node.process.kill()
    node.proxy.delay_s = 0.0
    await cluster.start(node.process)


async def kill_draining(cluster: Cluster, rng: random.Random) -> None:
    """SIGTERM, and SIGKILL before it has flushed: the Meta Service has the last save, or not even that."""
    node = rng.choice(cluster.nodes)
    if rng.random() < 0.5:
        node.proxy.delay_s = STUCK_S
    else:
        cluster.meta.kill()
    node.process.signal(signal.SIGTERM)
    await anyio.sleep(rng.uniform(0.0, 0.5))
    node.process.kill()
    node.proxy.delay_s = 0.0
    dead = [node.process]
    if cluster.meta.process and cluster.meta.process.poll() is not None:
        dead.append(cluster.meta)
    await cluster.start(*dead)


async def pause_adapter(cluster: Cluster, rng: random.Random) -> None:
    """SIGSTOP, and SIGCONT: its saves in flight and the commits in its sockets come late."""
    await _pause(rng.choice(cluster.nodes).process, rng)


async def pause_meta(cluster: Cluster, rng: random.Random) -> None:
    """SIGSTOP of the Meta Service, mostly for longer than a call may take."""
    await _pause(cluster.meta, rng)


async def cut_connections(cluster: Cluster, rng: random.Random) -> None:
    """Every answer of the Meta Service ends halfway: what it applied, nobody heard of."""
    for node in _some(cluster, rng):
        node.proxy.cutting = True
    await _a_while(rng)
    for node in cluster.nodes:
        node.proxy.cutting = False


async def delay_answers(cluster: Cluster, rng: random.Random) -> None:
    """Answers of the Meta Service come late, some too late."""
    for node in _some(cluster, rng):
        node.proxy.delay_s = rng.uniform(0.1, 1.5)
    await _a_while(rng)
    for node in cluster.nodes:
        node.proxy.delay_s = 0.0


async def damage_meta(cluster: Cluster, rng: random.Random) -> None:
    """SIGKILL of the Meta Service, and a bit of its store flips: refused and repaired, or all is there; adapters push again."""
    async with cluster.at_rest():
        cluster.meta.kill()
        _flip(rng, cluster.meta.directory / "meta" / "db")
        cluster.meta.launch()
        if not await anyio.to_thread.run_sync(_serves, cluster.meta):
            await anyio.to_thread.run_sync(_repair, cluster.meta)
            await anyio.to_thread.run_sync(cluster.meta.start)
        # Those that run notice it, those that start compare everything anyway.
        again = [node for node in cluster.nodes if rng.random() < 0.3]
        for node in again:
            node.process.kill()
            node.process.launch()
        for node in again:
            await anyio.to_thread.run_sync(node.process.wait_ready)
            await node.channel.channel_ready()
            await cluster.look(node)
        # What came there just before the damage, too: an adapter that has not noticed yet calls it clean.
        await cluster.watcher.has_everything(node.name for node in cluster.nodes)


CRASHES: dict[str, Fault] = {
    "kill -9 of an adapter": kill_adapter,
    "kill -9 of the Meta Service": kill_meta,
    "kill -9 of both": kill_both,
    "kill -9 of everything": kill_all,
    "kill -9 during the recovery": kill_recovering,
    "kill -9 during the drain": kill_draining,
    "kill -9 and damage of the Meta Service": damage_meta,
}
DISTURBANCES: dict[str, Fault] = {
    "adapter paused": pause_adapter,
    "Meta Service paused": pause_meta,
    "connections cut": cut_connections,
    "answers delayed": delay_answers,
}


def _flip(rng: random.Random, database: Path) -> None:
    file = rng.choice(sorted(file for pattern in ("*.log", "*.sst") for file in database.glob(pattern) if file.stat().st_size))
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def _serves(process: ServiceProcess) -> bool:
    """Whether a start serves; False when it was refused loudly."""
    try:
        process.wait_ready()
    except RuntimeError:
        assert process.process is not None
        if process.process.wait(END_S) != 1 or "offset-adapter meta repair" not in process.log:
            raise
        return False
    return True


def _repair(process: ServiceProcess) -> None:
    config = str(process.directory / "meta.toml")
    forking.run(["meta", "repair", "--yes", "--config", config], Path.cwd(), os.environ, END_S).check_returncode()


async def _a_while(rng: random.Random) -> None:
    await anyio.sleep(rng.uniform(0.0, 0.5))


async def _kill(cluster: Cluster, rng: random.Random, processes: list[ServiceProcess]) -> None:
    rng.shuffle(processes)
    for process in processes:
        process.signal(signal.SIGKILL)
    for process in processes:
        process.kill()
    rng.shuffle(processes)
    first = rng.randint(1, len(processes))
    await cluster.start(*processes[:first])
    await cluster.start(*processes[first:])


async def _pause(process: ServiceProcess, rng: random.Random) -> None:
    process.freeze()
    await anyio.sleep(rng.uniform(0.1, 1.5))
    process.thaw()


def _some(cluster: Cluster, rng: random.Random) -> list[Node]:
    return rng.sample(list(cluster.nodes), rng.randint(1, len(cluster.nodes)))
