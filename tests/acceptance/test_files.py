"""Commands about files: check-config, repair, and a first start as the README says it."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.testing.processes import free_port
from adapter.testing.waiting import eventually
from tests.acceptance.conftest import Pair, run

OK, FAILED, ERROR = 0, 1, 2
CONFIG = Path(__file__).parents[2] / "config"


@pytest.mark.parametrize(("kind", "name"), [("adapter", "adapter.toml"), ("meta", "meta.toml")])
def test_the_shipped_files_hold_the_defaults(tmp_path: Path, kind: str, name: str) -> None:
    """Checked, shown, and the same as no file at all: every value there is the default."""
    (tmp_path / "empty.toml").write_text("")
    shipped = run("check-config", "--kind", kind, CONFIG / name, "--json")
    default = run("check-config", "--kind", kind, tmp_path / "empty.toml", "--json")
    assert (shipped.code, default.code) == (OK, OK)
    assert shipped.json == default.json
    assert "server.listen" in run("check-config", "--kind", kind, CONFIG / name).words


def test_every_setting_is_in_the_shipped_files() -> None:
    """Commented out or not: a user need not read the code."""
    for kind in ("adapter", "meta"):
        text = (CONFIG / f"{kind}.toml").read_text()
        sections = run("check-config", "--kind", kind, CONFIG / f"{kind}.toml", "--json").json
        names = {name for section in sections.values() if isinstance(section, dict) for name in section} | sections.keys()
        assert {name for name in names if name not in text} == set()


def test_check_config_names_every_bad_setting(tmp_path: Path) -> None:
    """Exit 2, one line each, nothing shown."""
    path = tmp_path / "a.toml"
    path.write_text("[flush]\ninterval_ms = 'x'\nnonsense = 1\n[store]\nwal_sync = 'sometimes'\n")
    ran = run("check-config", path)
    assert (ran.code, ran.out) == (ERROR, "")
    assert ran.err.splitlines() == [
        f"error: {path}: store.wal_sync: Input should be 'always', 'interval' or 'never' (got 'sometimes')",
        f"error: {path}: flush.interval_ms: Input should be a valid integer (got 'x')",
        f"error: {path}: flush.nonsense: is not a setting; see the commented file in config/",
    ]
    missing = run("check-config", tmp_path / "no.toml")
    assert (missing.code, missing.err) == (ERROR, f"error: {tmp_path}/no.toml: cannot be read: No such file or directory\n")


@pytest.mark.parametrize(
    ("meta", "warning"),
    [
        ("endpoints = ['10.1.2.3:9530']", "warning: meta.endpoints: 10.1.2.3:9530 is on another machine: without [meta.tls]"),
        ("[meta.tls]\nca = 'ca.crt'", "warning: meta.tls: RobustMQ's Meta Service has no TLS"),
        ("endpoints = ['127.0.0.1:9530', 'localhost:1']", ""),
    ],
)
def test_check_config_warns_of_an_open_way_to_the_meta_service(tmp_path: Path, meta: str, warning: str) -> None:
    """Allowed, and possibly not meant. Standard output has the settings alone."""
    path = tmp_path / "a.toml"
    path.write_text(f"[meta]\n{meta}\n")
    ran = run("check-config", "--syntax-only", path, "--json")
    assert ran.json["meta"]["cluster"] == "default"
    assert warning in ran.err
    assert bool(ran.err) is bool(warning)


def test_check_config_refuses_the_files_that_the_process_would_refuse(tmp_path: Path) -> None:
    """All of them at once, each by its setting; with --syntax-only it leaves them alone."""
    path, token = tmp_path / "a.toml", tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o644)
    path.write_text(f"[admin]\ntoken_file = '{token}'\n[meta.tls]\nca = '{tmp_path}/none'\n")
    ran = run("check-config", path)
    assert (ran.code, ran.out) == (ERROR, "")
    tls, secret = ran.err.splitlines()
    assert tls.startswith(f"error: {path}: meta.tls: {tmp_path}/none: No such file or directory")
    assert secret.startswith(f"error: {path}: admin.token_file: {token}: others than its owner have access to it: chmod 600")
    assert run("check-config", "--syntax-only", path).code == OK
    assert f"meta.tls: {tmp_path}/none: No such file or directory" in run("serve", "--config", path).err


def test_check_config_knows_the_kinds_apart(pair: Pair) -> None:
    """An adapter's file is not a Meta Service's."""
    assert run("check-config", pair.config).code == OK
    ran = run("check-config", "--kind", "meta", pair.config)
    assert ran.code == ERROR
    assert "store.wal_sync: is not a setting" in ran.err


def test_repair_keeps_everything_and_leaves_a_copy(pair: Pair) -> None:
    """On a store without damage: all keys are there, beside the copy, and the adapter starts on it."""
    for number in range(5):
        pair("commit", "g", f"s{number}", str(number))
    pair.adapter.kill()
    ran = run("repair", "--config", pair.config, "--yes")
    assert ran.code == OK
    assert ran.out.startswith("Repaired: 5 keys readable. ")
    (copy,) = pair.directory.glob("adapter.damaged-*")
    assert f"kept in {copy}" in ran.out
    assert (copy / "db").is_dir()
    pair.restart()
    assert [row["offset"] for row in pair("get", "g", "--mode", "memory", "--json").json] == list(range(5))


async def test_repair_can_start_from_the_meta_service(pair: Pair) -> None:
    """The store is set aside whole, and what the Meta Service holds is read from there."""
    pair("commit", "g", "s", "5")
    assert pair("flush").code == OK
    pair.adapter.kill()
    ran = run("repair", "--config", pair.config, "--start-from-meta", "--yes")
    assert ran.code == OK
    assert ran.out.startswith("The store is set aside in ")
    assert not (pair.directory / "adapter").exists()
    pair.restart()
    await eventually(pair.adapter.healthy, 30)
    assert "the Meta Service remembers another store here" in pair("status", "--json").json["loss"]["why"]
    # What a store has that is not the one that the Meta Service remembers may lack anything: it asks for what is absent.
    assert pair("get", "g", "--mode", "memory", "--json").json[0]["offset"] == 5


def test_repair_asks_and_takes_no_for_an_answer(pair: Pair) -> None:
    """Without --yes; nothing is touched then."""
    pair("commit", "g", "s", "5")
    pair.adapter.kill()
    for answer in ("n\n", ""):
        ran = run("repair", "--config", pair.config, answer=answer)
        assert ran.code != OK
        assert "Go on? [y/N]" in ran.out
    assert not list(pair.directory.glob("adapter.damaged-*"))
    assert run("repair", "--config", pair.config, answer="y\n").code == OK


@pytest.mark.parametrize("how", [[], ["--start-from-meta"]], ids=["repair", "start_from_meta"])
def test_repair_leaves_a_running_adapter_alone(pair: Pair, how: list[str]) -> None:
    """It says that the store is open; no copy is left behind, and commits go on."""
    pair("commit", "g", "s", "5")
    ran = run("repair", "--config", pair.config, "--yes", *how)
    assert ran.code == ERROR
    assert "another process has this store open" in ran.err
    assert not list(pair.directory.glob("adapter.damaged-*"))
    assert pair("commit", "g", "s", "6").code == OK
    pair.restart()
    assert pair("get", "g", "s", "--mode", "memory", "--json").json[0]["offset"] == 6


@pytest.mark.parametrize("how", [[], ["--start-from-meta"]], ids=["repair", "start_from_meta"])
def test_repair_of_nothing_is_an_error(tmp_path: Path, how: list[str]) -> None:
    """Most likely the path is wrong: it is named, and not created."""
    config = tmp_path / "a.toml"
    config.write_text(f"[store]\npath = '{tmp_path}/no'")
    ran = run("repair", "--config", config, "--yes", *how)
    assert ran.code == ERROR
    assert f"{tmp_path}/no" in ran.err
    assert "does not exist" in ran.err
    assert not (tmp_path / "no").exists()


def test_a_damaged_store_says_what_can_be_done_and_repair_does_it(pair: Pair) -> None:
    """The start names `offset-adapter repair`; it never begins an empty store in its place."""
    pair("commit", "g", "s", "5")
    assert pair("flush").code == OK
    pair.adapter.kill()
    (pair.directory / "adapter" / "db" / "CURRENT").unlink()
    with pytest.raises(RuntimeError, match="offset-adapter repair"):
        pair.adapter.start()
    assert pair.adapter.process is not None
    assert pair.adapter.process.returncode == FAILED
    assert "Traceback" not in pair.adapter.log
    assert run("repair", "--config", pair.config, "--yes").code == OK
    pair.restart()
    assert pair("get", "g", "s", "--json").json[0]["offset"] == 5


def test_a_first_start_with_the_shipped_settings_works_in_an_empty_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """As the README says it, in the order of the adapter first; only the ports are others, so that tests do not meet."""
    directory = tmp_path_factory.mktemp("e")
    for name in ("adapter", "meta"):
        shutil.copy(CONFIG / f"{name}.toml", directory)
    port, meta_port = free_port(), free_port()
    ports = {"9520": port, "9521": free_port(), "9530": meta_port, "9531": free_port()}
    for name in ("adapter", "meta"):
        path = directory / f"{name}.toml"
        text = path.read_text()
        for shipped, other in ports.items():
            text = text.replace(f"127.0.0.1:{shipped}", f"127.0.0.1:{other}")
        path.write_text(text)
    processes = []
    try:
        for command, name in (("serve", "adapter"), ("meta", "meta")):
            arguments = [sys.executable, "-m", "adapter", command, "--config", f"{name}.toml"]
            with (directory / f"{name}.log").open("w") as log:
                processes.append(subprocess.Popen(arguments, cwd=directory, stderr=log, stdout=log))
        _ready(directory, processes, port, meta_port)
        assert run("commit", "g", "s", "1", "--address", "unix:data/adapter.sock", cwd=directory).code == OK
        for process in processes:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == OK
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _ready(directory: Path, processes: list[subprocess.Popen[bytes]], *ports: int) -> None:
    while any(run("health", "--address", f"127.0.0.1:{port}").code != OK for port in ports):
        assert all(process.poll() is None for process in processes), [log.read_text() for log in directory.glob("*.log")]
