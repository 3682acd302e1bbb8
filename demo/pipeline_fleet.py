"""The processes of the pipeline's demo, and the commands that a person would type. Everything is below one directory."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import pyarrow as pa
import pyarrow.parquet as pq

from adapter.client import OffsetClient
from adapter.config import MetaSection
from adapter.meta_client import GrpcMetaClient
from adapter.model import OffsetKey
from adapter.requests import DEFAULT_PAGE
from adapter.testing import ServiceProcess, adapter_process, ended, meta_process
from demo.cluster import DemoError

SEGMENT_AGE_MS = 1_000
MASTER = "local[2]"
COMMAND_LIMIT_S = 120.0

Told = Callable[[str], None]


@dataclass(frozen=True)
class Broker:
    """A broker's machine: its adapter, the journal that this writes, and the broker's client."""

    name: str
    adapter: ServiceProcess
    journal: Path
    client: OffsetClient

    async def dirty(self) -> int:
        """Keys that the Meta Service has not acknowledged."""
        return (await self.client.status()).dirty_keys


@dataclass(frozen=True)
class Fleet:
    """A Meta Service and brokers, not started. `command`: who is told of each command that is run."""

    directory: Path
    meta: ServiceProcess
    brokers: Sequence[Broker]
    command: Told

    @classmethod
    @asynccontextmanager
    async def open(cls, directory: Path, brokers: int, command: Told) -> AsyncIterator["Fleet"]:
        """Prepare all; at the end kill what still runs."""
        meta = meta_process(directory)
        async with AsyncExitStack() as stack:
            stack.enter_context(ended(meta))
            made = []
            for number in range(1, brokers + 1):
                broker = await _broker(stack, directory, f"broker-{number}", meta.address)
                made.append(broker)
            yield cls(directory, meta, made, command)

    async def start(self) -> None:
        """Start the Meta Service, then all adapters."""
        await anyio.to_thread.run_sync(self.meta.start)
        async with anyio.create_task_group() as tasks:
            for broker in self.brokers:
                tasks.start_soon(anyio.to_thread.run_sync, broker.adapter.start)

    async def remote_offsets(self) -> dict[OffsetKey, int]:
        """All that the Meta Service lists."""
        found: dict[OffsetKey, int] = {}
        token = b""
        async with GrpcMetaClient.open(MetaSection(endpoints=(self.meta.address,))) as client:
            while True:
                page, token = await client.list_page("", "", DEFAULT_PAGE, token)
                found |= {key: record.offset for key, record in page}
                if not token:
                    return found

    async def job(self, *arguments: str, accepted: Sequence[int] = (0,)) -> str:
        """Run `offset-adapter-spark`; returns what it printed. Raises DemoError with it for another exit code."""
        config = self.directory / "job.toml"
        self.command(shlex.join(["offset-adapter-spark", *arguments, "--config", "job.toml"]))
        return await _run(["adapter.pipeline", *arguments, "--config", str(config), "--master", MASTER], accepted)

    async def snapshot(self, broker: Broker, output: Path) -> str:
        """Run `offset-adapter snapshot` at a broker; returns what it printed. Raises DemoError."""
        shown = ["offset-adapter", "snapshot", "--output", f"{output.name}/"]
        self.command(f"{shlex.join(shown)}     # on {broker.name}")
        return await _run(["adapter", "snapshot", "--address", broker.adapter.address, "--output", str(output)])


async def _broker(stack: AsyncExitStack, directory: Path, name: str, meta: str) -> Broker:
    home = directory / name
    journal = home / "journal"
    extra = f"""
[journal]
path = '{journal}'
broker = '{name}'
segment_max_age_ms = {SEGMENT_AGE_MS}
[recovery]
timeout_ms = 500
"""
    adapter = adapter_process(home, meta, extra=extra)
    stack.enter_context(ended(adapter))
    client = await stack.enter_async_context(OffsetClient.connect(adapter.address, resend=False))
    return Broker(name, adapter, journal, client)


async def _run(module: Sequence[str], accepted: Sequence[int] = (0,)) -> str:
    """Run a command of ours to its end; if this is cancelled, end it and all that it started."""
    process = await anyio.open_process(
        [sys.executable, "-m", *module],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "110"},
    )
    text = b""
    try:
        with anyio.fail_after(COMMAND_LIMIT_S):
            assert process.stdout is not None
            async for part in process.stdout:
                text += part
            code = await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.wait()
        await process.aclose()
    if code not in accepted:
        raise DemoError(f"{shlex.join(module)} ended with {code}:\n{text.decode(errors='replace')}")
    return text.decode(errors="replace")


def journaled(journal: Path) -> dict[OffsetKey, int]:
    """The newest offset of each key in the finished segments of one run of an adapter."""
    columns = ["seq", "kind", "namespace", "group", "shard", "offset"]
    tables = [pq.ParquetFile(path).read(columns) for path in sorted(journal.glob("date=*/broker=*/*.parquet"))]
    if not tables:
        return {}
    rows = pa.concat_tables(tables).sort_by("seq").to_pylist()
    return {OffsetKey(row["namespace"], row["group"], row["shard"]): row["offset"] for row in rows if row["kind"] != "heartbeat"}
