"""Kills a RobustMQ broker's double and the adapter before it with SIGKILL, at random instants, under commits.

    python -m tests.robustmq_kills [--kills 200] [--seed 1]

The promises, by a ledger of what was acknowledged: after both are back, a consumer reads of each shard at least what the broker's
last flush had acknowledged, wherever it went, and at most what was committed. Without the adapter (`--bare`) that holds, too, as
RobustMQ's Meta Service is not killed here; what consumers had acknowledged and read again is counted.
"""

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO, Any

from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port
from adapter.testing.waiting import PATIENCE_S
from tests.dialect import RobustMeta, robust_meta

GROUPS, SHARDS = 3, 4
Key = tuple[str, str]
Control = Any  # a socket as a file for reading and writing, which typeshed has no one name for


class BrokerProcess:
    """The double as a process."""

    def __init__(self, addresses: list[str]) -> None:
        self.grpc_port, self.control_port = free_port(), free_port()
        self._command = [sys.executable, "-m", "tests.robustmq_broker", str(self.grpc_port), str(self.control_port), *addresses]
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: list[Control] = []
        self._control: Control | None = None
        self._watch: Thread | None = None
        self.flushed: dict[Key, int] = {}
        self.refused = 0  # reads

    @property
    def address(self) -> str:
        """Where the adapter tells it of changes."""
        return f"127.0.0.1:{self.grpc_port}"

    def start(self) -> None:
        """Start it, again and again while another process has one of its ports, and wait until it answers."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
            assert self._process.stdout
            if self._process.stdout.readline() == b"serving\n":
                break
            self._process.stdout.close()
            self._process.wait()
            assert time.monotonic() < deadline, "it does not start"
        Thread(target=_drained, args=(self._process.stdout,), daemon=True).start()
        self._control, watch = self._connect(), self._connect()
        _ask(watch, {"flushed": True})
        self._watch = Thread(target=self._note, args=(watch,))
        self._watch.start()

    def commit(self, group: str, shard: str, offset: int) -> None:
        """Commit; returns when it is acknowledged. Raises OSError or ValueError if the broker is killed before."""
        assert self._control
        _ask(self._control, {"commit": [group, shard, offset]})

    def read(self, group: str) -> dict[str, int]:
        """What a consumer of a group is told, which begins again after an error. Raises AssertionError with the last one."""
        assert self._control
        deadline = time.monotonic() + PATIENCE_S
        while not isinstance(found := _ask(self._control, {"read": group}), dict):
            self.refused += 1
            assert time.monotonic() < deadline, found
        return found

    def ask(self, **question: object) -> Any:
        """Its answer; a text is an error."""
        assert self._control
        return _ask(self._control, question)

    def restart(self) -> None:
        """Kill it, and start it with an empty map."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """Kill it, and wait for what it told before."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._watch:
            self._watch.join()
        for stream in self._streams:
            with suppress(OSError):  # what was not sent
                stream.close()
        self._streams.clear()

    def _connect(self) -> Control:
        with socket.create_connection(("127.0.0.1", self.control_port), PATIENCE_S) as connected:
            connected.settimeout(None)
            stream = connected.makefile("rwb")
        self._streams.append(stream)
        return stream

    def _note(self, watch: Control) -> None:
        try:
            for line in watch:
                group, shard, offset = json.loads(line)
                self.flushed[group, shard] = offset
        except (OSError, ValueError):  # killed within a line
            pass


def _drained(output: IO[bytes]) -> None:
    with output:
        output.read()


def _ask(control: Control, question: object) -> Any:
    control.write(json.dumps(question).encode() + b"\n")
    control.flush()
    return json.loads(control.readline())


@dataclass
class Ledger:
    """What was committed last, acknowledged or not, and what came of it."""

    committed: dict[Key, int] = field(default_factory=dict)
    acknowledged: dict[Key, int] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=dict)
    commits: int = 0
    again: int = 0  # commits that were acknowledged, and are made again
    lost: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@contextmanager
