"""The units in deploy/systemd: systemd takes them, they are hardened, and they agree with the settings beside them."""

import asyncio
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from adapter.client.client import OffsetClient
from adapter.console.config import ConsoleConfig
from adapter.metaservice.config import MetaConfig
from adapter.runtime.settings.config import load
from adapter.sidecar.config import AdapterConfig
from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port, meta_process
from adapter.testing.service_manager import service_manager
from adapter.testing.waiting import PATIENCE_S, eventually

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
SERVICES = ("offset-adapter", "offset-meta", "offset-console")
EXPOSURE_MAX = 2.0  # of 10
PROGRAM = "/opt/offset-adapter/bin/offset-adapter"


def values(unit: str, setting: str) -> list[str]:
    """The values of a setting in a unit."""
    return re.findall(rf"^{setting}=(.*)$", (UNITS / unit).read_text(), re.MULTILINE)


def analyzed(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What systemd-analyze says; skips the test where there is none."""
    if not (program := shutil.which("systemd-analyze")):
        pytest.skip("systemd-analyze is not installed: the units were not checked")
    return subprocess.run([program, "--no-pager", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_do_little(name: str) -> None:
    """By systemd's own measure."""
    said = analyzed("security", "--offline=true", f"--threshold={EXPOSURE_MAX * 10:.0f}", str(UNITS / f"{name}.service"))
    exposure = re.search(rf"exposure level for {name}.service: ([0-9.]+)", said.stdout)
    assert exposure, said.stderr
    assert float(exposure[1]) <= EXPOSURE_MAX
    assert said.returncode == 0


def test_the_units_are_valid(tmp_path: Path) -> None:
    """Every section and setting is known, and units name each other; the program is one that is there."""
    for unit in UNITS.glob("offset-*.s*"):
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    said = analyzed(
        "verify", "--man=no", *(str(tmp_path / f"{name}.service") for name in SERVICES), str(tmp_path / "offset-adapter.socket")
    )
    ours = [line for line in said.stderr.splitlines() if "offset-" in line]
    assert ours == []
    assert said.returncode == 0, said.stderr


def test_the_adapters_settings_are_those_of_its_socket_and_its_service() -> None:
    """The addresses are in two files; a process would not start otherwise."""
    config = load(UNITS / "adapter.toml", AdapterConfig)
    assert values("offset-adapter.socket", "ListenStream") == [config.server.listen, config.server.unix_socket]
    assert values("offset-adapter.socket", "SocketMode") == [config.server.unix_socket_mode]
    assert values("offset-adapter.service", "Requires") == ["offset-adapter.socket"]
    state = f"/var/lib/{values('offset-adapter.service', 'StateDirectory')[0]}"
    assert config.store.path.is_relative_to(state)
    assert config.admin.token_file == credential("offset-adapter.service")


def credential(unit: str) -> Path:
    """Where a service finds the token of administration, which is in one file for all of them."""
    name, source = values(unit, "LoadCredential")[0].split(":")
    assert source == "/etc/offset-adapter/admin.token"
    return Path("/run/credentials", unit, name)


def test_the_console_reaches_what_the_other_units_serve() -> None:
    """With the token that they have; it stores nothing."""
    console, adapter = load(UNITS / "console.toml", ConsoleConfig), load(UNITS / "adapter.toml", AdapterConfig)
    assert console.fleet.adapters == (adapter.server.listen,)
    assert console.meta.endpoints == (load(UNITS / "meta.toml", MetaConfig).server.listen,)
    assert console.fleet.token_file == credential("offset-console.service")
    assert not values("offset-console.service", "StateDirectory")


def test_the_meta_services_store_is_in_its_state_directory() -> None:
    """The rest of the file system is read-only for it."""
    config = load(UNITS / "meta.toml", MetaConfig)
    state = f"/var/lib/{values('offset-meta.service', 'StateDirectory')[0]}"
    assert config.store.path.is_relative_to(state)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_notifies_and_runs_as_a_user_of_its_own(name: str) -> None:
    """The user is one that deploy/systemd makes; there is a watchdog."""
    users = {line.split()[1] for line in (UNITS / "offset-adapter.sysusers").read_text().splitlines() if line.startswith("u ")}
    assert values(f"{name}.service", "Type") == ["notify"]
    assert {*values(f"{name}.service", "User"), *values(f"{name}.service", "Group")} <= users
    assert values(f"{name}.service", "WatchdogSec")
    assert values(f"{name}.service", "ExecStart")[0].startswith(PROGRAM)


async def test_systemds_own_code_hands_its_sockets_over(tmp_path: Path) -> None:
    """By systemd-socket-activate, which starts the adapter at the first connection."""
    if not (program := shutil.which("systemd-socket-activate")):
        pytest.skip("systemd-socket-activate is not installed: the adapter was not started by it")
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address)
    # It has no option for SocketMode=.
    adapter.settings = adapter.settings.replace("[server]\n", "[server]\nunix_socket_mode = '0644'\n")
    sockets = [f"--listen={adapter.tcp_address}", f"--listen={adapter.socket}"]
    environment = [f"--setenv={name}" for name in ("PYTHONPATH", "COVERAGE_PROCESS_START", "HOME") if name in os.environ]
    adapter.prefix = (program, *sockets, *environment)
    with ended(meta, adapter):
        await asyncio.to_thread(meta.start)
        adapter.launch()
        await eventually(lambda: "Listening on" in adapter.log and adapter.log.count("Listening on") == len(sockets))
        for address in (adapter.tcp_address, adapter.address):
            async with OffsetClient.connect(address, PATIENCE_S, resend=False) as client:
                await client.commit("g", {address: 1})
        assert "handed_over=2" in adapter.log
        assert await asyncio.to_thread(adapter.stop) == 0


def test_the_console_of_the_unit_says_that_it_is_ready_and_lives(tmp_path: Path) -> None:
    """With the settings beside the unit, but for its port and its token's file."""
    port, token = free_port(), tmp_path / "admin-token"
    token.write_text("x" * 44)
    token.chmod(0o600)
    settings = (UNITS / "console.toml").read_text()
    settings = settings.replace("9540", str(port)).replace(str(credential("offset-console.service")), str(token))
    console = ServiceProcess("console", tmp_path / "console", settings, port)
    with service_manager(console, watchdog_s=2.0) as manager:
        manager.start()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE_S) as page:
            assert page.status == 200
        manager.wait_for("WATCHDOG=1")
        assert console.stop() == 0
        assert "STOPPING=1" in manager.heard
