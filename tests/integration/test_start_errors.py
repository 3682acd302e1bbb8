"""A start that cannot work ends with an exit code and one clear line, never with a traceback."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port
from tests import forking
from tests.integration.certificates import Authority
from tests.integration.helpers import PATIENCE_S, commits, rpc

EXIT_FAILED, EXIT_CONFIG = 1, 2
NOWHERE = "127.0.0.1:1"


def _run(settings: str, directory: Path, command: str = "serve", prefix: Sequence[str] = ()) -> tuple[int, str]:
    """Start a process that is to fail; its exit code and its one line of error."""
    config = directory / f"{command}.toml"
    config.write_text(settings)
    arguments = [command, "--config", str(config)]
    if prefix:
        line = [*prefix, sys.executable, "-m", "adapter", *arguments]
        ran = subprocess.run(line, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    else:
        ran = _ran(*arguments)
    assert "Traceback" not in ran.stderr + ran.stdout
    errors = [line for line in (ran.stderr + ran.stdout).splitlines() if "[info " not in line]
    assert len(errors) == 1, errors
    return ran.returncode, errors[0]


def _ran(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forking.run(arguments, Path.cwd(), os.environ, PATIENCE_S)


def _settings(directory: Path, server: str = "", metrics: str = "listen = ''", store: Path | None = None, more: str = "") -> str:
    listen = "" if "listen" in server else "listen = '127.0.0.1:0'"
    return f"""
