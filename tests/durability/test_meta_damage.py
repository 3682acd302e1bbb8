"""Damaged files of the Meta Service's store, after a kill -9: every start is refused until a repair tells what is lost (1, 2)."""

import asyncio
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry
from adapter.testing.processes import ServiceProcess, ended, free_port, meta_process
from adapter.testing.waiting import PATIENCE_S
from tests import forking
from tests.durability.wal_damage import DAMAGE, _flip, _truncate, _wal
from tests.unit.helpers import key, record

HANDED_OVER, RESET = key("handed-over"), key("reset")
STANDS = {HANDED_OVER: record(300, committed_at_ms=1), RESET: record(50, epoch=1 << 32, committed_at_ms=2)}
STEPS = range(10, 301, 10)
WAIT_S = PATIENCE_S


async def save(address: str, *entries: tuple[OffsetKey, OffsetRecord]) -> None:
    """Save, each in a call of its own."""
    async with GrpcMetaClient.open(MetaSection(endpoints=(address,), timeout_ms=10_000)) as client:
        for entry in entries:
            await client.save([SaveEntry(*entry)])


async def standing(address: str) -> dict[OffsetKey, OffsetRecord]:
    """What the Meta Service has of both keys."""
    async with GrpcMetaClient.open(MetaSection(endpoints=(address,), timeout_ms=10_000)) as client:
        return await client.get([HANDED_OVER, RESET])


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a killed Meta Service, in a table and a log: an offset that was handed over at 300, and an executed reset."""
    directory = tmp_path_factory.mktemp("killed")
    service = meta_process(directory)
    early = [(key, record(offset, committed_at_ms=1)) for offset in (1, 2) for key in STANDS]
    late = [(HANDED_OVER, record(offset, committed_at_ms=1)) for offset in STEPS]
    late.insert(len(late) // 2, (RESET, STANDS[RESET]))
    with ended(service):
        for entries in (early, late):
            service.start()
            asyncio.run(save(service.address, *entries))
            service.kill()
    return directory / "meta"


def damaged(killed: Path, directory: Path, damage: Callable[[Path], object]) -> ServiceProcess:
    """A Meta Service with metrics, over a copy of that store, which is damaged."""
    service = meta_process(directory)
    shutil.copytree(killed, directory / "meta")
    damage(directory / "meta")
    service.settings = service.settings.replace("[metrics]\nlisten = ''", f"[metrics]\nlisten = '127.0.0.1:{free_port()}'")
    return service


def assert_refused(service: ServiceProcess) -> None:
    """It ends with 1 and says what can be done."""
    service.launch()
    assert service.process is not None
    assert service.process.wait(WAIT_S) == 1
    assert str(service.directory / "meta") in service.log
    assert "offset-adapter meta repair" in service.log
    assert "Traceback" not in service.log


def run_meta(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`offset-adapter meta ...`."""
    return forking.run(["meta", *arguments], Path.cwd(), os.environ, WAIT_S)


def status(service: ServiceProcess) -> dict[str, Any]:
    """What `meta status` says; it exits with 1 when there was a loss."""
    done = run_meta("status", "--address", service.address, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if found["loss"] else 0), done.stderr
    return found


