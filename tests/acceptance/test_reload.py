"""`offset-adapter reload` and SIGHUP, on real processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from tests.acceptance.conftest import Pair, Ran, run
from tests.integration.helpers import wait_until

OK, NO, ERROR = 0, 1, 2
TOKEN = "correct-horse-battery-staple"  # noqa: S105 - an example

# The command's module is replaced by one that only says what becomes of SIGHUP when it is imported.
EARLY = """
import runpy, signal, sys, types
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, and some CI, start with it ignored
early = types.ModuleType("adapter.cli.main")
early.main = lambda: print(signal.getsignal(signal.SIGHUP).name)
sys.modules["adapter.cli.main"] = early
sys.argv = ["offset-adapter", *sys.argv[1:]]
runpy.run_module("adapter", run_name="__main__")
"""


def write(service: ServiceProcess, *changes: tuple[str, str], extra: str = "") -> None:
    """Change the settings of a process on the disk."""
    for old, new in changes:
        assert service.settings.count(old) == 1
        service.settings = service.settings.replace(old, new)
    service.settings += f"\n{extra}"
    (service.directory / f"{service.command}.toml").write_text(service.settings)


def configuration(ran: Ran) -> str:
    """The line of a status that describes the configuration file."""
    (line,) = (line for line in ran.out.splitlines() if line.startswith("configuration"))
    return line


def test_a_reload_takes_what_it_can_and_names_the_rest(pair: Pair) -> None:
    """By the command; the status shows both, and that the file had changed before."""
    assert pair("commit", "g", "s", "1").code == OK
    before = pair("status", "--json").json
    assert before["config"]["path"] == str(pair.config)
    assert (before["config"]["differs"], before["mode"]) == (False, "write_back")
    write(pair.adapter, ("wal_sync = 'interval'", "wal_sync = 'always'"), extra="[flush]\ninterval_ms = 20\n")
    write(pair.adapter, extra="[[policy]]\ngroups = 'g'\nmode = 'write_through'\n")
    wait_until(lambda: pair("status", "--json").json["config"]["differs"], "the change is noticed")
    assert "THE FILE ON DISK DIFFERS" in configuration(pair("status"))
    ran = pair("reload")
    assert (ran.code, ran.err) == (
        OK,
        "warning: store.wal_sync: needs a restart of the adapter; the value of before is in force\n",
    )
    assert "flush.interval_ms 100 20" in ran.words.replace("\t", " ")
    assert ran.out.splitlines()[-1] == "2 settings changed"
    shown = pair("status", "--json").json
    assert (shown["policies"], shown["wal_sync"]) == (["*/g: write_through"], "interval")
    assert (shown["config"]["needs_restart"], shown["config"]["differs"]) == (["store.wal_sync"], False)
    assert shown["config"]["sha256"] != before["config"]["sha256"]
    assert "needs a restart: store.wal_sync" in configuration(pair("status"))
    # The policy is in force: a commit of this group fails while the Meta Service is away.
    pair.meta.kill()
    assert pair("commit", "g", "s", "2").code == ERROR
    assert pair("commit", "other", "s", "2").code == OK
    pair.meta.start()
    again = pair("reload", "--json")
    assert (again.code, again.json) == (OK, {"changed": [], "needs_restart": ["store.wal_sync"]})
    assert pair.restart().healthy()
    assert pair("status", "--json").json["config"]["needs_restart"] == []


def test_a_bad_file_is_refused_as_a_whole(pair: Pair) -> None:
    """Each bad setting is named, in the answer and in the status; nothing is changed, and SIGHUP does not end the process."""
    good = pair.adapter.settings
    write(pair.adapter, extra="[flush]\ninterval_ms = 0\nintervall = 1\n[log]\nlevel = 'debug'\n")
    ran = pair("reload")
    assert (ran.code, ran.out) == (ERROR, "")
    first, second = ran.err.splitlines()
    assert f"INVALID_ARGUMENT: {pair.config}: flush.interval_ms: " in first
    assert second == f"error: {pair.config}: flush.intervall: is not a setting; see the commented file in config/"
    assert f"the last reload was REFUSED: {pair.config}: flush.interval_ms" in configuration(pair("status"))
    pair.adapter.signal(signal.SIGHUP)
    wait_until(lambda: pair.adapter.log.count("config.refused") == 2, "the signal is answered")
    assert '"admin.call"' not in pair.adapter.log
    assert "[debug" not in pair.adapter.log
    pair.adapter.settings = good
    write(pair.adapter)
    assert pair("reload").out == "0 settings changed\n"
    shown = pair("status", "--json").json["config"]
    assert (shown["last_error"], shown["differs"]) == ("", False)


def test_a_token_is_exchanged_while_the_adapter_runs(tmp_path: Path) -> None:
    """Also without a reload, as where Kubernetes replaces a secret: the old one is refused from then on. No token is shown."""
    token, old, new = tmp_path / "token", tmp_path / "old", tmp_path / "new"
    for path, text in ((token, TOKEN), (old, TOKEN), (new, TOKEN[::-1])):
        path.write_text(text)
        path.chmod(0o600)
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, extra=f"[admin]\ntoken_file = '{token}'")

    def code(file: Path) -> int:
        return run("status", "--address", adapter.tcp_address, "--token-file", file).code

    with ended(meta, adapter):
        meta.start()
        adapter.start()
        assert (code(old), code(new)) == (OK, ERROR)
        new_one = tmp_path / "next"
        new_one.write_text(TOKEN[::-1])
        new_one.chmod(0o600)
        new_one.rename(token)
        wait_until(lambda: code(new) == OK, "the new token is taken")
        assert code(old) == ERROR
        token.write_text("short")
        ran = run("reload", OFFSET_ADAPTER_ADDRESS=adapter.address)
        assert ran.code == ERROR
        assert f"INVALID_ARGUMENT: admin.token_file: {token}: holds 5 characters" in ran.err
        assert code(new) == OK
        token.write_text(TOKEN)
        ran = run("reload", "--json", OFFSET_ADAPTER_ADDRESS=adapter.address)
        assert ran.json["changed"] == [{"field": "admin.token_file", "old": "file", "new": "new content"}]
        assert (code(old), code(new)) == (OK, ERROR)
        assert not {TOKEN, TOKEN[::-1], "short"} & set(adapter.log.split())


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        (["serve"], "SIG_IGN"),
        (["serve", "--config", "x"], "SIG_IGN"),
        (["meta"], "SIG_IGN"),
        (["meta", "--config=x"], "SIG_IGN"),
        (["meta", "--config", "x"], "SIG_IGN"),
        (["meta", "status"], "SIG_DFL"),
        (["status"], "SIG_DFL"),
        ([], "SIG_DFL"),
    ],
)
def test_a_server_ignores_sighup_before_it_imports_anything(arguments: list[str], action: str) -> None:
    """The imports take a second, in which a signal would end it without a word. Other commands end with their terminal."""
    done = subprocess.run([sys.executable, "-c", EARLY, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == f"{action}\n"


def test_a_signal_during_the_start_is_not_lost(tmp_path: Path) -> None:
    """It ends neither process, and what is in the file when it comes is taken once they run."""
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address)
    with ended(meta, adapter):
        for service, line in ((meta, "[tombstones]\ninterval_ms = 77777\n"), (adapter, "[flush]\ninterval_ms = 77\n")):
            service.launch()
            wait_until(lambda service=service: _ignores_hangup(service.pid), "it has begun")  # type: ignore[misc]
            write(service, extra=line)
            service.signal(signal.SIGHUP)
            service.wait_ready()
            # Read before or behind the change, as it came: in force is what the file says.
            wait_until(lambda service=service: _in_force(service), "it is in force")  # type: ignore[misc]
        shown = json.loads(run("status", "--json", OFFSET_ADAPTER_ADDRESS=adapter.address).out)
        assert not shown["config"]["differs"]


def _ignores_hangup(pid: int) -> bool:
    """Whether SIGHUP is ignored or handled by now (proc(5): bit masks)."""
    lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    return any(int(lines[name], 16) & 1 << (signal.SIGHUP - 1) for name in ("SigIgn", "SigCgt"))


def _in_force(service: ServiceProcess) -> bool:
    assert os.path.exists(f"/proc/{service.pid}")  # noqa: PTH110 - a pid
    if service.command == "meta":
        return service.healthy() and "config.refused" not in service.log
    shown = json.loads(run("status", "--json", OFFSET_ADAPTER_ADDRESS=service.address).out)
    return not shown["config"]["differs"] and bool(shown["config"]["sha256"])
