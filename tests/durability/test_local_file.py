"""The file of a broadcasting consumer: its process is killed, or the power is cut, at random instants of its writes."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import anyio
import anyio.to_thread

from adapter.client.offset_store.local_file import LocalFileOffsetStore
from adapter.model.queues import MessageQueue
from adapter.testing.processes import is_stopped
from adapter.testing.waiting import eventually
from tests.durability import machine
from tests.durability.load import random_instants
from tests.durability.machine import loop_options, mounted

KILLS = 12
CUT_PAUSES_S = (0.0, 10.0)  # the second is stopped after an acknowledgement, and before anything else is synced
MOST_WRITES = 15  # before a kill
MOST_S = 0.005  # later than an acknowledgement; a write takes less
QUEUES = [MessageQueue("quotes", number, "broker-a") for number in range(3)]
# Nothing of the image changes but by syncs, so that what is not synced is not in it.
MOUNT = "noatime,commit=300"

processes = get_context("forkserver")
processes.set_forkserver_preload([__name__, "pytest"])  # what a child would import


def store_in(directory: Path) -> LocalFileOffsetStore:
    """The store of the one consumer."""
    return LocalFileOffsetStore(directory, "192.168.1.5@DEFAULT", "prices")


def consume(directory: Path, ledger: Connection, pause_s: float) -> None:
    """Persist one number after the other for all queues, and tell it when it is acknowledged. Never ends."""
    asyncio.run(_consume(directory, ledger, pause_s))


async def _consume(directory: Path, ledger: Connection, pause_s: float) -> None:
    store = store_in(directory)
    await store.load()
    number = max(store.clone_offset_table().values(), default=0)
    while True:
        number += 1
        for queue in QUEUES:
            store.update_offset(queue, number)
        await store.persist_all(QUEUES)
        ledger.send(number)
        await anyio.sleep(pause_s)


class Consumer:
    """A process that consumes, and what it said was acknowledged."""

    def __init__(self, directory: Path, pause_s: float) -> None:
        self._ledger, there = processes.Pipe(duplex=False)
        self.process = processes.Process(target=consume, args=(directory, there, pause_s), daemon=True)
        self.process.start()
        there.close()
        self.acknowledged = 0

    async def acknowledges(self, writes: int) -> None:
        """Wait until it has acknowledged so many."""
        for _ in range(writes):
            self.acknowledged = await anyio.to_thread.run_sync(self._ledger.recv)

    def said(self) -> int:
        """The last one of all that it has said until now."""
        while self._ledger.poll():
            try:
                self.acknowledged = self._ledger.recv()
            except EOFError:
                break
        return self.acknowledged


@contextmanager
def consumer(directory: Path, pause_s: float = 0.0) -> Iterator[Consumer]:
    """A consumer that pauses after each acknowledgement, killed at the end."""
    running = Consumer(directory, pause_s)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.join()


async def stored_in(directory: Path) -> int:
    """The one number that all queues have."""
    store = store_in(directory)
    await store.load()
    found = store.clone_offset_table()
    assert list(found) == QUEUES
    assert len(set(found.values())) == 1, f"parts of two writes: {found}"
    return found[QUEUES[0]]


async def test_acknowledged_offsets_survive_kills(tmp_path: Path) -> None:
    """After each kill -9 the file has the last acknowledged write, or the one that was under way, as a whole."""
    rng = random_instants()
    for _ in range(KILLS):
        with consumer(tmp_path) as running:
            await running.acknowledges(rng.randint(1, MOST_WRITES))
            await anyio.sleep(rng.uniform(0, MOST_S))
        acknowledged = running.said()
        assert await stored_in(tmp_path) - acknowledged in {0, 1}


async def test_acknowledged_offsets_survive_power_cuts(tmp_path: Path) -> None:
    """An image of the disk at an instant has the last acknowledged write, or the one that was under way, as a whole."""
    machine.require("a power cut, the local file", machine.loop_ext4)
    rng = random_instants()
    image = machine.make_ext4(tmp_path / "image", megabytes=16)
    with mounted(tmp_path / "disk", loop_options(image, MOUNT)):
        for number, pause_s in enumerate(CUT_PAUSES_S):
            with consumer(tmp_path / "disk", pause_s) as running:
                await running.acknowledges(1 if pause_s else rng.randint(1, MOST_WRITES))
                await anyio.sleep(rng.uniform(0, MOST_S))
                pid = running.process.pid or 0
                os.kill(pid, signal.SIGSTOP)
                await eventually(partial(is_stopped, pid))
                copy = tmp_path / f"copy-{number}"
                machine.run("cp", "--sparse=always", str(image), str(copy))
            acknowledged = running.said()
            with mounted(tmp_path / f"after-{number}", loop_options(copy, MOUNT)):
                assert await stored_in(tmp_path / f"after-{number}") - acknowledged in {0, 1}
