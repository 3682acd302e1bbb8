"""Beside an attack: an honest client whose every commit has to be acknowledged, and what the attacked process holds."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import ClassVar

import grpc

from adapter.rpc import meta_pb, offsets_pb
from adapter.testing.processes import ServiceProcess
from tests.integration.helpers import PATIENCE_S, commits, meta_rpc, rpc, wait_until

MIB = 2**20
PAUSE_S = 0.01  # between two requests: whoever is held up for CPU seconds is so with it, too
_numbers = count()


def cpu_s(process: ServiceProcess) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Honest(threading.Thread):
    """Sends small requests to a process, one after the other, over a connection of its own, until it is told to stop.

    `worst_cpu_s`: the most CPU seconds that the process used while one of them waited. Unlike the time that passed, these do
    not depend on what else the machine does.
    """

    def __init__(self, process: ServiceProcess) -> None:
        super().__init__()
        self._process = process
        self._going = True
        self._more = threading.Semaphore(0)
        self.acknowledged = 0
        self.refused: list[grpc.RpcError] = []
        self.worst_cpu_s = 0.0

    def run(self) -> None:
        """Send."""
        with self._sending() as send:
            while self._going and not self.refused:
                began_s = cpu_s(self._process)
                try:
                    send(self.acknowledged + 1)
                except grpc.RpcError as error:
                    self.refused.append(error)
                else:
                    self.acknowledged += 1
                with suppress(FileNotFoundError, ProcessLookupError):
                    self.worst_cpu_s = max(self.worst_cpu_s, cpu_s(self._process) - began_s)
                self._more.release()
                time.sleep(PAUSE_S)

    def goes_on(self) -> None:
        """Wait until two more requests were answered: of those, the last was sent after this was called."""
        for _ in range(2):
            assert self._more.acquire(timeout=2 * PATIENCE_S)
            while self._more.acquire(blocking=False):
                pass

    def stop(self) -> None:
        """End; all were acknowledged."""
        self._going = False
        self.join()
        assert self.refused == []

    def _sending(self) -> AbstractContextManager[Callable[[int], object]]:
        """What sends the request of a number, which rises by one."""
        raise NotImplementedError


class HonestConsumer(Honest):
    """Commits to an adapter; over TLS if there is a CA."""

    ca: ClassVar[bytes | None] = None

    def __init__(self, process: ServiceProcess) -> None:
        super().__init__(process)
        self._group = f"honest-{next(_numbers)}"

    @contextmanager
    def _sending(self) -> Iterator[Callable[[int], object]]:
        with rpc(self._process.tcp_address, self.ca) as stubs:
            yield lambda number: stubs.store.CommitOffsets(commits({"s": number}, self._group), timeout=PATIENCE_S)

    def stop(self) -> None:
        """What stands is the last of them."""
        super().stop()
        with rpc(self._process.tcp_address, self.ca) as stubs:
            wanted = offsets_pb.ReadOffsetsRequest(groups=[offsets_pb.GroupShards(group=self._group, shards=["s"])])
            (row,) = stubs.store.ReadOffsets(wanted, timeout=PATIENCE_S).offsets
        assert row.offset == self.acknowledged


class HonestAdapter(Honest):
    """Saves to a Meta Service."""

    @contextmanager
    def _sending(self) -> Iterator[Callable[[int], object]]:
        def saves(number: int) -> meta_pb.SaveOffsetDataRequest:
            rows = [meta_pb.SaveOffsetDataRequestOffset(shard_name="s", offset=number)]
            return meta_pb.SaveOffsetDataRequest(offsets=[meta_pb.SaveOffsetData(group="honest", offsets=rows)])

        with meta_rpc(self._process.address) as stub:
            yield lambda number: stub.SaveOffsetData(saves(number), timeout=PATIENCE_S)


class Held:
    """What a process holds."""

    def __init__(self, process: ServiceProcess) -> None:
        self._proc = Path(f"/proc/{process.pid}")

    def begin(self) -> None:
        """Measure the peak from here on."""
        (self._proc / "clear_refs").write_text("5")

    def sockets(self) -> int:
        """Open connections and listeners. Of files RocksDB opens some now and then."""
        found = 0
        for each in (self._proc / "fd").iterdir():
            with suppress(FileNotFoundError):
                found += str(each.readlink()).startswith("socket:")
        return found

    def memory(self, field: str = "VmRSS") -> int:
        """Bytes of memory now; VmHWM: at its peak."""
        lines = (self._proc / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


@contextmanager
def undisturbed(adapter: ServiceProcess, *, grows: int = 64 * MIB) -> Iterator[Honest]:
    """Meanwhile an honest client commits and loses nothing; the adapter takes at most so many bytes more, at its peak.

    Afterwards it is healthy and has no more connections open than before.
    """
    held, honest = Held(adapter), HonestConsumer(adapter)
    sockets, before = held.sockets(), held.memory()
    held.begin()
    honest.start()
    try:
        honest.goes_on()
        yield honest
        honest.goes_on()
    finally:
        honest.stop()
    assert held.memory("VmHWM") - before < grows
    assert adapter.healthy()
    wait_until(lambda: held.sockets() <= sockets, "no more connections are open than before")