[server]
{listen}
unix_socket = ''
{server}
[metrics]
{metrics}
[store]
path = '{store or directory / "adapter"}'
{more}"""


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on, who would even share it: two adapters on it would each get half of the commits."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as listener:
        yield listener.getsockname()[1]


BAD_SETTINGS = {
    "unknown_key": ("[flush]\nintervall_ms = 5", "flush.intervall_ms: is not a setting; see the commented file in config/"),
    "unknown_section": ("[flusher]\ninterval_ms = 5", "flusher: is not a setting; see the commented file in config/"),
    "wrong_type": ("[flush]\ninterval_ms = 'fast'", "flush.interval_ms: Input should be a valid integer (got 'fast')"),
    "bool_for_number": ("[flush]\ninterval_ms = true", "flush.interval_ms: Input should be a valid integer (got True)"),
    "number_for_text": ("[meta]\ncluster = 5", "meta.cluster: Input should be a valid string (got 5)"),
    "too_small": ("[flush]\ninterval_ms = 0", "flush.interval_ms: Input should be greater than or equal to 1 (got 0)"),
    "too_large": (
        "[recovery]\nbatch_keys = 99999",
        "recovery.batch_keys: Input should be less than or equal to 20000 (got 99999)",
    ),
    "unknown_mode": (
        "[[policy]]\ngroups = 'a'\nmode = 'fast'",
        "policy.0.mode: Input should be 'write_back' or 'write_through' (got 'fast')",
    ),
    "no_endpoint": (
        "[meta]\nendpoints = []",
        "meta.endpoints: is empty; at least one endpoint is needed (got [])",
    ),
    "bad_endpoint": ("[meta]\nendpoints = ['x']", "meta.endpoints.0: 'x' is not host:port with a port from 0 to 65535 (got 'x')"),
    "bad_cluster": ("[meta]\ncluster = ''", "meta.cluster: the name is empty (got '')"),
}


@pytest.mark.parametrize(("more", "problem"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_a_bad_setting_is_named(directory: Path, more: str, problem: str) -> None:
    """File, section, key, why, and what was found. Nothing is started."""
    code, line = _run(_settings(directory, more=more), directory)
    assert (code, line) == (EXIT_CONFIG, f"error: {directory}/serve.toml: {problem}")
    assert not (directory / "adapter").exists()


def test_each_of_several_bad_settings_is_named(directory: Path) -> None:
    """One line each, so that one run is enough."""
    config = directory / "serve.toml"
    config.write_text("[flush]\ninterval_ms = 0\nx = 1\n[stop]\ngrace_ms = -1")
    ran = _ran("serve", "--config", config)
    assert ran.returncode == EXIT_CONFIG
    assert [line.split(": ")[2] for line in ran.stderr.splitlines()] == ["flush.interval_ms", "flush.x", "stop.grace_ms"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("[flush", "is not valid TOML"),
        ("a = 1\na = 2", "is not valid TOML"),
        ("[server]\nlisten = '127.0.0.1:0'\nx = \"\udcff\"", ""),
    ],
    ids=["cut_off", "twice", "no_toml_at_all"],
)
def test_a_file_that_is_no_toml_is_told(directory: Path, settings: str, problem: str) -> None:
    """With the place, where TOML knows one."""
    (directory / "serve.toml").write_bytes(settings.encode(errors="surrogateescape"))
    ran = _ran("serve", "--config", directory / "serve.toml")
    assert ran.returncode == EXIT_CONFIG
    assert ran.stderr.startswith(f"error: {directory}/serve.toml: is not valid TOML")
    assert problem in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_file_that_is_missing_is_named(directory: Path) -> None:
    """And nothing is started with defaults in its place."""
    ran = _ran("serve", "--config", directory / "no.toml")
    assert (ran.returncode, ran.stderr) == (
        EXIT_CONFIG,
        f"error: {directory}/no.toml: cannot be read: No such file or directory\n",
    )


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "broker.example:0"])
@pytest.mark.parametrize("command", ["serve", "meta"])
def test_listening_beyond_loopback_without_tls_is_refused(directory: Path, address: str, command: str) -> None:
    """It says what can be done: TLS, loopback, or plain words in the configuration."""
    code, line = _run(f"[server]\nlisten = '{address}'", directory, command)
    assert code == EXIT_CONFIG
    assert f"server: listen = '{address}' is reachable from other machines, without TLS" in line
    assert "allow_plaintext_beyond_loopback = true" in line


def test_metrics_beyond_loopback_are_refused(directory: Path) -> None:
    """They have no TLS at all."""
    code, line = _run(_settings(directory, metrics="listen = '0.0.0.0:0'"), directory)
    assert code == EXIT_CONFIG
    assert "metrics: listen = '0.0.0.0:0' is reachable from other machines" in line
    assert "allow_beyond_loopback = true" in line


def test_plaintext_beyond_loopback_can_be_allowed_in_plain_words(directory: Path) -> None:
    """The setting does what its name says."""
    port = free_port()
    settings = _settings(directory, f"listen = '0.0.0.0:{port}'\nallow_plaintext_beyond_loopback = true")
    adapter = ServiceProcess("serve", directory, f"{settings}\n[recovery]\ntimeout_ms = 0", port)
    with ended(adapter):
        adapter.start()
        assert adapter.stop() == 0


@pytest.mark.parametrize("command", ["serve", "meta"])
def test_a_port_in_use_is_named(directory: Path, taken: int, command: str) -> None:
    """The adapter's and the Meta Service's gRPC port."""
    store = f"[store]\npath = '{directory / 'meta'}'"
    settings = f"[server]\nlisten = '127.0.0.1:{taken}'\nunix_socket = ''\n[metrics]\nlisten = ''\n"
    code, line = _run(settings + (store if command == "meta" else ""), directory, command)
    assert code == EXIT_FAILED
    assert f"server.listen = '127.0.0.1:{taken}'" in line
    assert "stop what uses it" in line


def test_a_metrics_port_in_use_is_named(directory: Path, taken: int) -> None:
    """As its own setting."""
    code, line = _run(_settings(directory, metrics=f"listen = '127.0.0.1:{taken}'"), directory)
    assert code == EXIT_FAILED
    assert f"metrics.listen = '127.0.0.1:{taken}'" in line
    assert "Address already in use" in line


def test_a_second_process_on_the_same_directory_is_refused(directory: Path) -> None:
    """The first goes on, its commits included."""
    first = adapter_process(directory, NOWHERE, extra="[recovery]\ntimeout_ms = 0\n[stop]\ndrain_timeout_ms = 0")
    (directory / "2").mkdir()
    with ended(first):
        first.start()
        code, line = _run(_settings(directory), directory / "2")
        assert code == EXIT_FAILED, line
        assert f"{directory}/adapter" in line
        assert "another process has this store open; stop it, or give this one another path" in line
        with rpc(first.address) as stubs:
            stubs.store.CommitOffsets(commits({"s": 1}), timeout=PATIENCE_S)


def test_a_second_meta_service_on_the_same_directory_is_refused(directory: Path, meta: ServiceProcess) -> None:
    """With the same words."""
    (directory / "2").mkdir()
    code, line = _run(meta.settings.replace(str(meta.port), str(free_port())), directory / "2", "meta")
    assert code == EXIT_FAILED
    assert "another process has this store open" in line
    assert meta.healthy()


@pytest.fixture
def unprivileged() -> Sequence[str]:
    """What makes a process obey file modes: root without the right to pass them over, anybody else as they are."""
    if os.getuid():
        return ()
    if not shutil.which("setpriv"):
        pytest.skip("not run: this is root, and setpriv is not on PATH")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


@pytest.mark.parametrize("mode", [0o000, 0o500], ids=["no_access", "read_only"])
@pytest.mark.parametrize("place", ["parent", "itself", "db"])
def test_a_directory_without_permission_is_named(directory: Path, unprivileged: Sequence[str], mode: int, place: str) -> None:
    """Whichever directory it is that may not be written."""
    store = directory / "parent" / "adapter"
    (store / "db").mkdir(parents=True)
    closed = {"parent": store.parent, "itself": store, "db": store / "db"}[place]
    if place == "parent":
        shutil.rmtree(store)
    closed.chmod(mode)
    try:
        code, line = _run(_settings(directory, store=store), directory, prefix=unprivileged)
    finally:
        closed.chmod(0o700)
    assert code == EXIT_FAILED
    assert str(closed) in line
    assert "Permission denied" in line


def test_a_meta_directory_without_permission_is_named(directory: Path, unprivileged: Sequence[str]) -> None:
    """As the adapter's."""
    closed = directory / "closed"
    closed.mkdir(mode=0o500)
    settings = f"[server]\nlisten = '127.0.0.1:0'\n[metrics]\nlisten = ''\n[store]\npath = '{closed / 'meta'}'"
    code, line = _run(settings, directory, "meta", unprivileged)
    assert code == EXIT_FAILED
    assert str(closed) in line
    assert "Permission denied" in line


