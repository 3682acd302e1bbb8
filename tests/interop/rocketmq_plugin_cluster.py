"""A real name server and broker of RocketMQ with the plugin, beside a real adapter and Meta Service, and RocketMQ's own clients.

`install-rocketmq.sh` fetches and `make plugin` builds what is used here.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import grpc

from adapter.rpc import offsets_grpc, offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, free_port, meta_process
from adapter.testing.waiting import PATIENCE_S

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-adapter-interop"
SOURCES = Path(__file__).parent / "rocketmq_plugin_java"
PLUGIN = Path(__file__).parents[2] / "integrations/rocketmq/target/offset-adapter-rocketmq.jar"
SILENT = Path(__file__).parent / "java/silent.xml"
VERSION = "5.3.3"
OTHERS = ("5.2.0", "5.4.0")
SMALL = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms64m", "-Xmx256m", "-XX:MaxDirectMemorySize=256m")
POLL_S = 0.05
TERM_S = 120.0
TERM_CODE = 128 + signal.SIGTERM  # of a JVM whose shutdown hooks have run


def jars(version: str = VERSION) -> Path:
    """The directory of a version's jars: broker, name server, tools, and all that they depend on."""
    return CACHE / f"rocketmq-{version}"


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 3 * PATIENCE_S) -> Any:
    """What `condition` returns once it is true. Raises TimeoutError that says what did not come."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(POLL_S)
    return found


@dataclass
class Java:
    """A JVM of this test."""

    name: str
    root: Path
    classpath: str
    arguments: list[str]
    process: subprocess.Popen[str] | None = None

    @property
    def log(self) -> str:
        """All that its processes have written to stdout and stderr."""
        path = self.root / f"{self.name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def launch(self, **pipes: int) -> None:
        """Start it without waiting."""
        with (self.root / f"{self.name}.log").open("a") as log:
            self.process = subprocess.Popen(
                ["java", *SMALL, f"-Duser.home={self.root}", "-cp", self.classpath, *self.arguments],
                stdin=pipes.get("stdin", subprocess.DEVNULL),
                stdout=pipes.get("stdout", log.fileno()),
                stderr=log,
                text=True,
                cwd=self.root,
                env={**os.environ, "ROCKETMQ_HOME": str(self.root), "NAMESRV_ADDR": ""},
            )

    def wait_line(self, line: str, seen: int = 0) -> None:
        """Wait until its log has a text more than `seen` times. Raises RuntimeError with the log when it ends before."""

        def there() -> bool:
            if self.log.count(line) > seen:
                return True
            if self.process is None or self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended:\n{self.log[-4000:]}")
            return False

        wait_for(there, f"{self.name}: {line}")

    def kill(self) -> None:
        """SIGKILL."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait until it has ended by that."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(TERM_S)
        assert code == TERM_CODE, f"{self.name} ended with {code}:\n{self.log[-2000:]}"


