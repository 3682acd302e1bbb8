"""The commands in the documents that look at offsets and move them work as they stand there, one after the other."""

import shlex
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio.to_thread
import pytest

from adapter.model.bounds import ShardKey
from adapter.testing.broker_log import MemoryLog, serving
from adapter.testing.processes import adapter_process, ended, meta_process
from tests.acceptance.conftest import Ran, run
from tests.acceptance.documents import page, section
from tests.acceptance.exports import unpack
from tests.acceptance.helpers import offsets_of, send

OK = 0
SECTIONS = {
    "Watch the lag of groups": "watch-lag",
    "Why is this group behind?": "watch-lag",
    "Reset": "reset",
    "Delete, clone": "reset",
    "Commands": "import-export",
    "From RocketMQ's consumerOffset.json": "move-here",
    "From Kafka's group offsets": "move-here",
}
WRITTEN = {
    "Commands": ("offsets.csv", "offsets-of-two.json"),
    "From RocketMQ's consumerOffset.json": ("consumerOffset.json", "consumerOffsets/CURRENT"),
    "From Kafka's group offsets": ("offsets.csv", "offsets-of-one.csv"),
}
ROCKETMQ = Path(__file__).parents[1] / "data" / "rocketmq"
OFFSETS = {"orders/0": 50, "orders/1": 60}


def commands(title: str) -> list[str]:
    """The indented lines below a heading, without their comments."""
    lines = section(title, page(SECTIONS[title])).splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line.startswith("    ")]


def put_files(directory: Path) -> None:
    """The files that the text speaks of: RocketMQ's own, and Kafka's as its tool writes them."""
    config, client = directory / "store/config", directory / ".rocketmq_offsets/192.0.2.7@DEFAULT/my-group"
    for place in (config, client):
        place.mkdir(parents=True)
    shutil.copy(ROCKETMQ / "broker-5x.json", config / "consumerOffset.json")
    shutil.copy(ROCKETMQ / "client-5x.json", client / "offsets.json")
    for name, there in (("store-v1", "consumerOffsets"), ("store-v2", "rdb")):
        unpack(ROCKETMQ / f"{name}.tar.gz", config / there)
    (directory / "kafka.csv").write_text("my-group,orders,0,70\nkafka-group,orders,1,5\n")
    (directory / "kafka-of-one.csv").write_text("orders,1,80\n")


@asynccontextmanager
async def adapter_with_groups(directory: Path) -> AsyncIterator[tuple[str, str]]:
    """A Meta Service's address, and that of an adapter whose broker serves its log: 100 messages in each shard, the last now."""
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
            yield meta.address, adapter.address


def typed(line: str, meta: str, address: str, directory: Path) -> Ran:
    """What comes of a line of the document, as it is; a pipe is the only thing of a shell that there may be."""
    ran = Ran(OK, "", "")
    for command in line.split(" | "):
        name, *arguments = shlex.split(command)
        assert name == "offset-adapter", command
        ran = run(*arguments, cwd=directory, answer=ran.out, OFFSET_ADAPTER_ADDRESS=address, OFFSET_META_ADDRESS=meta)
        assert ran.code == OK, f"{command}: {ran.out}{ran.err}"
    return ran


@pytest.mark.parametrize("title", SECTIONS)
async def test_every_command_of_a_section_works(tmp_path_factory: pytest.TempPathFactory, title: str) -> None:
    """Exit code 0, in the order of the text."""
    directory = tmp_path_factory.mktemp("h")
    put_files(directory)
    assert len(commands(title)) >= 4
    async with adapter_with_groups(directory) as (meta, address):
        for command in commands(title):
            ran = await anyio.to_thread.run_sync(partial(typed, command, meta, address, directory))
            assert ("done: " in ran.out) == ("--execute" in command), command
        left = await anyio.to_thread.run_sync(partial(offsets_of, address, "other-group"))
    assert all((directory / name).exists() for name in WRITTEN.get(title, ()))
    assert left == {shard: offset for shard, offset in OFFSETS.items() if title != "Delete, clone" or shard != "orders/0"}