def gauge(service: ServiceProcess, name: str) -> float:
    """A metric."""
    port = service.settings.split("[metrics]")[1].split("127.0.0.1:")[1].split("'")[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as reply:
        (value,) = [line.split()[1] for line in reply.read().decode().splitlines() if line.startswith(f"{name} ")]
    return float(value)


async def test_a_flipped_bit_refuses_every_start_until_a_repair_tells_of_the_loss(killed: Path, tmp_path: Path) -> None:
    """Not 100 for who was handed over at 300, and not the old place for who was reset; the alarm stays (1, 7)."""
    service = damaged(killed, tmp_path, lambda meta: DAMAGE["bit flipped in the middle of the wal"](meta / "db"))
    with ended(service):
        for _ in range(2):
            assert_refused(service)
        repaired = run_meta("repair", "--yes", "--config", str(tmp_path / "meta.toml"))
        assert repaired.returncode == 0, repaired.stderr
        assert "is kept in" in repaired.stdout
        service.start()
        found = status(service)
        assert found["engine"] == "rocksdb"
        (store,) = found["stores"]
        assert store["incarnation"] == gauge(service, "offset_meta_store_incarnation") == 2
        assert found["loss"]["writes"] == gauge(service, "offset_meta_lost_writes") > 0
        assert "engine.acknowledged_writes_lost" in service.log
        stands = await standing(service.address)
        assert all(record <= STANDS[each] for each, record in stands.items())
        # What adapters do when they see the incarnation: nothing that they hold is behind what is left.
        await save(service.address, *STANDS.items())
        assert await standing(service.address) == STANDS
        service.kill()
        service.start()
        assert status(service)["loss"] == found["loss"]
        assert await standing(service.address) == STANDS


@pytest.mark.parametrize(
    "damage",
    {
        "wal missing": DAMAGE["wal missing"],
        "bit flipped in an SST block": DAMAGE["bit flipped in an SST block"],
        "CURRENT missing": DAMAGE["CURRENT missing"],
        "directory missing": DAMAGE["directory missing"],
        "watermark missing": lambda db: (db.parent / "watermark").unlink(),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_is_gone_refuses_the_start(damage: tuple[str, Callable[[Path], object]], killed: Path, tmp_path: Path) -> None:
    """Each of them began empty, or with less, and said nothing."""
    service = damaged(killed, tmp_path, lambda meta: damage[1](meta / "db"))
    with ended(service):
        assert_refused(service)


async def test_an_intact_store_starts_after_each_kill(killed: Path, tmp_path: Path) -> None:
    """No alarm without a loss; `meta repair` leaves it as it is, and is refused while it is in use."""
    service = damaged(killed, tmp_path, lambda _: None)
    with ended(service):
        service.start()
        assert (
            "another process has this store open" in run_meta("repair", "--yes", "--config", str(tmp_path / "meta.toml")).stderr
        )
        first = status(service)
        assert not first["loss"]
        service.kill()
        assert "nothing was done" in run_meta("repair", "--yes", "--config", str(tmp_path / "meta.toml")).stdout
        service.start()
        again = status(service)
        assert again["stores"][0]["revision"] >= first["stores"][0]["revision"]
        assert {**again["stores"][0], "revision": 0} == {**first["stores"][0], "revision": 0}
        assert await standing(service.address) == STANDS


async def test_a_directory_that_was_deleted_begins_anew_and_the_log_says_so(killed: Path, tmp_path: Path) -> None:
    """Nothing here knows what was there; adapters do, by its identity. No other start says that it made a store (1)."""
    service = damaged(killed, tmp_path, lambda _: None)
    with ended(service):
        service.start()
        assert "engine.created" not in service.log
        service.kill()
        shutil.rmtree(tmp_path / "meta")
        service.start()
        assert "engine.created" in service.log
        assert not status(service)["loss"]
        assert await standing(service.address) == {}


@pytest.mark.parametrize("cut", [True, False], ids=["and the end of the log", "alone"])
def test_a_watermark_whose_newer_half_is_damaged_hides_no_loss(cut: bool, killed: Path, tmp_path: Path) -> None:
    """It read as its older half, which a log without its last write fits; alone it is no loss."""

    def damage(meta: Path) -> None:
        mark = meta / "watermark"
        newer = max(range(2), key=lambda slot: mark.read_bytes()[32 * slot + 8 : 32 * slot + 16])
        _flip(mark, 32 * newer + 15)
        if cut:
            wal = _wal(meta / "db")
            _truncate(wal, wal.stat().st_size - 7)

    service = damaged(killed, tmp_path, damage)
    with ended(service):
        if cut:
            assert_refused(service)
            assert run_meta("repair", "--yes", "--config", str(tmp_path / "meta.toml")).returncode == 0
        service.start()
        assert bool(status(service)["loss"]) is cut