@dataclass
class Broker:
    """`broker-a`. Each start is one life of it; its files stay."""

    root: Path
    namesrv: str
    lines: str = ""
    version: str = VERSION
    plugin: bool = True
    name: str = "broker"
    broker_id: int = 0
    port: int = 0
    java: Java | None = None

    def __post_init__(self) -> None:
        """Choose a port."""
        self.port = self.port or _broker_port()

    @property
    def address(self) -> str:
        """Its remoting address."""
        return f"127.0.0.1:{self.port}"

    @property
    def store(self) -> Path:
        """Its files."""
        return self.root / f"store-{self.name}"

    @property
    def offsets_file(self) -> Path:
        """Its own file of offsets."""
        return self.store / "config/consumerOffset.json"

    @property
    def output(self) -> str:
        """What all its lives wrote to stdout and stderr."""
        return self.java.log if self.java else ""

    def launch(self) -> int:
        """Start it without waiting. Returns how often its log says that a broker has started."""
        conf = self.root / f"{self.name}.conf"
        role = "SLAVE" if self.broker_id else "ASYNC_MASTER"
        conf.write_text(
            f"brokerClusterName=c\nbrokerName=broker-a\nbrokerId={self.broker_id}\nbrokerRole={role}\nnamesrvAddr={self.namesrv}\n"
            f"brokerIP1=127.0.0.1\nlistenPort={self.port}\nbindAddress=127.0.0.1\nhaListenPort={self.port + 2}\n"
            f"storePathRootDir={self.store}\nstorePathCommitLog={self.store}/commitlog\nmappedFileSizeCommitLog=16777216\n"
            "mappedFileSizeConsumeQueue=600000\nmaxTransferBytesOnMessageInMemory=1048576\ndiskMaxUsedSpaceRatio=99\n"
            f"autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=true\n{self.lines}\n"
        )
        logback = self.root / "conf/logback_broker.xml"  # 4.9 does not start without it
        logback.parent.mkdir(exist_ok=True)
        shutil.copyfile(SILENT, logback)
        classpath = f"{jars(self.version)}/*" + (f":{PLUGIN}" if self.plugin else "")
        main = "org.apache.rocketmq.broker.BrokerStartup"
        self.java = Java(self.name, self.root, classpath, [main, "-c", str(conf)])
        seen = self.java.log.count("boot success")
        self.java.launch()
        return seen

    def start(self) -> None:
        """Start it, and wait until it serves."""
        seen = self.launch()
        assert self.java is not None
        self.java.wait_line("boot success", seen)

    def kill(self) -> None:
        """SIGKILL."""
        if self.java:
            self.java.kill()

    def stop(self) -> None:
        """SIGTERM, and wait until it has ended by that."""
        assert self.java is not None
        self.java.stop()

    def own_offsets(self) -> dict[str, dict[str, int]]:
        """What its own file has: topic@group -> queue -> offset."""
        text = re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', self.offsets_file.read_text())
        table: dict[str, dict[str, int]] = json.loads(text)["offsetTable"]
        return table


