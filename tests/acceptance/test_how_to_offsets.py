"""The commands in docs/how-to.md that move offsets work as they stand there, one after the other, on a group that is there."""

import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from adapter.bounds import ShardKey
from adapter.memory_log import MemoryLog, serving
from adapter.testing import adapter_process, ended, meta_process
from tests.acceptance.conftest import TIMEOUT_S
from tests.acceptance.helpers import offsets_of, send

HOW_TO = (Path(__file__).parents[2] / "docs" / "how-to.md").read_text()
TITLES = ("Move offsets (reset)", "Delete, clone", "Export and import")
OFFSETS = {"orders/0": 50, "orders/1": 60}


def commands(title: str) -> list[str]:
    """The indented lines below a heading, without their comments."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", HOW_TO, re.DOTALL | re.MULTILINE)
    assert found, title
    return [line.partition("  #")[0].strip() for line in found[1].splitlines() if line.startswith("    ")]


@asynccontextmanager
async def adapter_with_groups(directory: Path) -> AsyncIterator[str]:
    """The address of an adapter whose broker serves its log: 100 messages in each shard, the last of them now."""
    log, now_ms = MemoryLog(), time.time_ns() // 1_000_000
    for shard in OFFSETS:
        log.append(ShardKey("default", shard), *(now_ms - 1_000 * (100 - at) for at in range(100)))
    async with serving(log) as broker:
        meta = meta_process(directory)
        adapter = adapter_process(directory, meta.address, extra=f"[broker_log]\naddress = '{broker}'")
        with ended(adapter, meta):
            await anyio.to_thread.run_sync(meta.start)
            await anyio.to_thread.run_sync(adapter.start)
            for group in ("my-group", "other-group"):
                await anyio.to_thread.run_sync(partial(send, adapter.address, group, OFFSETS))
            yield adapter.address


def shell(command: str, address: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of the document, as it is."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=directory,
        env={**os.environ, "PATH": path, "OFFSET_ADAPTER_ADDRESS": address},
    )


@pytest.mark.parametrize("title", TITLES)
async def test_every_command_of_a_section_works(tmp_path_factory: pytest.TempPathFactory, title: str) -> None:
    """Exit code 0, in the order of the text."""
    directory = tmp_path_factory.mktemp("h")
    assert len(commands(title)) >= 4
    async with adapter_with_groups(directory) as address:
        for command in commands(title):
            assert command.startswith("offset-adapter ")
            ran = await anyio.to_thread.run_sync(partial(shell, command, address, directory))
            assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
            assert ("done: " in ran.stdout) == ("--execute" in command), command
        left = await anyio.to_thread.run_sync(partial(offsets_of, address, "other-group"))
    assert left == {shard: offset for shard, offset in OFFSETS.items() if title != "Delete, clone" or shard != "orders/0"}
