"""The processes of the pipeline's demo, and the commands that it runs. All files are below one directory."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import anyio
import anyio.abc
import anyio.to_thread
import pyarrow.parquet as pq
from anyio.streams.text import TextReceiveStream

from adapter.client import OffsetClient
from adapter.model.records import OffsetKey
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from demo.cluster import DemoError, listed
from demo.pipeline_driver import DONE

SEGMENT_AGE_MS = 1_000
COMMAND_LIMIT_S = 300.0  # far above the duration of a job

_ENDED = re.compile(rf"{DONE}\d+\n")

OnCommand = Callable[[str], None]


@dataclass(frozen=True)
class Broker:
    """A broker's machine: its adapter, the adapter's journal, and the broker's client."""

    name: str
    adapter: ServiceProcess
    journal: Path
    client: OffsetClient

    async def dirty(self) -> int:
        """The number of keys that the Meta Service has not acknowledged."""
        return (await self.client.status()).dirty_keys


@dataclass(frozen=True)
class Fleet:
    """A Meta Service and brokers, not started. `command` is called with each command line that is run."""

    directory: Path
    meta: ServiceProcess
    brokers: Sequence[Broker]
    command: OnCommand

    @classmethod
    @asynccontextmanager
    async def open(cls, directory: Path, brokers: int, command: OnCommand) -> AsyncIterator["Fleet"]:
        """Prepare all; at the end kill the processes that still run."""
        meta = meta_process(directory)
        async with AsyncExitStack() as stack:
            stack.enter_context(ended(meta))
            made = []
            for number in range(1, brokers + 1):
                broker = await _broker(stack, directory, f"broker-{number}", meta.address)
                made.append(broker)
            yield cls(directory, meta, made, command)

    async def start_adapters(self) -> None:
        """Start all adapters."""
        for broker in self.brokers:
            broker.adapter.launch()
        for broker in self.brokers:
            await anyio.to_thread.run_sync(broker.adapter.wait_ready)

    async def remote_offsets(self) -> dict[OffsetKey, int]:
        """All offsets in the Meta Service."""
        return {key: record.offset for key, record in (await listed(self.meta.address)).items()}

    async def snapshot(self, broker: Broker, output: Path) -> str:
        """Run `offset-adapter snapshot` for a broker; returns its output. Raises DemoError."""
        shown = ["offset-adapter", "snapshot", "--output", f"{output.name}/"]
        self.command(f"{shlex.join(shown)}     # on {broker.name}")
        return await run(["adapter", "snapshot", "--address", broker.adapter.address, "--output", str(output)])


async def _broker(stack: AsyncExitStack, directory: Path, name: str, meta: str) -> Broker:
    home = directory / name
    journal = home / "journal"
    extra = f"""
[journal]
path = '{journal}'
segment_max_age_ms = {SEGMENT_AGE_MS}
[recovery]
timeout_ms = 500
"""
    adapter = adapter_process(home, meta, top=f"broker = '{name}'", extra=extra)
    stack.enter_context(ended(adapter))
    client = await stack.enter_async_context(OffsetClient.connect(adapter.address, resend=False))
    return Broker(name, adapter, journal, client)


async def run(module: Sequence[str], accepted: Sequence[int] = (0,)) -> str:
    """Run a module as a command; returns its output. Raises DemoError if its exit code is not in `accepted`."""
    async with _process(module, subprocess.DEVNULL, subprocess.STDOUT) as process:
        assert process.stdout is not None
        text = b""
        async for part in process.stdout:
            text += part
        code = await process.wait()
    return _accepted(module, text.decode(errors="replace"), code, accepted)


class Driver:
    """The process with the Spark session of the demo, which starts in the background."""

    def __init__(self, process: anyio.abc.Process, log: Path, command: OnCommand) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        self._requests = process.stdin
        self._output = TextReceiveStream(process.stdout)
        self._log = log
        self._command = command

    @classmethod
    @asynccontextmanager
    async def open(cls, directory: Path, command: OnCommand) -> AsyncIterator["Driver"]:
        """Start it for the job.toml in a directory; it is killed at the end, even during a job."""
        path = directory / "spark.log"
        java = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -Djava.io.tmpdir={directory}"
        temporary = {"SPARK_LOCAL_DIRS": str(directory), "JDK_JAVA_OPTIONS": java.strip()}
        module = "demo.pipeline_driver", str(directory / "job.toml")
        with path.open("wb") as log:
            async with _process(module, subprocess.PIPE, log, temporary) as process:
                yield cls(process, path, command)

    async def job(self, *words: str) -> str:
        """Run a job as `offset-adapter-spark` does; returns its output. Raises DemoError if its exit code is not 0."""
        self._command(shlex.join(["offset-adapter-spark", *words, "--config", "job.toml"]))
        await self._requests.send(f"{json.dumps(words)}\n".encode())
        text = ""
        with anyio.fail_after(COMMAND_LIMIT_S):
            while not _ENDED.search(text):
                try:
                    text += await self._output.receive()
                except anyio.EndOfStream:
                    log = self._log.read_text(errors="replace")
                    raise DemoError(f"Spark ended in the job {words[0]}:\n{text}{log}") from None
        said, _, code = text.partition(DONE)
        return _accepted(words, said, int(code), (0,))


@asynccontextmanager
async def _process(
    module: Sequence[str], stdin: int, stderr: int | IO[bytes], environment: Mapping[str, str] | None = None
) -> AsyncIterator[anyio.abc.Process]:
    """Start a module as a process, with this beside our environment; at the end it is killed with all its children."""
    process = await anyio.open_process(
        [sys.executable, "-m", *module],
        stdin=stdin,
        stderr=stderr,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "110", **(environment or {})},
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.wait()
            await process.aclose()


def _accepted(words: Sequence[str], text: str, code: int, accepted: Sequence[int]) -> str:
    if code not in accepted:
        raise DemoError(f"{shlex.join(words)} ended with {code}:\n{text}")
    return text


class Journaled(NamedTuple):
    """The finished segments of one run of an adapter, up to the last one with a commit, and the newest offset of each key."""

    segments: Sequence[Path]
    offsets: Mapping[OffsetKey, int]


def journaled(journal: Path) -> Journaled:
    """The state of a journal. Later segments without a commit are ignored, so that it ends when the load ends."""
    told: list[Path] = []
    later: list[Path] = []
    offsets: dict[OffsetKey, int] = {}
    for path in sorted(journal.glob("date=*/broker=*/*.parquet")):
        later.append(path)
        rows = pq.ParquetFile(path).read(["kind", "namespace", "group", "shard", "offset"]).to_pylist()
        if found := {_key(row): row["offset"] for row in rows if row["kind"] != "heartbeat"}:
            told, later = told + later, []
            offsets |= found
    return Journaled(told, offsets)


def _key(row: Mapping[str, str]) -> OffsetKey:
    return OffsetKey(row["namespace"], row["group"], row["shard"])
