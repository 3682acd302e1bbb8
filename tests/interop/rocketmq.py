"""RocketMQ's brokers and clients of some version, as far as they keep offsets: the programs in `java/`, compiled and run.

A program's input and output are lines of fields parted by tabs; java/BrokerOffsets.java says which.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-adapter-interop"
SOURCES = Path(__file__).parent / "java"
SILENT = ("rmq.logback-test.xml", "logback-test.xml")  # as 5.x and 4.x look for it
SECONDS_MAX = 120
TRIES = 3

Line = tuple[str | int, ...]


class Kind(NamedTuple):
    """A way in which brokers of a version keep offsets, the lines of broker.conf that choose it, and where they are then."""

    version: str
    name: str
    lines: str
    place: str


KINDS = [
    Kind("4.9.7", "json", "", "consumerOffset.json"),
    Kind("4.9.7", "lmq", "enableLmq=true", "lmqConsumerOffset.json"),
    Kind("5.3.3", "json", "", "consumerOffset.json"),
    Kind("5.3.3", "lmq", "enableLmq=true", "lmqConsumerOffset.json"),
    Kind("5.3.3", "v1", "storeType=defaultRocksDB", "consumerOffsets"),
    Kind("5.3.3", "v2", "configManagerVersion=v2", "rdb"),
    Kind("5.5.0", "json", "", "consumerOffset.json"),
    Kind("5.5.0", "lmq", "enableLmq=true", "lmqConsumerOffset.json"),
    Kind("5.5.0", "v1", "storeType=defaultRocksDB", "consumerOffsets"),
    Kind("5.5.0", "v2", "configManagerVersion=v2", "rdb"),
]
# One store for all that a broker keeps. It cannot be written here, since topics and groups are in it.
SINGLE = Kind("5.5.0", "single", "storeType=defaultRocksDB\nuseSingleRocksDBForAllConfigs=true", "metadata")


def newest(name: str) -> Kind:
    """The kind of this name of the newest version."""
    return next(kind for kind in reversed(KINDS) if kind.name == name)


@dataclass(frozen=True)
class Broker:
    """A broker that keeps its files below `root`. Each call is one life of it."""

    kind: Kind
    root: Path

    @property
    def offsets(self) -> Path:
        """Its file or store of offsets."""
        return self.root / "store/config" / self.kind.place

    def write(self, lines: Iterable[Line]) -> None:
        """It takes these in, persists and stops."""
        self._run("write", lines)

    def halt(self, lines: Iterable[Line]) -> None:
        """It takes these in, persists and is killed."""
        self._run("halt", lines)

    def load(self, questions: Iterable[Line] = ()) -> list[str]:
        """All offsets that it has after its start, sorted, then its answers."""
        return self._run("load", questions).splitlines()

    def encode(self) -> str:
        """Its table, as it encodes it."""
        return self._run("encode", ())

    @contextmanager
    def running(self, lines: Iterable[Line]) -> Iterator[None]:
        """It takes these in, persists, and has its files open; frozen, so that what changes in them is not its own doing."""
        with subprocess.Popen(self._command("hold"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(_text(lines))
                process.stdin.close()
                assert process.stdout.readline() == "ready\n"
                process.send_signal(signal.SIGSTOP)
                os.waitpid(process.pid, os.WUNTRACED)  # until it has stopped
                yield
            finally:
                process.kill()

    def _run(self, command: str, lines: Iterable[Line]) -> str:
        return _run(self._command(command), lines)

    def _command(self, command: str) -> list[str]:
        self.root.mkdir(exist_ok=True)
        conf = self.root / "broker.conf"
        conf.write_text(f"storePathRootDir={self.root}/store\n{self.kind.lines}\n")
        return [*_java(self.kind.version), f"-Duser.home={self.root}", "BrokerOffsets", command, str(conf)]


@dataclass(frozen=True)
class Client:
    """A broadcasting client and its group, with its files below `root`."""

    version: str
    root: Path
    name: str = "10.0.0.1@1"
    group: str = "g"

    @property
    def offsets(self) -> Path:
        """Its file of offsets."""
        return self.root / self.name / self.group / "offsets.json"

    def write(self, lines: Iterable[Line]) -> None:
        """It takes in (broker, topic, queue, offset) and persists."""
        self._run("write", lines)

    def load(self) -> list[str]:
        """All offsets that it has after its start, sorted."""
        return self._run("load", ()).splitlines()

    def _run(self, command: str, lines: Iterable[Line]) -> str:
        where = [f"-Drocketmq.client.localOffsetStoreDir={self.root}", f"-Duser.home={self.root}"]
        return _run([*_java(self.version), *where, "ClientOffsets", command, self.name, self.group], lines)


def _text(lines: Iterable[Line]) -> str:
    return "".join("\t".join(map(str, line)) + "\n" for line in lines)


def _run(command: list[str], lines: Iterable[Line]) -> str:
    text = _text(lines)
    for tries in range(TRIES):
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        # RocketMQ's store of version 2 may still be used by a thread of its own when it is closed, and aborts then.
        if done.returncode != -signal.SIGABRT or "pthread lock" not in done.stderr or tries == TRIES - 1:
            break
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def _java(version: str) -> tuple[str, ...]:
    """How a program is run against a version's jars."""
    jars = CACHE / f"rocketmq-{version}"
    classes = Path(mkdtemp(prefix="offset-adapter-interop-"))
    subprocess.run(
        ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), *map(str, SOURCES.glob("*.java"))],
        check=True,
        timeout=SECONDS_MAX,
    )
    for name in SILENT:
        shutil.copyfile(SOURCES / "silent.xml", classes / name)
    return ("java", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{jars}/*")
