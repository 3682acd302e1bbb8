"""Damaged files of the local store, after a kill -9: opened with an alarm for what is lost, or refused with what to do (1).

What the Meta Service holds is back after the start. Intact stores never alarm.
"""

import asyncio
import os
import shutil
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapter.client.client import OffsetClient
from adapter.model.records import ReadMode
from adapter.rpc import offsets_pb
from adapter.testing.history import ADAPTER, History, Kind
from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port, meta_process
from adapter.testing.waiting import positions
from tests import forking
from tests.durability.callers import WAIT_S, Answer, Callers, check_local, contradictions, history_of, local_positions, under
from tests.durability.machine import ALONE, NOWHERE
from tests.durability.wal_damage import DAMAGE, WAL_DAMAGE, _flip, _truncate, _wal

ALARM = "store.acknowledged_writes_lost"


REFUSED = ["CURRENT missing", "SST missing", "every file missing", "directory missing"]


@dataclass(frozen=True)
class Killed:
    """The store of a killed adapter that never met a Meta Service, in an SST and a WAL, and what it had acknowledged."""

    store: Path
    acknowledged: list[Answer]

    @property
    def history(self) -> History:
        """Nothing was sent but what was acknowledged. A new one for each test that goes on with it."""
        return history_of([(answer.key, answer.offset) for answer in self.acknowledged], self.acknowledged)

    def copy(self, to: Path) -> Path:
        """A copy to damage."""
        return Path(shutil.copytree(self.store, to))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Built once: early commits, a kill, a start that moves them from the WAL to an SST, late commits, a kill."""
    directory = tmp_path_factory.mktemp("killed")
    service = adapter_process(directory, NOWHERE, extra=ALONE)
    acknowledged: list[Answer] = []
    with ended(service):
        for part in ("early", "late"):
            service.start()
            load = Callers(service.address, History(), group=part, shards=20)
            asyncio.run(load.run(turns=10))
            assert not load.refused
            acknowledged += load.acknowledged
            service.kill()
    return Killed(directory / "adapter", acknowledged)


@pytest.fixture(scope="module")
def informed(killed: Killed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Meta Service that holds every acknowledged value of that store."""
    directory = tmp_path_factory.mktemp("informed")
    meta = meta_process(directory)
    pusher = adapter_process(directory, meta.address, store=killed.copy(directory / "copy"))
    with ended(meta, pusher):
        meta.start()
        pusher.start()
        assert pusher.stop() == 0
        yield meta.address


def _adapter(directory: Path, meta: str, store: Path) -> ServiceProcess:
    """An adapter with metrics."""
    service = adapter_process(directory, meta, store=store, extra=ALONE if meta == NOWHERE else "")
    service.settings = service.settings.replace("[metrics]\nlisten = ''", f"[metrics]\nlisten = '127.0.0.1:{free_port()}'")
    return service


def _opens(service: ServiceProcess) -> bool:
    """Start it. False when it refused loudly: exit code 1, and a text that names the store and what can be done."""
    service.launch()
    try:
        service.wait_ready()
    except RuntimeError:
        assert service.process is not None
        assert service.process.wait(WAIT_S) == 1
        assert f"{service.directory / 'cache'}" in service.log
        assert "offset-adapter repair" in service.log
        assert "Traceback" not in service.log
        return False
    return True


def _repair(service: ServiceProcess, *options: str) -> str:
    """Run `offset-adapter repair`; returns all it printed."""
    command = ["repair", "--yes", "--config", str(service.directory / "serve.toml"), *options]
    done = forking.run(command, Path.cwd(), os.environ, WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _set_aside(directory: Path) -> Path:
    """The one damaged store that `repair` has kept."""
    (kept,) = directory.glob("cache.damaged-*")
    return kept


def _lost_writes_gauge(service: ServiceProcess) -> float:
    address = service.settings.partition("[metrics]\nlisten = '")[2].partition("'")[0]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("offset_adapter_store_lost_writes "))


async def _status(service: ServiceProcess) -> offsets_pb.StatusReply:
    async with OffsetClient.connect(service.address, WAIT_S) as client:
        return await client.status()


async def _check_reads(service: ServiceProcess, history: History, mode: ReadMode, *, named: bool) -> None:
    """Reads of all groups, of each shard by its name or of whole groups, contradict nothing."""
    groups: dict[str, list[str]] = {}
    reading = history.reading(ADAPTER)
    for key in history.least():
        groups.setdefault(key.group, []).append(key.shard)
    async with OffsetClient.connect(service.address, WAIT_S) as client:
        found = [await client.read(group, shards if named else (), mode=mode) for group, shards in groups.items()]
    reading.found(positions(row for rows in found for row in rows.values()))
    assert history.check() == []


async def _assert_alarmed(service: ServiceProcess, repaired: str = "") -> None:
    assert ALARM in service.log + repaired
    assert (await _status(service)).loss.writes > 0
    assert _lost_writes_gauge(service) > 0


async def _assert_no_alarm(service: ServiceProcess) -> None:
    assert ALARM not in service.log
    assert not (await _status(service)).HasField("loss")
    assert _lost_writes_gauge(service) == 0


@pytest.mark.parametrize("damage", DAMAGE)
async def test_lost_acknowledgements_are_alarmed(damage: str, killed: Killed, tmp_path: Path) -> None:
    """The Meta Service never got them: what is missing locally is lost, and the log, status and metrics say so (1)."""
    service = _adapter(tmp_path, NOWHERE, killed.copy(tmp_path / "cache"))
    DAMAGE[damage](tmp_path / "cache" / "db")
    with ended(service):
        repaired = ""
        if not _opens(service):
            repaired = _repair(service)
            service.start()
        missing = contradictions(killed.history, await local_positions(service))
        assert {violation.kind for violation in missing} <= {Kind.LOST}
        assert missing or damage not in WAL_DAMAGE, "this damage was to lose something"
        if missing:
            await _assert_alarmed(service, repaired)