def test_a_file_in_the_place_of_the_directory_is_named(directory: Path) -> None:
    """It is left as it is."""
    (directory / "adapter").write_text("data")
    code, line = _run(_settings(directory), directory)
    assert code == EXIT_FAILED
    assert f"{directory}/adapter" in line
    assert (directory / "adapter").read_text() == "data"


SOCKETS = {
    "too_long": ("x" * 120, "is over 107 bytes long; choose a shorter path"),
    "below_a_file": ("serve.toml/a.sock", "serve.toml"),
}


@pytest.mark.parametrize(("path", "problem"), SOCKETS.values(), ids=SOCKETS)
def test_a_unix_socket_that_cannot_be_made_is_named(directory: Path, path: str, problem: str) -> None:
    """Too long, or nowhere."""
    settings = _settings(directory).replace("unix_socket = ''", f"unix_socket = '{directory / path}'")
    code, line = _run(settings, directory)
    assert code == EXIT_FAILED
    assert f"server.unix_socket = '{directory / path}'" in line
    assert problem in line


def test_a_tls_file_that_may_not_be_read_is_named(directory: Path, unprivileged: Sequence[str]) -> None:
    """The adapter's key, and the authority for the Meta Service."""
    cert, closed = Authority(directory).issue("server")
    closed.chmod(0)
    files = f"cert = '{cert}'\nkey = '{closed}'"
    code, line = _run(_settings(directory, more=f"[server.tls]\n{files}"), directory, prefix=unprivileged)
    assert code == EXIT_FAILED
    assert "server.tls: " in line
    assert f"{closed}: Permission denied" in line
    code, line = _run(_settings(directory, more=f"[meta.tls]\nca = '{directory / 'no'}'"), directory)
    assert code == EXIT_FAILED
    assert f"meta.tls: {directory / 'no'}: No such file or directory" in line


def test_a_tls_key_without_its_certificate_is_a_bad_setting(directory: Path) -> None:
    """They belong together."""
    code, line = _run(_settings(directory, more="[meta.tls]\nca = 'a'\nkey = 'k'"), directory)
    assert (code, line) == (
        EXIT_CONFIG,
        f"error: {directory}/serve.toml: meta.tls: cert and key belong together: give both or none",
    )
