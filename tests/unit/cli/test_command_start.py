"""The modules that a command imports at its start: health probes run commands every few seconds."""

import subprocess
import sys
from collections.abc import Sequence

import pytest

from adapter.cli.main import COMMANDS
from adapter.cli.process.meta import COMMANDS as META_COMMANDS

# Each takes from 10 to 100 ms of CPU: together they were three quarters of a health check.
HEAVY = (
    "pydantic",
    "rocksdict",
    "rich",
    "structlog",
    "prometheus_client",
    "uvloop",
    "anyio",
    "tenacity",
    "hpack",
    "sqlite3",
    "textual",
)
# What only JSON, CSV, archives, threads and consumers need.
NEEDLESS = (
    "json",
    "csv",
    "shutil",
    "adapter.client.blocking",
    "adapter.client.ack_window",
    "adapter.runtime.settings.certificates",
)
GRPC = ("grpc", "asyncio", "google.protobuf")
NOWHERE = ("--address", "127.0.0.1:1")


def imported(*commands: Sequence[str]) -> set[str]:
    """The modules that are loaded after these commands have run in one process, each to its end."""
    code = (
        "import os, sys; from adapter import __main__ as entry\n"
        "os._exit = sys.exit\n"
        "for command in COMMANDS:\n"
        "    sys.argv[1:] = command\n"
        "    try: entry.main()\n"
        "    except SystemExit: pass\n"
        "print('\\n', *sys.modules)"
    )
    arguments = [sys.executable, "-c", code.replace("COMMANDS", repr(commands))]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    return {*ran.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize(
    "commands",
    [
        ("health", "get g", "commit g s 1", "status", "top", "list", "groups list"),
        ("meta kv list", "meta status", "meta copy 127.0.0.1:1"),
        ("meta snapshot --output /nowhere/snapshot",),
    ],
    ids=("adapter", "meta", "snapshot"),
)
def test_a_command_that_calls_imports_grpc_and_nothing_of_the_processes(commands: tuple[str, ...]) -> None:
    """It loads no store, no settings, and no table drawing."""
    found = imported(*((*command.split(), *NOWHERE) for command in commands))
    heavy = {
        *HEAVY,
        "adapter.runtime.settings.config",
        "adapter.sidecar.engine.core",
        "adapter.sidecar.ledger.store",
        "adapter.rpc.etcd_pb2",
    }
    if "snapshot" not in commands[0]:
        heavy.update(NEEDLESS)
    if not commands[0].startswith("meta"):
        heavy.add("adapter.rpc.meta_service_pb2")
    assert "grpc" in found
    assert found & heavy == set()


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_imports_no_command(option: str) -> None:
    """Help loads no command and not even gRPC."""
    found = imported([option])
    assert found & {*HEAVY, *GRPC} == set()
    assert option == "--version" or not found & {*NEEDLESS, "pathlib", "signal"}
    assert {name for name in found if name.startswith("adapter.cli.")} == {
        "adapter.cli.main",
        "adapter.cli.lazy",
        "adapter.cli.terminal",
    }


@pytest.mark.parametrize(("command", "found"), [("get g", "False True True"), ("meta kv list", "False False True True")])
def test_garbage_is_not_looked_for_while_modules_are_imported_and_is_when_the_command_runs(command: str, found: str) -> None:
    """It took a tenth of the CPU of a short command. What was imported is left out of later looks."""
    code = (
        "import atexit, gc; from adapter.__main__ import main; from adapter.cli import lazy\n"
        "seen = []; load = lazy.import_module\n"
        "lazy.import_module = lambda name: (seen.append(gc.isenabled()), load(name))[1]\n"
        "atexit.register(lambda: print(*seen, gc.isenabled(), gc.get_freeze_count() > 0)); main()"
    )
    arguments = [sys.executable, "-c", code, *command.split(), *NOWHERE]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert ran.stdout.splitlines()[-1] == found


@pytest.mark.parametrize(("command", "exit_code"), [("--help", 0), ("get g", 2), ("groups nothing", 2)])
def test_a_command_leaves_when_all_is_written_without_freeing_what_was_imported(command: str, exit_code: int) -> None:
    """That took a tenth of the CPU of a short one. What is to be done at an exit is done, and the exit code is kept."""
    code = (
        "import atexit; from adapter.__main__ import main\n"
        "class Imported:\n    def __del__(self): print('freed')\n"
        "there = Imported(); atexit.register(print, 'at exit'); main()"
    )
    arguments = [sys.executable, "-c", code, *command.split(), *(NOWHERE if "get" in command else ())]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (exit_code, "at exit")


def test_help_says_of_a_command_what_its_own_help_begins_with() -> None:
    """The short help stands twice, so that listing commands imports none."""
    for name, lazy in {**COMMANDS, **META_COMMANDS}.items():
        assert (lazy.load().get_short_help_str(limit=1_000), lazy.load().name) == (lazy.help, name)
