"""Files of offsets that real RocketMQ brokers take over at their start. `make interop` runs it: RocketMQ's jars are needed."""

import json
import re
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import anyio
import pytest

from adapter.formats import files
from adapter.formats.files import Format
from adapter.formats.rows import Naming, OffsetRow
from adapter.rocketmq.broker import connected
from adapter.rocketmq.config import RocketmqSection
from adapter.testing.waiting import PATIENCE_S
from demo.rocketmq.designs import Design, design_of
from demo.rocketmq.lab import CLUSTER, Lab, Offsets

pytestmark = pytest.mark.timeout(1_200)  # up to seven starts and stops of a broker

VERSION = "5.5.0"
V1, V2 = "storeType=defaultRocksDB", "configManagerVersion=v2"
SINGLE = f"{V1}\nuseSingleRocksDBForAllConfigs=true"
LMQ = "enableLmq=true\nenableMultiDispatch=true"
PATIENT_S = 3 * PATIENCE_S  # a JVM has to start meanwhile, beside others
OFFSETS = {0: 51, 1: 52, 2: 53, 3: 54}


def lab(settings: str = "") -> AbstractContextManager[Lab]:
    """A stock broker, not started."""
    return Lab.open(design_of("stock"), VERSION, settings)


def lab_with_adapter(settings: str = "") -> AbstractContextManager[Lab]:
    """A stock broker, not started, and an adapter that does not know of it."""
    return Lab.open(Design("files"), VERSION, settings)


