"""A real name server, broker, clients, adapter and Meta Service on loopback, each to be killed and started again.

RocketMQ's jars are those of `tests/interop/install-rocketmq.sh`, the clients those of `java/Lab.java`. Everything blocks.
"""

import atexit
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from adapter.testing.processes import ServiceProcess, adapter_process, meta_process
from adapter.testing.waiting import PATIENCE_S
from demo.rocketmq.designs import Design

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-adapter-interop"
SOURCE = Path(__file__).parent / "java/Lab.java"
SILENT = ("rmq.logback-test.xml", "logback-test.xml", "rmq.client.logback.xml")  # as 5.x and 4.x look for it
SILENT_49 = ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml")  # in conf; 4.9 does not start without them
NO_LOGS = '<configuration><root level="OFF"/></configuration>\n'
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Drocketmq.client.logLevel=ERROR")
START_S = 300.0  # of a broker, on a machine with many times its load; also for its stop, which takes 10 to 20 s without load
# 4.9 unmaps its files by reflection, at the first start after a kill.
OPENED = tuple(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref"))
PORTS = (20_000, 32_000)  # below those that the kernel gives to others
CLUSTER, BROKER = "demo", "broker-a"
# What mqadmin prints while the name server does not know the broker.
NOT_REGISTERED = ("No topic route info", "the broker addr table is empty", "Make sure the specified clusterName exists")

Offsets = dict[int, int]  # queue -> offset


class LabError(Exception):
    """A process did not do what it was asked for; the message has the end of its log."""


def jars(version: str) -> Path:
    """RocketMQ's jars of a version. Raises LabError when they are not there."""
    place = CACHE / f"rocketmq-{version}"
    if not list(place.glob("rocketmq-namesrv-*.jar")):
        raise LabError(f"no jars of RocketMQ {version} in {place}: sh tests/interop/install-rocketmq.sh fetches them")
    return place


@cache
def _classes(version: str) -> Path:
    place = Path(tempfile.mkdtemp(prefix="offset-adapter-lab-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    command = ["javac", "-nowarn", "-cp", f"{jars(version)}/*", "-d", str(place), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    if done.returncode:
        raise LabError(done.stderr)
    for name in SILENT:
        (place / name).write_text(NO_LOGS)
    return place


class Child:
    """A process with its log."""

    def __init__(
        self, name: str, command: list[str], directory: Path, environment: Mapping[str, str], *, asked: bool = False
    ) -> None:
        self._name = name
        self._log = directory / f"{name}.log"
        self._at = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if asked else log,
                stderr=log,
                text=True,
            )

    def ask(self, *words: object) -> list[str]:
        """Send a command and return its answer. Raises LabError."""
        pipes = self.process
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        pipes.stdin.write(" ".join(map(str, words)) + "\n")
        pipes.stdin.flush()
        answer: list[str] = []
        while (line := pipes.stdout.readline().rstrip("\n")) != ".":
            if not line and pipes.poll() is not None:
                raise LabError(f"{self._name} ended: {self.log[-800:]}")
            if line.startswith("error ") or re.fullmatch(r"[0-9 ]+", line):  # a library may print as well
                answer.append(line)
        if answer and answer[-1].startswith("error "):
            raise LabError(f"{words[0]}: {answer[-1]}")
        return answer

    @property
    def log(self) -> str:
        """What it has written since its start."""
        with self._log.open("rb") as file:
            file.seek(self._at)
            return file.read().decode(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait until its log has this text. Raises LabError when it ends before."""
        deadline = time.monotonic() + START_S
        while text not in self.log:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"{self._name} did not say {text!r}: {self.log[-1500:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with suppress(OSError):  # what was not written yet
                    pipe.close()

    def stop(self) -> None:
        """SIGTERM."""
        self.process.terminate()
        try:
            self.process.wait(START_S)
        finally:
            self.kill()


class Lab:
    """All processes of one design. `settings` are more lines of broker.conf, from its next start on."""

    def __init__(self, directory: Path, design: Design, version: str = "5.3.3", settings: str = "", adapter: str = "") -> None:
        self.directory = directory
        self.design = design
        self.version = version
        self.settings = settings  # of the next start
        self._adapter_settings = adapter
        self.namesrv_port, self.broker_port = _quiet_port(), _quiet_port()
        self.namesrv: Child | None = None
        self.broker: Child | None = None
        self.slave: Child | None = None
        self.control: Child | None = None
        self.consumer: Child | None = None
        self._meta: ServiceProcess | None = None
        self.adapter: ServiceProcess | None = None
        self.store = "store"
        self.met_s = 0.0  # between the last start of the broker and the moment when it had its offsets again
        (directory / "home/conf").mkdir(parents=True)
        for name in SILENT_49:
            (directory / "home/conf" / name).write_text(NO_LOGS)

    @property
    def broker_address(self) -> str:
        """Where the broker serves."""
        return f"127.0.0.1:{self.broker_port}"

    @property
    def config(self) -> Path:
        """The directory of the broker's own files of offsets."""
        return self.directory / self.store / "config"

    @classmethod
    @contextmanager
    def open(cls, design: Design, version: str = "5.3.3", settings: str = "", adapter: str = "") -> Iterator["Lab"]:
        """A lab whose name server, Meta Service, adapter and control client run; all are killed and removed at the end."""
        with tempfile.TemporaryDirectory(prefix="rmq-") as name:  # short: the path of the adapter's socket is bounded
            lab = cls(Path(name), design, version, settings, adapter)
            try:
                lab.begin()
                yield lab
            finally:
                lab.end()

    def begin(self) -> None:
        """Start everything but the broker and the consumer."""
        conf = self.directory / "namesrv.conf"
        conf.write_text(f"listenPort={self.namesrv_port}\nbindAddress=127.0.0.1\nkvConfigPath={self.directory}/kv.json\n")
        self.namesrv = self._java("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(conf), heap=128)
        self.namesrv.wait_for("boot success")
        if self.design.adapter:
            self._meta = meta_process(self.directory)
            self._meta.start(START_S)
            settings = self.design.adapter_settings.format(broker=self.broker_address, socket=self.directory / "a.sock")
            self.adapter = adapter_process(self.directory, self._meta.address, extra=settings + self._adapter_settings)
            self.adapter.start(START_S)
        self.control = self._java("control", "Lab", "control", self.namesrv_address, heap=192, asked=True)

    @property
    def namesrv_address(self) -> str:
        """Where the name server serves."""
        return f"127.0.0.1:{self.namesrv_port}"

    def end(self) -> None:
        """Kill everything."""
        for child in (self.consumer, self.control, self.slave, self.broker, self.namesrv):
            if child:
                child.kill()
        for service in (self.adapter, self._meta):
            if service:
                service.kill()

    def start_broker(self) -> float:
        """Start the broker, and wait until it has booted and its offsets; returns the seconds that the boot took."""
        conf = self.directory / "broker.conf"
        more = self.design.broker_settings.format(broker=self.broker_address, socket=self.directory / "a.sock")
        conf.write_text(
            f"brokerClusterName={CLUSTER}\nbrokerName={BROKER}\nbrokerId=0\nnamesrvAddr={self.namesrv_address}\n"
            f"brokerIP1=127.0.0.1\nlistenPort={self.broker_port}\nbindAddress=127.0.0.1\n"
            f"storePathRootDir={self.directory}/{self.store}\nstorePathCommitLog={self.directory}/{self.store}/commitlog\n"
            "mappedFileSizeCommitLog=67108864\nmappedFileSizeConsumeQueue=600000\nmaxTransferBytesOnMessageInMemory=1048576\n"
            f"defaultTopicQueueNums=4\nautoCreateTopicEnable=true\ndiskMaxUsedSpaceRatio=98\n{more}{self.settings}\n"
        )
        met = self._meetings()
        began = time.monotonic()
        arguments = ("org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf))
        self.broker = self._java("broker", *arguments, heap=448, more=("-XX:MaxDirectMemorySize=384m", *OPENED))
        self.broker.wait_for("boot success")
        booted = time.monotonic()
        while self._meetings() == met and self.design.met:
            if time.monotonic() > booted + START_S:
                raise LabError(f"the adapter does not follow the broker: {self.adapter.log[-1500:] if self.adapter else ''}")
            time.sleep(0.01)
        self.met_s = time.monotonic() - booted
        return booted - began

    def start_slave(self) -> tuple[str, Path]:
        """Start a slave of the broker; returns its address, and the directory of its own files of offsets."""
        port, store = _quiet_port(), self.directory / "slave-store"
        conf = self.directory / "slave.conf"
        own = f"brokerId=1\nbrokerRole=SLAVE\nlistenPort={port}\nstorePathRootDir={store}\nstorePathCommitLog={store}/commitlog\n"
        conf.write_text((self.directory / "broker.conf").read_text() + own)  # of two lines for one setting the last counts
        arguments = ("org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf))
        self.slave = self._java("slave", *arguments, heap=448, more=("-XX:MaxDirectMemorySize=384m", *OPENED))
        self.slave.wait_for("boot success")
        return f"127.0.0.1:{port}", store / "config"

    def _meetings(self) -> int:
        return self.adapter.log.count(self.design.met) if self.adapter and self.design.met else 0

    def kill_broker(self) -> None:
        """SIGKILL."""
        if self.broker:
            self.broker.kill()
        self.broker = None

    def kill_adapter(self) -> None:
        """SIGKILL, where there is one."""
        if self.adapter:
            self.adapter.kill()

    def start_adapter(self) -> None:
        """Start the adapter again, where there is one."""
        if self.adapter:
            self.adapter.start(START_S)

    def lose_offsets(self) -> None:
        """Remove the broker's files of offsets."""
        for pattern in ("*onsumerOffset*", "rdb"):
            for place in self.config.glob(pattern):
                shutil.rmtree(place) if place.is_dir() else place.unlink()

    def lose_adapter_store(self) -> None:
        """Remove the adapter's local store, so that only the Meta Service is left."""
        shutil.rmtree(self.directory / "adapter", ignore_errors=True)

    def start_consumer(self, group: str, topic: str, file: Path, millis: float, persist_ms: int = 5_000) -> None:
        """Start a push consumer that notes in `file` what it has handled."""
        arguments = ("consume", self.namesrv_address, group, topic, str(file), str(millis), str(persist_ms))
        self.consumer = self._java("consumer", "Lab", *arguments, heap=192)

    def kill_consumer(self) -> None:
        """SIGKILL."""
        if self.consumer:
            self.consumer.kill()
        self.consumer = None

    def ask(self, *words: object) -> list[str]:
        """Have the control client do something. Raises LabError."""
        assert self.control is not None
        return self.control.ask(*words)

    def query(self, group: str, topic: str) -> Offsets:
        """The group's offsets as the broker answers a consumer. A broker that is not reachable yet is asked again."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                return pairs(self.ask("query", group, topic))
            except LabError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def mqadmin(self, *words: object) -> str:
        """Run RocketMQ's own command until it knows the broker; returns what it prints.

        A broker that was just started registers with the name server after it has opened its port.
        """
        command = [*self._command("org.apache.rocketmq.tools.command.MQAdminStartup", 192), *map(str, words)]
        command += ["-n", self.namesrv_address]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            done = subprocess.run(
                command, cwd=self.directory, env=self._environment, capture_output=True, text=True, timeout=START_S, check=False
            )
            printed = done.stdout + done.stderr
            if not any(text in printed for text in NOT_REGISTERED) or time.monotonic() > deadline:
                return printed
            time.sleep(0.5)

    def cli(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run `offset-adapter` against the adapter."""
        assert self.adapter is not None
        command = [sys.executable, "-m", "adapter"]
        environment = {**os.environ, "OFFSET_ADAPTER_ADDRESS": self.adapter.address}
        return subprocess.run(
            [*command, *map(str, words)], env=environment, capture_output=True, text=True, timeout=START_S, check=False
        )

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "ROCKETMQ_HOME": str(self.directory / "home"), "NAMESRV_ADDR": self.namesrv_address}

    def _command(self, main: str, heap: int, more: tuple[str, ...] = ()) -> list[str]:
        path = f"{_classes(self.version)}:{jars(self.version)}/*"  # our classes first: they silence the logs
        if main.endswith("BrokerStartup"):
            path = ":".join([f"{jars(self.version)}/*", *map(str, self.design.jars)])
        return ["java", f"-Xmx{heap}m", *JVM, *more, f"-Duser.home={self.directory}", "-cp", path, main]

    def _java(self, name: str, main: str, *arguments: str, heap: int, more: tuple[str, ...] = (), asked: bool = False) -> Child:
        environment = {"ROCKETMQ_HOME": str(self.directory / "home"), "NAMESRV_ADDR": ""}
        return Child(name, [*self._command(main, heap, more), *arguments], self.directory, environment, asked=asked)


def _quiet_port() -> int:
    """A port with free neighbours: a broker listens on the second one below and the next one above as well."""
    while True:
        port = random.randrange(*PORTS)
        try:
            with ExitStack() as probes:
                for each in (port - 2, port, port + 1):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", each))
        except OSError:
            continue
        return port


def pairs(lines: list[str]) -> Offsets:
    """Lines "queue offset": the last offset of each queue."""
    return {int(queue): int(offset) for queue, offset in (line.split() for line in lines)}


def noted(file: Path) -> list[tuple[int, int]]:
    """(queue, offset) of each whole line of a file that a client writes."""
    data = file.read_text() if file.exists() else ""
    return [(int(queue), int(offset)) for queue, offset in map(str.split, data[: data.rfind("\n") + 1].splitlines())]