class Clients:
    """RocketMQ's own clients, see Clients.java. A method is a command; a failed one raises RuntimeError."""

    def __init__(self, root: Path, namesrv: str, broker: str) -> None:
        self._java = Java(
            "clients", root, f"{_classes()}:{jars()}/*", ["-Drocketmq.client.logUseSlf4j=true", "Clients", namesrv, broker]
        )
        self._java.launch(stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def do(self, *fields: str | int) -> str:
        """One command; returns its answer."""
        process = self._java.process
        assert process is not None
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("\t".join(map(str, fields)) + "\n")
        stdin.flush()
        answer = stdout.readline()
        text = answer.rstrip("\n").replace("\\n", "\n").replace("\\\\", "\\")
        if not answer or text.startswith("error "):
            raise RuntimeError(f"{fields}: {text or self._java.log[-2000:]}")
        return text

    def query(self, group: str, topic: str, queue: int) -> int | None:
        """The offset that the broker tells a consumer; None if it has none."""
        answer = self.do("query", group, topic, queue)
        return None if answer.startswith("none") else int(answer)

    def mqadmin(self, *arguments: str | int) -> str:
        """What `mqadmin` prints."""
        return self.do("mqadmin", *arguments)

    def close(self) -> None:
        """End it."""
        self._java.kill()
        process = self._java.process
        assert process is not None
        for pipe in (process.stdin, process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@dataclass
class Cluster:
    """All of it."""

    root: Path
    meta: ServiceProcess
    adapter: ServiceProcess
    namesrv: Java
    broker: Broker
    clients: Clients
    brokers: list[Broker] = field(default_factory=list)

    def cli(self, *arguments: str | int, adapter: ServiceProcess | None = None) -> str:
        """What `offset-adapter` prints. Raises CalledProcessError."""
        address = (adapter or self.adapter).address
        command = [sys.executable, "-m", "adapter", *map(str, arguments)]
        env = {**os.environ, "OFFSET_ADAPTER_ADDRESS": address, "COLUMNS": "250"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def offsets(self, group: str) -> dict[str, int]:
        """What the adapter has of a group: shard -> offset."""
        return {shard: offset for shard, (_, offset) in positions(self.adapter, group).items()}

    def status(self) -> dict[str, str]:
        """The plugin's lines of `mqadmin brokerStatus`."""
        lines = self.clients.mqadmin("brokerStatus", "-b", self.broker.address).splitlines()
        pairs = (line.split(":", 1) for line in lines if line.startswith("offsetAdapter"))
        return {name.strip(): value.strip() for name, value in pairs}


@contextmanager
def cluster(
    root: Path, lines: str = "", *, version: str = VERSION, plugin: bool = True, start: bool = True, log_address: bool = False
) -> Iterator[Cluster]:
    """A cluster with all of its processes running, the broker unless `start` is false. `lines` are of broker.conf."""
    meta = meta_process(root / "m")
    log_port = free_port()
    extra = f"[broker_log]\naddress = '127.0.0.1:{log_port}'\n" if log_address else ""
    adapter = adapter_process(root / "s", meta.address, extra=extra)
    namesrv_port = free_port()
    conf = root / "namesrv.conf"
    conf.write_text(f"listenPort={namesrv_port}\nbindAddress=127.0.0.1\nkvConfigPath={root}/kv.json\n")
    namesrv = Java("namesrv", root, f"{jars()}/*", ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(conf)])
    settings = f"offsetAdapterAddress=unix:{adapter.socket}\n" if plugin else ""
    if log_address:
        settings += f"offsetAdapterLogAddress=127.0.0.1:{log_port}\n"
    broker = Broker(root, f"127.0.0.1:{namesrv_port}", settings + lines, version, plugin)
    found: Cluster | None = None
    try:
        meta.start()
        adapter.start()
        namesrv.launch()
        namesrv.wait_line("boot success")
        if start:
            broker.start()
        found = Cluster(root, meta, adapter, namesrv, broker, Clients(root, broker.namesrv, broker.address), [broker])
        yield found
    finally:
        for each in found.brokers if found else [broker]:
            each.kill()
        if found:
            found.clients.close()
        namesrv.kill()
        adapter.kill()
        meta.kill()


def positions(adapter: ServiceProcess, group: str) -> dict[str, tuple[int, int]]:
    """What an adapter has of a group: shard -> (epoch, offset)."""
    with grpc.insecure_channel(adapter.address) as channel:
        stub = offsets_grpc.OffsetAdminStub(channel)
        reply = stub.DescribeGroup(offsets_pb.DescribeGroupRequest(namespace="default", group=group), timeout=PATIENCE_S)
    live = (row for row in reply.shards if row.HasField("local") and not row.local.deleted)
    return {row.shard: (row.local.epoch, row.local.offset) for row in live}


def acknowledged(file: Path) -> dict[int, int]:
    """The highest acknowledged offset of each queue, from whole lines of QUEUE OFFSET."""
    highest: dict[int, int] = {}
    for queue, offset in lines_of(file):
        highest[queue] = max(offset, highest.get(queue, 0))
    return highest


def lines_of(file: Path) -> list[tuple[int, int]]:
    """The whole lines of QUEUE OFFSET."""
    data = file.read_text() if file.exists() else ""
    rows = (line.split() for line in data[: data.rfind("\n") + 1].splitlines())
    return [(int(queue), int(offset)) for queue, offset in rows]


def _broker_port() -> int:
    """A free port whose neighbours are free as well: brokers also listen two below it, and here two above it."""
    while True:
        port = free_port()
        with socket.socket() as below, socket.socket() as above:
            try:
                below.bind(("127.0.0.1", port - 2))
                above.bind(("127.0.0.1", port + 2))
            except OSError:
                continue
        return port


@cache
def _classes() -> Path:
    classes = CACHE / "rocketmq-plugin-classes"
    shutil.rmtree(classes, ignore_errors=True)
    subprocess.run(
        ["javac", "-nowarn", "-cp", f"{jars()}/*", "-d", str(classes), *map(str, SOURCES.glob("*.java"))],
        check=True,
        timeout=PATIENCE_S * 4,
    )
    return classes
