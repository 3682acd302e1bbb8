"""Beside an attack: an honest client whose every commit has to be acknowledged, and what the attacked process holds."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import grpc

from adapter.rpc import offsets_pb
from adapter.testing.processes import ServiceProcess
from tests.integration.helpers import PATIENCE_S, commits, rpc, wait_until

MIB = 2**20
_numbers = count()


class Honest(threading.Thread):
    """Commits ever larger offsets, one after the other, over a connection of its own, until it is told to stop."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._group = f"honest-{next(_numbers)}"
        self._going = True
        self._more = threading.Semaphore(0)
        self.acknowledged = 0
        self.refused: list[grpc.RpcError] = []
        self.worst_s = 0.0

    def run(self) -> None:
        """Commit."""
        with rpc(self._address) as stubs:
            while self._going and not self.refused:
                began = time.perf_counter()
                try:
                    request = commits({"s": self.acknowledged + 1}, self._group)
                    stubs.store.CommitOffsets(request, timeout=PATIENCE_S)
                except grpc.RpcError as error:
                    self.refused.append(error)
                else:
                    self.acknowledged += 1
                self.worst_s = max(self.worst_s, time.perf_counter() - began)
                self._more.release()

    def goes_on(self) -> None:
        """Wait until two more commits were answered: of those, the last was sent after this was called."""
        for _ in range(2):
            assert self._more.acquire(timeout=2 * PATIENCE_S)
            while self._more.acquire(blocking=False):
                pass

    def stop(self) -> None:
        """End; all were acknowledged, and what stands is the last of them."""
        self._going = False
        self.join()
        assert self.refused == []
        with rpc(self._address) as stubs:
            wanted = offsets_pb.ReadOffsetsRequest(groups=[offsets_pb.GroupShards(group=self._group, shards=["s"])])
            (row,) = stubs.store.ReadOffsets(wanted, timeout=PATIENCE_S).offsets
        assert row.offset == self.acknowledged


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
    held, honest = Held(adapter), Honest(adapter.tcp_address)
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
