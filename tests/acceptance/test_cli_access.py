"""The command line and who may call OffsetAdmin: the default address, the token, and what a refused person is told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.testing.processes import ServiceProcess, adapter_process, ended
from tests.acceptance.conftest import Pair, Ran, run
from tests.integration.certificates import Authority

OK, NO, ERROR = 0, 1, 2
TOKEN = "correct-horse-battery-staple"  # noqa: S105 - an example


def _file(directory: Path, name: str, token: str) -> Path:
    path = directory / name
    path.write_text(f"{token}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def guarded(shared: Pair) -> Iterator[str]:
    """The TCP address of an adapter that wants a token there."""
    directory = shared.directory / "guarded"
    directory.mkdir()
    token_file = _file(shared.directory, "token", TOKEN)
    adapter = adapter_process(directory, shared.meta.address, extra=f"[admin]\ntoken_file = '{token_file}'")
    with ended(adapter):
        adapter.start()
        yield adapter.tcp_address


def _refused(ran: Ran, status: str, *texts: str) -> None:
    assert (ran.code, ran.out) == (ERROR, "")
    (line,) = ran.err.splitlines()
    assert f": {status}: " in line
    assert all(text in line for text in texts)


def test_on_tcp_an_admin_command_is_told_what_to_do(shared: Pair) -> None:
    """The Unix socket, or a setting. Commits and reads work there, and so does the health."""
    address = shared.adapter.tcp_address
    for command in ("status", "flush"):
        ran = run(command, "--address", address)
        _refused(ran, "PERMISSION_DENIED", "admin.token_file", "server.tls.client_ca", "--address unix:PATH")
    assert run("commit", "tcp", "s", "1", "--address", address).code == OK
    assert run("get", "tcp", "s", "--address", address).code == OK
    assert run("list", "--address", address).code == OK
    assert run("health", "--address", address).code == OK


def test_a_token_file_opens_tcp(shared: Pair, guarded: str) -> None:
    """By option or environment; a wrong token, or none, is told."""
    right, wrong = shared.directory / "token", _file(shared.directory, "wrong", TOKEN[::-1])
    assert run("status", "--address", guarded, "--token-file", right).code == OK
    assert run("flush", OFFSET_ADAPTER_ADDRESS=guarded, OFFSET_ADAPTER_TOKEN_FILE=str(right)).code == OK
    _refused(run("status", "--address", guarded), "UNAUTHENTICATED", "no token", "--token-file")
    ran = run("status", "--address", guarded, "--token-file", wrong)
    _refused(ran, "UNAUTHENTICATED", "wrong token")
    assert TOKEN[::-1] not in ran.err


def test_a_bad_token_file_is_told(guarded: str, tmp_path: Path) -> None:
    """Nobody is called."""
    ran = run("status", "--address", guarded, "--token-file", tmp_path / "no")
    assert (ran.code, ran.err) == (ERROR, f"error: --token-file: {tmp_path / 'no'}: cannot be read: No such file or directory\n")


def test_the_default_address_is_the_default_socket_when_it_is_there(shared: Pair, tmp_path: Path) -> None:
    """Below the working directory, as the shipped settings have it; the environment comes first."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "adapter.sock").symlink_to(shared.adapter.address.removeprefix("unix:"))
    assert run("status", cwd=tmp_path).code == OK
    assert run("status", cwd=tmp_path, OFFSET_ADAPTER_ADDRESS="127.0.0.1:1").code == ERROR


@pytest.mark.parametrize("command", ["status", "list", "flush"])
def test_the_help_tells_both_options(command: str) -> None:
    """And the rule for the default address."""
    words = " ".join(run(command, "--help").out.split())
    assert "unix:data/adapter.sock if it is there, else 127.0.0.1:9520" in words
    assert "--token-file" in words
    assert "OFFSET_ADAPTER_TOKEN_FILE" in words


@pytest.fixture(scope="module")
def mutual(shared: Pair) -> Iterator[ServiceProcess]:
    """An adapter that asks for certificates on TCP. Its directory holds them."""
    directory = shared.directory / "mutual"
    directory.mkdir()
    authority = Authority(directory)
    server, _ = authority.issue("server"), authority.issue("person")
    extra = f"[server.tls]\ncert = '{server.cert}'\nkey = '{server.key}'\nclient_ca = '{authority.cert}'"
    adapter = adapter_process(directory, shared.meta.address, extra=extra)
    with ended(adapter):
        adapter.start()
        yield adapter


def test_the_command_line_speaks_mtls(mutual: ServiceProcess) -> None:
    """Every kind of command; who it was is in the audit log."""
    at = mutual.directory
    shown = {"--tls-ca": "ca.crt", "--tls-cert": "ca-person.crt", "--tls-key": "ca-person.key"}
    tls = ["--address", mutual.tcp_address, *(f"{option}={at / name}" for option, name in shown.items())]
    assert run("health", *tls).code == OK
    assert run("commit", "tls", "s", "7", *tls).code == OK
    assert run("status", *tls).code == OK
    assert run("offsets", "reset", "tls", "--to-offset", "3", "--execute", *tls).code == OK
    assert run("get", "tls", "s", "--json", *tls).json[0]["offset"] == 3
    (line,) = [line for line in mutual.log.splitlines() if "ResetOffsets" in line and "dry_run=False" in line]
    assert "certificate:CN=person" in line


def test_without_a_certificate_nobody_comes_in(mutual: ServiceProcess) -> None:
    """And without the right CA nobody is spoken to."""
    at, address = mutual.directory, mutual.tcp_address
    assert run("status", "--address", address, "--tls-ca", at / "ca.crt").code == ERROR
    assert run("status", "--address", address).code == ERROR
    assert run("health", "--address", address).code == NO
    assert run("status", "--address", mutual.address, "--tls-ca", at / "ca.crt").code == OK  # the Unix socket has no TLS


def test_bad_tls_options_are_told(mutual: ServiceProcess) -> None:
    """What is missing, or cannot be read."""
    at = mutual.directory
    half = run("status", "--tls-ca", at / "ca.crt", "--tls-cert", at / "ca-person.crt")
    assert (half.code, "cert and key belong together" in half.err) == (ERROR, True)
    lonely = run("status", "--tls-cert", at / "ca-person.crt", "--tls-key", at / "ca-person.key")
    assert (lonely.code, lonely.err) == (ERROR, "error: --tls-ca, --tls-cert, --tls-key: ca: Field required\n")
    missing = run("status", "--address", "127.0.0.1:1", "--tls-ca", at / "no")
    assert (missing.code, missing.err) == (ERROR, f"error: tls: {at / 'no'}: No such file or directory\n")


@pytest.mark.parametrize("address", ["192.0.2.1:9520", "broker.example:9520", "dns:///broker.example:9520", "broker.example"])
def test_a_token_does_not_leave_the_machine_in_plaintext(tmp_path: Path, address: str) -> None:
    """Nobody is called: it would be read by everybody on the way."""
    ran = run("status", "--address", address, "--token-file", _file(tmp_path, "token", TOKEN))
    assert (ran.code, len(ran.err.splitlines())) == (ERROR, 1)
    assert ran.err.startswith(f"error: {address}: the token would go there in plaintext")
    assert "--tls-ca" in ran.err
