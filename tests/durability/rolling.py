"""Pods as processes: a broker beside its adapter, started and stopped in the order that Kubernetes has for a native sidecar.

`python -m tests.durability.rolling --restarts 10` measures what a rolling restart costs a client of the adapter.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc

from adapter.rpc import offsets_grpc
from adapter.testing.processes import adapter_process, ended, meta_process
from adapter.testing.waiting import PATIENCE_S
from tests.integration.helpers import commits, wait_until

PROBE_S = 1.0  # periodSeconds of the startup probe in the chart
PAUSE_S = 0.002
COMMITS = 200  # before each restart that is measured
SHARD = "t/0"


class Pod:
    """A broker that commits, and its adapter. The broker does not retry: it ends with 1 at the first commit that is refused."""

    def __init__(self, directory: Path, meta: str, name: str) -> None:
        """Nothing is started."""
        self.group = name
        self.ledger = directory / "ledger"
        # The Unix socket, as a pod has its loopback: no other process of this machine takes its place between two starts.
        self.adapter = adapter_process(directory, meta, top=f"broker = '{name}'")
        self.adapter.settings = self.adapter.settings.replace(f"127.0.0.1:{self.adapter.port}", "127.0.0.1:0")
        self._broker: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """The adapter; when its startup probe has passed, the broker; until that has a commit acknowledged."""
        self.start_adapter()
        self.start_broker()

    def start_adapter(self) -> None:
        """Until a probe, one each second, has passed."""
        self.adapter.launch()
        deadline = time.monotonic() + PATIENCE_S
        while not self.adapter.healthy():
            assert time.monotonic() < deadline, self.adapter.log
            time.sleep(PROBE_S)

    def start_broker(self) -> None:
        """Until it has a commit acknowledged."""
        before = len(self.acknowledged())
        command = [
            sys.executable,
            "-m",
            "tests.durability.rolling",
            "--broker",
            self.adapter.address,
            self.group,
            str(self.ledger),
        ]
        self._broker = subprocess.Popen(command)
        wait_until(lambda: len(self.acknowledged()) > before, "the broker commits")

    def stop(self) -> tuple[int, int]:
        """The broker first, then the adapter, as the kubelet does; returns both exit codes."""
        return self.stop_broker(), self.adapter.stop()

    def stop_broker(self) -> int:
        """Send SIGTERM, and wait for its end; returns the exit code."""
        assert self._broker
        self._broker.terminate()
        return self._broker.wait(PATIENCE_S)

    def broker_ended(self) -> int:
        """Wait until the broker ends by itself; returns the exit code."""
        assert self._broker
        return self._broker.wait(PATIENCE_S)

    def kill(self) -> None:
        """End what is left of it."""
        if self._broker:
            self._broker.kill()
            self._broker.wait()
        self.adapter.kill()

    def acknowledged(self) -> list[tuple[int, float]]:
        """Each acknowledged offset, and when, in seconds of the monotonic clock of this machine."""
        lines = self.ledger.read_text().splitlines(keepends=True) if self.ledger.exists() else []
        words = [line.split() for line in lines if line.endswith("\n")]
        return [(int(offset), float(at)) for what, offset, at in words if what == "acknowledged"]

    def refused(self) -> list[str]:
        """Each commit that was refused, and why."""
        return [line for line in self.ledger.read_text().splitlines() if line.startswith("refused")]


def broker(address: str, group: str, ledger: Path) -> int:
    """The broker's process: one commit after the other, each written down, until SIGTERM."""
    stopping = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    offset = max((int(line.split()[1]) for line in ledger.read_text().splitlines()), default=0) if ledger.exists() else 0
    with grpc.insecure_channel(address, options=[("grpc.enable_retries", 0)]) as channel, ledger.open("a", buffering=1) as lines:
        stub = offsets_grpc.OffsetStoreStub(channel)
        while not stopping:
            offset += 1
            try:
                stub.CommitOffsets(commits({SHARD: offset}, group), timeout=PATIENCE_S)
            except grpc.RpcError as error:
                lines.write(f"refused {offset} {error.code().name}\n")
                return 1
            lines.write(f"acknowledged {offset} {time.monotonic()}\n")
            time.sleep(PAUSE_S)
    return 0


def measure(restarts: int) -> None:
    """Restart a pod again and again; print how long nobody could commit, and how much of it is the adapter's."""
    with TemporaryDirectory(prefix="rolling-") as work:
        meta = meta_process(Path(work, "meta"))
        pod = Pod(Path(work, "pod"), meta.address, "broker-0")
        with ended(meta):
            meta.start()
            pod.start()
            steps: list[list[float]] = []
            try:
                for _ in range(restarts):
                    wanted = len(pod.acknowledged()) + COMMITS
                    wait_until(lambda wanted=wanted: len(pod.acknowledged()) >= wanted, "commits")  # type: ignore[misc]
                    assert pod.stop_broker() == 0
                    count = len(pod.acknowledged())
                    times = [time.monotonic()]
                    assert pod.adapter.stop() == 0
                    times.append(time.monotonic())
                    pod.start_adapter()
                    times.append(time.monotonic())
                    pod.start_broker()
                    before, after = pod.acknowledged()[count - 1 : count + 1]
                    steps.append([times[1] - times[0], times[2] - times[1], after[1] - before[1]])
            finally:
                pod.kill()
            refused = len(pod.refused())
    print(f"{restarts} restarts of a pod: {refused} commits refused, of {count:,}")  # noqa: T201 - for a person
    names = (
        "the adapter's stop, with the last flush",
        "its start, until a probe has passed",
        "from the last commit to the next one",
    )
    for name, values in zip(names, zip(*steps, strict=True), strict=True):
        print(f"{name}: median {statistics.median(values):.2f} s, longest {max(values):.2f} s")  # noqa: T201


def main() -> int:
    """A broker, or the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", nargs=3, metavar=("ADDRESS", "GROUP", "LEDGER"))
    parser.add_argument("--restarts", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.broker:
        address, group, ledger = arguments.broker
        return broker(address, group, Path(ledger))
    measure(arguments.restarts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
