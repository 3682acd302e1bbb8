"""What the service manager is told, and when."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from adapter.runtime import notify
from adapter.runtime.notify import Notifier
from adapter.testing.waiting import eventually


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A service manager's socket, and its address in the environment."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hears:
        name = f"offset-adapter-test-{os.getpid()}"
        hears.bind(f"\0{name}" if request.param == "abstract" else str(tmp_path / "notify"))
        hears.setblocking(False)  # noqa: FBT003 - its only parameter
        yield hears, f"@{name}" if request.param == "abstract" else str(tmp_path / "notify")


def heard(hears: socket.socket) -> list[str]:
    """What has arrived."""
    found = []
    while True:
        try:
            found.append(hears.recv(4_096).decode())
        except BlockingIOError:
            return found


async def test_states_are_told_in_their_order(manager: tuple[socket.socket, str]) -> None:
    """Ready, a reload with its instant, the end. A status is one line."""
    hears, address = manager
    notifier = Notifier({"NOTIFY_SOCKET": address})
    notifier.ready()
    notifier.status("degraded: the Meta Service\ndoes not answer\nREADY=1")
    with notifier.reloading():
        reloading = heard(hears)
    with notifier.alive():
        notifier.stopping()
    assert reloading[:2] == ["READY=1", "STATUS=degraded: the Meta Service does not answer READY=1"]
    said, _, instant = reloading[2].partition("\nMONOTONIC_USEC=")
    assert said == "RELOADING=1"
    assert instant.isdecimal()
    assert heard(hears) == ["READY=1", "STOPPING=1", "EXTEND_TIMEOUT_USEC=60000000"]


async def test_a_reload_that_fails_is_over_as_well(manager: tuple[socket.socket, str]) -> None:
    """The settings from before hold, and the process is ready."""
    hears, address = manager
    notifier = Notifier({"NOTIFY_SOCKET": address})
    notifier.ready()
    with pytest.raises(ValueError, match="bad"), notifier.reloading():
        raise ValueError("bad")
    assert heard(hears)[-1] == "READY=1"


async def test_a_reload_during_a_start_or_a_stop_is_not_told(manager: tuple[socket.socket, str]) -> None:
    """Its end would say that the process serves."""
    hears, address = manager
    notifier = Notifier({"NOTIFY_SOCKET": address})
    with notifier.reloading():
        pass
    assert heard(hears) == []
    notifier.ready()
    with notifier.alive():
        notifier.stopping()
        heard(hears)
        with notifier.reloading():
            pass
    assert heard(hears) == []


async def test_the_watchdog_hears_of_a_process_whose_event_loop_runs(manager: tuple[socket.socket, str]) -> None:
    """At half of its interval, also when all is quiet; more time is asked for only at the start and at the stop."""
    hears, address = manager
    notifier = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())})
    found: list[str] = []
    with notifier.alive():
        notifier.ready()
        found += heard(hears)
        assert "EXTEND_TIMEOUT_USEC=60000000" in found
        found.clear()

        def often() -> bool:
            found.extend(heard(hears))
            return len(found) >= 5

        await eventually(often)
    assert set(found) == {"WATCHDOG=1"}
    heard(hears)
    await anyio.sleep(0.05)
    assert heard(hears) == []


async def test_a_watchdog_of_another_process_is_not_ours(manager: tuple[socket.socket, str]) -> None:
    """WATCHDOG_PID names whom the service manager waits for."""
    hears, address = manager
    with Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}).alive():
        assert heard(hears) == ["EXTEND_TIMEOUT_USEC=60000000"]


async def test_without_a_service_manager_nothing_happens() -> None:
    """On a terminal, and in a container."""
    notifier = Notifier({})
    with notifier.alive(), capture_logs() as lines:
        notifier.ready()
        notifier.stopping()
    assert lines == []


async def test_a_service_manager_that_does_not_hear_is_logged_once(tmp_path: Path) -> None:
    """The process does its work all the same."""
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    with capture_logs() as lines:
        notifier.ready()
        notifier.status("serving")
    assert [line["event"] for line in lines] == ["notify.failed"]


def test_children_inherit_no_service_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be taken for this process."""
    monkeypatch.setattr(notify, "_notifier", Notifier({}))
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    assert notify.connect(environment) is notify.manager()
    assert environment == {"HOME": "/"}
