"""A power cut: what the disk holds at an instant is all that is left. Its image is copied while the adapter is stopped."""

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapter.client.client import OffsetClient
from adapter.model.records import OffsetKey
from adapter.testing.history import History, Kind, Violation
from adapter.testing.processes import adapter_process, ended
from adapter.testing.waiting import eventually
from tests.durability import machine
from tests.durability.callers import WAIT_S, Answer, Callers, check_local, contradictions, history_of, local_positions, under
from tests.durability.machine import ALONE, NOWHERE, loop_options, mounted

pytestmark = pytest.mark.usefixtures("grpc_server")

LOAD_S = 2.5
INTERVAL_S = 0.1  # flush.interval_ms; the WAL is synced as often
SYNC_S = 1.0  # what a sync may take on a busy machine
ALARM = "store.acknowledged_writes_lost"
# The journal is committed by syncs alone, so that nothing changes in the image while it is copied.
MOUNT = "noatime,commit=300"


@dataclass(frozen=True)
class Cut:
    """The disk as it was at the instant of the power cut, and what was acknowledged until then."""

    image: Path
    sent: list[tuple[OffsetKey, int]]
    acknowledged: list[Answer]
    at: float

    def lost(self, found: Mapping[OffsetKey, tuple[int, int]], before: float) -> list[Violation]:
        """What is missing of all that was acknowledged before this time (Unix seconds); nothing else may be wrong."""
        history = history_of(self.sent, (answer for answer in self.acknowledged if answer.answered_at < before))
        wrong = contradictions(history, found)
        assert {violation.kind for violation in wrong} <= {Kind.LOST}
        return wrong


async def _cut_power(directory: Path, wal_sync: str) -> Cut:
    """Run an adapter under load on an ext4 image, stop it at some instant, and copy the image."""
    image, copy = machine.make_ext4(directory / "image", megabytes=64), directory / "copy"
    service = adapter_process(directory, NOWHERE, wal_sync=wal_sync, extra=ALONE, store=directory / "disk" / "adapter")
    with mounted(directory / "disk", loop_options(image, MOUNT)), ended(service):
        service.start()
        began_at = time.time()
        async with under(Callers(service.address, History(), callers=8)) as load:
            await eventually(lambda: bool(load.acknowledged) and load.acknowledged[-1].answered_at > began_at + LOAD_S, WAIT_S)
            service.signal(signal.SIGSTOP)
            await eventually(lambda: machine.is_stopped(service.pid), WAIT_S)
            at = time.time()
            machine.run("cp", "--sparse=always", str(image), str(copy))
        return Cut(copy, load.sent, load.acknowledged, at)


@dataclass(frozen=True)
class Left:
    """What a new adapter finds after the power cut."""

    positions: dict[OffsetKey, tuple[int, int]]
    alarmed: bool


def _fresh(directory: Path) -> Path:
    directory.mkdir()
    return directory


async def _power_on(directory: Path, cut: Cut, wal_sync: str) -> Left:
    """Mount the copy, which replays its journal, and start an adapter on it. The Meta Service never got anything."""
    service = adapter_process(directory, NOWHERE, wal_sync=wal_sync, extra=ALONE, store=directory / "disk" / "adapter")
    service.prefix = machine.after_a_reboot(directory / "boot_id")
    with mounted(directory / "disk", loop_options(cut.image)), ended(service):
        service.start()
        async with OffsetClient.connect(service.address, WAIT_S) as client:
            in_status = (await client.status()).HasField("loss")
        assert in_status is (ALARM in service.log)
        return Left(await local_positions(service), in_status)


async def test_synced_acknowledgements_survive_a_power_cut(tmp_path: Path) -> None:
    """With `wal_sync = always` not one is lost, and nothing is alarmed (1)."""
    machine.require("a power cut, wal_sync always", machine.loop_ext4, machine.other_boot)
    cut = await _cut_power(tmp_path, "always")
    left = await _power_on(_fresh(tmp_path / "after"), cut, "always")
    assert len(cut.acknowledged) > 20
    assert cut.lost(left.positions, before=time.time()) == []
    assert not left.alarmed


async def test_a_power_cut_takes_at_most_one_flush_interval(tmp_path: Path) -> None:
    """With `wal_sync = interval` what is older is there; if anything younger is lost, that is alarmed."""
    machine.require("a power cut, wal_sync interval", machine.loop_ext4, machine.other_boot)
    cut = await _cut_power(tmp_path, "interval")
    left = await _power_on(_fresh(tmp_path / "after"), cut, "interval")
    older_than = cut.at - INTERVAL_S - SYNC_S
    assert any(answer.answered_at < older_than for answer in cut.acknowledged)
    assert cut.lost(left.positions, before=older_than) == []
    assert left.alarmed or cut.lost(left.positions, before=time.time()) == []


async def test_without_syncs_a_power_cut_is_alarmed(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """With `wal_sync = never` nothing is promised but a start and an alarm; how much was lost is only reported."""
    machine.require("a power cut, wal_sync never", machine.loop_ext4, machine.other_boot)
    cut = await _cut_power(tmp_path, "never")
    left = await _power_on(_fresh(tmp_path / "after"), cut, "never")
    lost = len(cut.lost(left.positions, before=time.time()))
    record_property("lost_keys", lost)
    assert left.alarmed or not lost


async def test_a_reboot_after_an_orderly_stop_alarms_nothing(tmp_path: Path) -> None:
    """What was stopped was synced, in every mode; only a machine that went down under a running adapter may have lost some."""
    machine.require("a reboot after an orderly stop", machine.other_boot)
    service = adapter_process(tmp_path, NOWHERE, wal_sync="never", extra=ALONE)
    history = History()
    with ended(service):
        service.start()
        await Callers(service.address, history).run(turns=5)
        service.stop()
        service.prefix = machine.after_a_reboot(tmp_path / "boot_id")
        service.start()
        await check_local(service, history)
    assert ALARM not in service.log