def stack(directory: Path, *, bare: bool = False) -> Iterator[tuple[RobustMeta, BrokerProcess, ServiceProcess | None]]:
    """RobustMQ's Meta Service, the adapter before it, and the broker that calls it first; `bare` without the adapter."""
    port = free_port()
    with robust_meta() as meta:
        broker = BrokerProcess([meta.address] if bare else [f"127.0.0.1:{port}", meta.address])
        settings = f"[robustmq]\nlisten = '127.0.0.1:{port}'\nbroker = '{broker.address}'\n"
        adapter = None if bare else adapter_process(directory, meta.address, extra=settings)
        try:
            with ended(*([adapter] if adapter else [])):
                if adapter:
                    adapter.start()
                broker.start()
                yield meta, broker, adapter
        finally:
            broker.kill()


def kill_round(rng: random.Random, ledger: Ledger, broker: BrokerProcess, adapter: ServiceProcess | None) -> None:
    """Commit, kill one or both, start them again, and compare what a consumer reads with the ledger."""
    victim = rng.choice(("broker", "adapter", "both")) if adapter else "broker"
    ledger.kills[victim] = ledger.kills.get(victim, 0) + 1
    killing = Thread(target=_kill_after, args=(rng.uniform(0.02, 0.4), victim, broker, adapter))
    killing.start()
    try:
        while killing.is_alive():
            key = f"g{rng.randrange(GROUPS)}", f"s{rng.randrange(SHARDS)}"
            offset = ledger.committed.get(key, 0) + rng.randrange(1, 10)
            ledger.committed[key] = offset
            broker.commit(*key, offset)
            ledger.acknowledged[key] = offset
            ledger.commits += 1
    except (OSError, ValueError):
        pass
    killing.join()
    if victim == "adapter":
        broker.kill()  # else its map would answer
    if adapter and victim != "broker":
        adapter.start()
    flushed = dict(broker.flushed)
    broker.start()
    for group in range(GROUPS):
        found = broker.read(f"g{group}")
        for shard in range(SHARDS):
            _judge(ledger, (f"g{group}", f"s{shard}"), found.get(f"s{shard}", 0), flushed)


def _judge(ledger: Ledger, key: Key, offset: int, flushed: dict[Key, int]) -> None:
    if offset < flushed.get(key, 0):
        ledger.lost.append(f"{key}: {offset} is read, {flushed[key]} was flushed and acknowledged")
    if offset > ledger.committed.get(key, 0):
        ledger.skipped.append(f"{key}: {offset} is read, {ledger.committed.get(key, 0)} was committed")
    ledger.again += max(ledger.acknowledged.get(key, 0) - offset, 0)
    ledger.committed[key] = ledger.acknowledged[key] = offset  # a consumer goes on from there


def _kill_after(seconds: float, victim: str, broker: BrokerProcess, adapter: ServiceProcess | None) -> None:
    time.sleep(seconds)
    if adapter and victim != "broker":
        adapter.kill()
    if victim == "adapter":
        time.sleep(seconds / 2)  # the broker writes to RobustMQ itself
    if victim != "adapter":
        broker.kill()


def main() -> None:
    """Run, and print what was counted. Exit code 1 if a promise is broken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bare", action="store_true", help="without the adapter")
    given = parser.parse_args()
    rng, ledger = random.Random(given.seed), Ledger()
    with tempfile.TemporaryDirectory() as directory, stack(Path(directory), bare=given.bare) as (_, broker, adapter):
        while sum(ledger.kills.values()) < given.kills:
            kill_round(rng, ledger, broker, adapter)
    counts = f"kills {ledger.kills}, commits {ledger.commits:,}, offsets acknowledged and read again {ledger.again:,}"
    broken = f"lost {len(ledger.lost)}, skipped {len(ledger.skipped)}, reads that were refused and made again {broker.refused}"
    sys.stdout.write("\n".join([counts, broken, *ledger.lost[:5], *ledger.skipped[:5], ""]))
    sys.exit(1 if ledger.lost or ledger.skipped else 0)


if __name__ == "__main__":
    main()