@pytest.mark.parametrize("damage", DAMAGE)
async def test_what_the_meta_service_has_is_back(damage: str, killed: Killed, informed: str, tmp_path: Path) -> None:
    """After the start every acknowledged value is there, in reads of the memory too: absent may mean lost (1)."""
    service = _adapter(tmp_path, informed, killed.copy(tmp_path / "cache"))
    DAMAGE[damage](tmp_path / "cache" / "db")
    with ended(service):
        if not _opens(service):
            _repair(service)
            service.start()
        for named in (True, False):
            await _check_reads(service, killed.history, ReadMode.MEMORY, named=named)


@pytest.mark.parametrize("damage", REFUSED)
async def test_a_refused_store_starts_from_the_meta_service(damage: str, killed: Killed, informed: str, tmp_path: Path) -> None:
    """It stays refused, however often something restarts it, until `repair --start-from-meta` sets it aside."""
    service = _adapter(tmp_path, informed, killed.copy(tmp_path / "cache"))
    DAMAGE[damage](tmp_path / "cache" / "db")
    with ended(service):
        for _ in range(2):
            assert not _opens(service)
        _repair(service, "--start-from-meta")
        service.start()
        await _check_reads(service, killed.history, ReadMode.MEMORY_FIRST_THEN_STORE, named=True)
        await _assert_no_alarm(service)
    kept = _set_aside(tmp_path)
    assert (kept / "watermark").exists()


async def test_repair_keeps_a_copy_and_what_is_intact(killed: Killed, tmp_path: Path) -> None:
    """Without CURRENT nothing is lost but the way in: after the repair everything is there, and the damaged store beside it."""
    service = _adapter(tmp_path, NOWHERE, killed.copy(tmp_path / "cache"))
    (tmp_path / "cache" / "db" / "CURRENT").unlink()
    with ended(service):
        assert not _opens(service)
        names = {file.name for file in (tmp_path / "cache" / "db").iterdir()} - {"LOCK"}
        printed = _repair(service)
        kept = _set_aside(tmp_path)
        assert str(kept) in printed
        assert {file.name for file in (kept / "db").iterdir()} == names
        service.start()
        await check_local(service, killed.history)
        await _assert_no_alarm(service)


@pytest.mark.parametrize("cut", [True, False], ids=["and the end of the wal", "alone"])
async def test_a_watermark_whose_newer_half_is_damaged_hides_no_loss(cut: bool, killed: Killed, tmp_path: Path) -> None:
    """It read as its older half, which a log without its last write fits. Alone it is no loss: the store has that write (1)."""
    service = _adapter(tmp_path, NOWHERE, killed.copy(tmp_path / "cache"))
    mark, wal = tmp_path / "cache" / "watermark", _wal(tmp_path / "cache" / "db")
    newer = max(range(2), key=lambda slot: mark.read_bytes()[32 * slot + 8 : 32 * slot + 16])
    _flip(mark, 32 * newer + 15)
    if cut:
        _truncate(wal, wal.stat().st_size - 7)
    with ended(service):
        service.start()
        missing = contradictions(killed.history, await local_positions(service))
        assert bool(missing) is cut
        if cut:
            await _assert_alarmed(service)
        else:
            await _assert_no_alarm(service)


async def test_an_alarm_lasts(killed: Killed, tmp_path: Path) -> None:
    """The log tells of a loss when it is found, status and metrics for ever: nobody may have looked at the log."""
    service = _adapter(tmp_path, NOWHERE, killed.copy(tmp_path / "cache"))
    _truncate(_wal(tmp_path / "cache" / "db"), 0)
    with ended(service):
        service.start()
        first = (await _status(service)).loss
        service.kill()
        service.start()
        assert (await _status(service)).loss == first
        assert _lost_writes_gauge(service) == first.writes > 0
        assert service.log.count(ALARM) == 1


async def test_new_commits_after_a_loss_survive_the_next_kill(killed: Killed, tmp_path: Path) -> None:
    """The store goes on with write counters above the lost ones: the next open has nothing to alarm, and loses nothing (1)."""
    service = _adapter(tmp_path, NOWHERE, killed.copy(tmp_path / "cache"))
    _truncate(_wal(tmp_path / "cache" / "db"), 0)
    history = History()
    with ended(service):
        service.start()
        await Callers(service.address, history, group="after").run(turns=5)
        service.kill()
        service.start()
        found = {key: at for key, at in (await local_positions(service)).items() if key.group.startswith("after")}
        assert contradictions(history, found) == []
        assert service.log.count(ALARM) == 1


@pytest.mark.parametrize("wal_sync", ["always", "interval", "never"])
async def test_an_intact_store_never_alarms(wal_sync: str, tmp_path: Path) -> None:
    """A kill -9 under load and an orderly restart lose nothing (1), so they alarm nothing."""
    service = _adapter(tmp_path, NOWHERE, tmp_path / "cache")
    service.settings = service.settings.replace("wal_sync = 'interval'", f"wal_sync = '{wal_sync}'")
    history = History()
    with ended(service):
        for orderly in (False, True):
            service.start()
            await check_local(service, history)
            await _assert_no_alarm(service)
            async with under(Callers(service.address, history)) as load:
                await load.acknowledged_more(200)
                if not orderly:
                    service.kill()
            if orderly:
                service.stop()
        service.start()
        await check_local(service, history)
        await _assert_no_alarm(service)
