"""A power cut: what the disk holds at an instant is all that is left. Its image is copied while the adapter is stopped."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapter.client.client import OffsetClient
from adapter.model.records import OffsetKey
from adapter.testing.history import History, Kind, Violation
from adapter.testing.processes import ServiceProcess, adapter_process, ended
from tests import forking
from tests.durability import machine
from tests.durability.callers import WAIT_S, Answer, Callers, check_local, contradictions, history_of, local_positions, under
from tests.durability.load import status_when
from tests.durability.machine import ALONE, NOWHERE, loop_options, mounted

CUTS = int(os.environ.get("POWER_CUTS") or 1)  # of one run of an adapter, each at a later instant
COMMITS = 500  # before and after the instant from which on some may be lost
ALARM = "store.acknowledged_writes_lost"
# The journal is committed by syncs alone, so that nothing changes in the image while it is copied.
MOUNT = "noatime,commit=300"


@dataclass(frozen=True)
class Cut:
    """The disk as it was at the instant of the power cut, and what was acknowledged until then."""

    image: Path
    sent: list[tuple[OffsetKey, int]]
    acknowledged: list[Answer]
    synced: int  # of those, in their order, which a sync had covered

    def lost(self, found: Mapping[OffsetKey, tuple[int, int]], first: int | None = None) -> list[Violation]:
        """What is missing of all that was acknowledged, or of the first so many of it; nothing else may be wrong."""
        history = history_of(self.sent, self.acknowledged[:first])
        wrong = contradictions(history, found)
        assert {violation.kind for violation in wrong} <= {Kind.LOST}
        return wrong


async def _cuts(directory: Path, wal_sync: str) -> list[Cut]:
    """Run an adapter under load on an ext4 image, stop it at some instants, and copy the image at each."""
    cuts = []
    image = machine.make_ext4(directory / "image", megabytes=64)
    service = adapter_process(directory, NOWHERE, wal_sync=wal_sync, extra=ALONE, store=directory / "disk" / "adapter")
    service.launched_by = forking.start
    with mounted(directory / "disk", loop_options(image, MOUNT)), ended(service):
        service.start()
        async with under(Callers(service.address, History(), callers=8)) as load:
            for number in range(CUTS):
                await load.acknowledged_more(COMMITS)
                synced = 0
                if wal_sync == "interval":
                    synced = len(load.acknowledged)
                    await _a_sync_covers_all(service)
                await load.acknowledged_more(COMMITS)
                service.freeze()
                copy = machine.copied(image, directory / f"copy-{number}")
                cuts.append(Cut(copy, list(load.sent), list(load.acknowledged), synced))
                service.thaw()
            service.freeze()
    return cuts


async def _a_sync_covers_all(service: ServiceProcess) -> None:
    """Wait until everything that is written by now is synced, while commits go on."""
    written = (await status_when(service.address)).store.seq
    await status_when(service.address, lambda status: status.store.seq - status.unsynced_writes >= written)


@dataclass(frozen=True)
class Left:
    """What a new adapter finds after the power cut."""

    positions: dict[OffsetKey, tuple[int, int]]
    alarmed: bool


async def _power_on(cut: Cut, wal_sync: str) -> Left:
    """Mount the copy, which replays its journal, and start an adapter on it. The Meta Service never got anything."""
    directory = cut.image.with_suffix(".on")
    directory.mkdir()
    service = adapter_process(directory, NOWHERE, wal_sync=wal_sync, extra=ALONE, store=directory / "disk" / "adapter")
    service.prefix = machine.after_a_reboot(directory / "boot_id")
    with mounted(directory / "disk", loop_options(cut.image)), ended(service):
        service.start()
        async with OffsetClient.connect(service.address, WAIT_S) as client:
            in_status = (await client.status()).HasField("loss")
        assert in_status is (ALARM in service.log)
        left = Left(await local_positions(service), in_status)
    cut.image.unlink()
    return left


async def test_synced_acknowledgements_survive_a_power_cut(tmp_path: Path) -> None:
    """With `wal_sync = always` not one is lost, and nothing is alarmed (1)."""
    machine.require("a power cut, wal_sync always", machine.loop_ext4, machine.other_boot)
    for cut in await _cuts(tmp_path, "always"):
        left = await _power_on(cut, "always")
        assert cut.lost(left.positions) == []
        assert not left.alarmed


async def test_a_power_cut_takes_at_most_what_no_sync_had_covered(tmp_path: Path) -> None:
    """With `wal_sync = interval` all that was synced is there. Nobody can tell whether the rest is: the alarm always comes."""
    machine.require("a power cut, wal_sync interval", machine.loop_ext4, machine.other_boot)
    for cut in await _cuts(tmp_path, "interval"):
        left = await _power_on(cut, "interval")
        assert cut.synced
        assert cut.lost(left.positions, cut.synced) == []
        assert left.alarmed


async def test_without_syncs_a_power_cut_is_alarmed(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """With `wal_sync = never` nothing is promised but a start and an alarm; how much was lost is only reported."""
    machine.require("a power cut, wal_sync never", machine.loop_ext4, machine.other_boot)
    for cut in await _cuts(tmp_path, "never"):
        left = await _power_on(cut, "never")
        record_property("lost_keys", len(cut.lost(left.positions)))
        assert left.alarmed


@pytest.mark.parametrize(("wal_sync", "alarmed"), [("always", False), ("interval", True), ("never", True)])
async def test_a_machine_that_went_down_is_alarmed_though_nothing_is_missing(
    tmp_path: Path, wal_sync: str, *, alarmed: bool
) -> None:
    """Here all of it is there. Only the boot id tells that it might not be, and `always` needs no alarm."""
    machine.require(f"a reboot under a running adapter, wal_sync {wal_sync}", machine.other_boot)
    service = adapter_process(tmp_path, NOWHERE, wal_sync=wal_sync, extra=ALONE)
    history = History()
    with ended(service):
        service.start()
        await Callers(service.address, history).run(turns=5)
        service.kill()
        service.prefix = machine.after_a_reboot(tmp_path / "boot_id")
        service.start()
        await check_local(service, history)
        async with OffsetClient.connect(service.address, WAIT_S) as client:
            assert (await client.status()).HasField("loss") is alarmed
    assert (ALARM in service.log) is alarmed


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