def run(here: Lab, *words: object) -> str:
    """What `offset-adapter` says beside its table. It has to succeed."""
    ran = here.cli(*words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stderr


def commit_here(here: Lab, group: str, offsets: Offsets) -> None:
    """Commits to the adapter, not to the broker."""
    for queue, offset in offsets.items():
        run(here, "commit", group, f"T/{queue}", offset)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something in other processes."""
    deadline = time.monotonic() + PATIENT_S
    while not condition():
        assert time.monotonic() < deadline, f"still not so: {what}"
        time.sleep(0.2)


def commit(here: Lab, offsets: Offsets) -> None:
    """Acknowledged commits of the group g."""
    for queue, offset in offsets.items():
        here.ask("update", "g", "T", queue, offset)
    assert here.query("g", "T") == offsets


def on_disk(store: Path) -> Offsets:
    """What a RocksDB store has of the group g."""
    rows = list(files.read(store, Format.ROCKETMQ_ROCKSDB, Naming()))
    return {row.partition: row.offset for row in rows if isinstance(row, OffsetRow) and row.group == "g"}


def stop(here: Lab) -> None:
    """The broker writes its files and ends."""
    assert here.broker is not None
    here.broker.stop()
    here.broker = None


def restart(here: Lab, settings: str) -> Offsets:
    """What a consumer of the group g is answered after a start with these settings. V2 does not know the topic any more."""
    here.settings = settings
    here.start_broker()
    make = ("updateTopic", "-b", here.broker_address, "-t", "T", "-r", "4", "-w", "4")
    until(lambda: "success" in here.mqadmin(*make), "the topic is there")
    here.mqadmin("updateSubGroup", "-c", CLUSTER, "-g", "g")
    return here.query("g", "T")


@pytest.mark.parametrize("settings", [V1, V2], ids=["v1", "v2"])
def test_groups_go_on_when_their_broker_is_switched_to_rocksdb(settings: str) -> None:
    """V1 by JSON that is exported here, V2 by its own form. By the broker's own file they start as new."""
    with lab() as here:
        here.start_broker()
        here.ask("send", "T", 400)
        commit(here, OFFSETS)
        stop(here)
        file = here.config / "consumerOffset.json"
        rows = sorted(row for row in files.read(file, Format.ROCKETMQ_BROKER, Naming()) if isinstance(row, OffsetRow))
        assert {row.partition: row.offset for row in rows} == OFFSETS
        assert restart(here, settings) != OFFSETS, "the broker's own file is ignored, in silence"
        stop(here)
        if settings == V1:
            shutil.rmtree(here.config / "consumerOffsets")
            files.write(file, Format.ROCKETMQ_BROKER, rows, Naming())
        else:
            shutil.rmtree(here.config / "rdb")
            files.write(here.config / "rdb", Format.ROCKETMQ_ROCKSDB, rows, Naming(), "v2")
        assert restart(here, settings) == OFFSETS


def test_with_light_queues_a_broker_keeps_all_groups_in_a_file_of_another_name() -> None:
    """Neither it nor an export to the other file counts: an import says which one is alive, an export who reads it."""
    with lab_with_adapter() as here:
        here.start_broker()
        here.ask("send", "T", 400)
        commit(here, dict.fromkeys(OFFSETS, 15))
        stop(here)
        dead, alive = here.config / "consumerOffset.json", here.config / "lmqConsumerOffset.json"
        before = dead.read_bytes()
        assert restart(here, LMQ) == dict.fromkeys(OFFSETS, 0), "the broker's own file is ignored, in silence"
        commit(here, OFFSETS)
        stop(here)
        assert dead.read_bytes() == before, "nor is it written"
        told = run(here, "import", dead)
        assert "lmqConsumerOffset.json beside it was written later" in told
        assert "a broker with enableLmq=true keeps all its groups there" in told
        assert "was written later" not in run(here, "import", alive, "--execute")
        later = {queue: offset + 10 for queue, offset in OFFSETS.items()}
        commit_here(here, "g", later)
        assert "one with enableLmq=true reads lmqConsumerOffset.json alone" in run(here, "export", "-o", dead)
        assert restart(here, LMQ) == OFFSETS
        stop(here)
        dead.unlink()
        assert "only a broker with enableLmq=true reads the file" in run(here, "export", "-o", alive)
        assert restart(here, LMQ) == later


def test_a_single_store_goes_back_to_an_export_with_less() -> None:
    """The counter of an export is a time, above any of the broker's. So `export` does not write one beside a store with more."""

    def commit_and_stop() -> None:
        commit(here, OFFSETS)
        until(lambda: on_disk(store) == OFFSETS, "they are stored: such a broker stores nothing at its stop")
        stop(here)

    with lab_with_adapter(SINGLE) as here:
        store, export = here.config / "metadata", here.config / "consumerOffsets"
        here.start_broker()
        here.ask("send", "T", 400)
        here.ask("update", "h", "T", 0, 7)
        commit_and_stop()
        assert not export.exists()
        commit_here(here, "g", {0: 15, 3: 54})
        words = ("export", "g", "--format", "rocketmq-rocksdb", "-o")
        refused = here.cli(*words, export)
        assert (refused.returncode, export.exists()) == (2, False)
        assert "metadata beside it has larger offsets for 1 shard, as 'T/0' of group 'g': 51, here 15" in refused.stderr
        assert "useSingleRocksDBForAllConfigs=true takes the store over" in run(here, *words, here.directory / "elsewhere")
        shutil.copytree(here.directory / "elsewhere", export)
        assert restart(here, SINGLE) == {0: 15, 1: 0, 2: 0, 3: 54}, "nor has it the queues that are not in the export"
        assert here.query("h", "T")[0] == 7
        commit_and_stop()
        assert restart(here, SINGLE) == OFFSETS, "once"
        stop(here)
        shutil.rmtree(export)
        run(here, "import", store, "--execute")
        later = {queue: offset + 10 for queue, offset in OFFSETS.items()}
        commit_here(here, "g", later)
        assert "that the export has not" not in run(here, *words, export)
        assert restart(here, SINGLE) == later
        stop(here)
        told = run(here, "export", "g", "-o", here.config / "consumerOffset.json")
        assert "metadata beside it has 1 offset that the export has not, as 'T/0' of group 'h': 7" in told
        assert restart(here, SINGLE) == later
        assert here.query("h", "T")[0] == 0


def test_a_reset_of_a_light_queue_without_an_offset_blocks_its_commits() -> None:
    """All answer success: the reset stores nothing, and later commits are dropped until a consumer has pulled."""

    async def play(address: str) -> tuple[bytes, bytes]:
        async with connected(RocketmqSection(broker=address, timeout_ms=30_000), None) as broker:
            for group in ("%LMQ%g", "%LMQ%h"):
                await broker.create_group(group)
            await broker.update_offset("%LMQ%h", "%LMQ%T", 0, 7)
            for group in ("%LMQ%g", "%LMQ%h"):
                await broker.reset_offset(group, "%LMQ%T", 0, 0)
            after_reset = await broker.offsets()
            await broker.update_offset("%LMQ%g", "%LMQ%T", 0, 9)
            return after_reset, await broker.offsets()

    with lab("enableLmq=true\nenableMultiDispatch=true") as here:
        here.start_broker()
        for table in anyio.run(play, here.broker_address):
            assert json.loads(re.sub(rb"(?<=[{,])(\d+):", rb'"\1":', table))["lmqOffsetTable"] == {"%LMQ%T@%LMQ%h": 0}


def test_a_slave_with_v2_stores_nothing() -> None:
    """It has its master's offsets in memory, and none of them on disk when it has ended."""

    def answered(address: str) -> bool:
        async def ask() -> bytes:
            async with connected(RocketmqSection(broker=address, timeout_ms=30_000), None) as broker:
                return await broker.offsets()

        return b'"T@g"' in anyio.run(ask)

    with lab(V2) as here:
        here.start_broker()
        here.ask("send", "T", 400)
        commit(here, OFFSETS)
        address, config = here.start_slave()
        until(lambda: answered(address), "the slave has its master's offsets")
        assert here.slave is not None
        here.slave.stop()
        assert on_disk(here.config / "rdb") == OFFSETS
        assert on_disk(config / "rdb") == {}
