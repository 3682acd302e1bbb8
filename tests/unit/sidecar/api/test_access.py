"""Who may call OffsetAdmin: decided here, and over real gRPC in integration/test_access.py."""

import hmac
import os
import pwd
import socket
from pathlib import Path

import pytest

from adapter.cli.whom import default_address
from adapter.client import client
from adapter.errors import AccessDeniedError, ConfigError, UnauthenticatedError
from adapter.runtime.settings.secret_files import TOKEN_MIN, read_token
from adapter.sidecar.api.access import Access
from adapter.testing.sidecars import adapter_config
from tests.unit.calls import TCP, TOKEN, UNIX, call_of_user, context

CERTIFICATE = {"x509_subject": [b"CN=broker"], "x509_subject_alternative_name": [b"localhost"]}


def test_the_unix_socket_is_its_owners() -> None:
    """It needs no token, because its mode is 0600; the caller is the user of the adapter."""
    owner = f"unix:{pwd.getpwuid(os.geteuid()).pw_name}"
    for access in (Access(), Access(TOKEN), Access(mtls=True), Access(TOKEN, mtls=True)):
        assert access.admit(context(UNIX)) == owner


def test_a_socket_that_others_can_open_is_not_theirs_to_administer() -> None:
    """The kernel says who calls: the owner and root are admitted, others as over TCP; where nobody can tell, nobody is."""
    owner, root = pwd.getpwuid(os.geteuid()).pw_name, pwd.getpwuid(0).pw_name
    other = os.geteuid() + 4_321
    for access in (Access(private=False), Access(TOKEN, private=False)):
        assert access.admit(call_of_user(os.geteuid())) == f"unix:{owner}"
        assert access.admit(call_of_user(0)) == f"unix:{root}"
    for call in (call_of_user(other), call_of_user(None), context(UNIX)):
        with pytest.raises(AccessDeniedError, match=r"server\.unix_socket_mode.*admin\.token_file"):
            Access(private=False).admit(call)
        with pytest.raises(UnauthenticatedError):
            Access(TOKEN, private=False).admit(call)
    assert Access(TOKEN, private=False).admit(call_of_user(other, authorization=f"Bearer {TOKEN}")) == "token"


@pytest.mark.parametrize(("mode", "private"), [("0600", True), ("700", True), ("0660", False), ("0606", False)])
def test_a_socket_is_private_by_its_mode(tmp_path: Path, mode: str, private: bool) -> None:
    """As the settings say."""
    access = Access.of(adapter_config(tmp_path, server={"unix_socket_mode": mode}))
    if private:
        access.admit(context(UNIX))
    else:
        with pytest.raises(AccessDeniedError):
            access.admit(context(UNIX))


def test_tcp_is_closed_when_nothing_guards_it() -> None:
    """A token in the call does not help. The error says what to configure on both sides."""
    todo = r"set admin\.token_file, or server\.tls\.client_ca, .* \(--address unix:PATH\)"
    for call in (context(TCP), context("ipv6:%5B::1%5D:5"), context(TCP, authorization=f"Bearer {TOKEN}"), context("")):
        with pytest.raises(AccessDeniedError, match=todo):
            Access().admit(call)


@pytest.mark.parametrize("shown", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Bearer  {TOKEN} "])
def test_the_token_opens_tcp(shown: str) -> None:
    """The scheme `Bearer` is case-insensitive (RFC 9110, 11.1)."""
    assert Access(TOKEN).admit(context(TCP, authorization=shown)) == "token"


@pytest.mark.parametrize(
    "shown", ["", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ä"]
)
@pytest.mark.parametrize("mtls", [False, True])
def test_a_wrong_token_does_not(shown: str, mtls: bool) -> None:
    """A client certificate does not help either: if both are configured, the token is required."""
    with pytest.raises(UnauthenticatedError) as caught:
        Access(TOKEN, mtls=mtls).admit(context(TCP, CERTIFICATE, authorization=shown))
    assert TOKEN not in str(caught.value)


def test_a_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only by `hmac.compare_digest`, over bytes."""
    compared: list[tuple[object, object]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    with pytest.raises(UnauthenticatedError, match="wrong token"):
        Access(TOKEN).admit(context(TCP, authorization=f"Bearer {TOKEN}"))
    assert compared == [(TOKEN.encode(), TOKEN.encode())]


def test_a_certificate_opens_tcp_under_mtls() -> None:
    """Its names identify the caller; with a token too, the audit log has both."""
    who = "certificate:CN=broker localhost"
    assert Access(mtls=True).admit(context(TCP, CERTIFICATE)) == who
    assert Access(TOKEN, mtls=True).admit(context(TCP, CERTIFICATE, authorization=f"Bearer {TOKEN}")) == f"token, {who}"


def test_without_mtls_a_certificate_proves_nothing() -> None:
    """Nobody has verified it."""
    with pytest.raises(AccessDeniedError):
        Access().admit(context(TCP, CERTIFICATE))
    assert Access(TOKEN).admit(context(TCP, CERTIFICATE, authorization=f"Bearer {TOKEN}")) == "token"
    with pytest.raises(UnauthenticatedError, match="no client certificate"):
        Access(mtls=True).admit(context(TCP))


def test_access_is_as_the_settings_say(tmp_path: Path) -> None:
    """token_file and client_ca give access; a server certificate alone does not."""
    path = _file(tmp_path, TOKEN)
    tls = {"cert": "c", "key": "k"}
    plain = Access.of(adapter_config(tmp_path, server={"tls": tls}))
    mutual = Access.of(adapter_config(tmp_path, server={"tls": {**tls, "client_ca": "ca"}}))
    token = Access.of(adapter_config(tmp_path, admin={"token_file": str(path)}))
    with pytest.raises(AccessDeniedError):
        plain.admit(context(TCP, CERTIFICATE))
    assert mutual.admit(context(TCP, CERTIFICATE)).startswith("certificate:")
    assert token.admit(context(TCP, authorization=f"Bearer {TOKEN}")) == "token"


def _file(directory: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path = directory / "token"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("content", [TOKEN, f"{TOKEN}\n", f"  {TOKEN}\r\n"])
def test_a_token_file_holds_one_token(tmp_path: Path, content: str) -> None:
    """White space around it is removed, because editors and `echo` add a newline."""
    assert read_token(_file(tmp_path, content), "admin.token_file") == TOKEN


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "holds 0 characters, a token needs at least 16"),
        (" \n", "holds 0 characters"),
        (TOKEN[1:], "holds 15 characters"),
        (f"{TOKEN}\n{TOKEN}", "one line"),
        (f"{TOKEN}\x00{TOKEN}", "printable"),
        (f"{TOKEN}ä", "ASCII"),
        (b"\xff" * TOKEN_MIN, "ASCII"),
    ],
)
def test_a_file_without_a_usable_token_is_refused(tmp_path: Path, content: str | bytes, why: str) -> None:
    """The error names the setting, and does not show the content."""
    path = _file(tmp_path, content)
    with pytest.raises(ConfigError, match=rf"^admin\.token_file: {path}: .*{why}") as caught:
        read_token(path, "admin.token_file")
    assert TOKEN[1:] not in str(caught.value)


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """If it is missing or a directory."""
    for path, why in ((tmp_path / "no", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=rf"^--token-file: {path}: cannot be read: {why}"):
            read_token(path, "--token-file")


def test_a_client_says_who_it_is_in_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata of gRPC takes no other characters; the call would fail."""
    monkeypatch.setenv("LOGNAME", "j\u00fcr\ngen x")
    assert client._printable(client._user()) == "j?r?gen?x"

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 10001")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert client._user() == str(os.getuid())


def test_the_default_address_is_the_socket_when_it_is_there(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default socket in the working directory, if it is a socket, else the default TCP address."""
    monkeypatch.chdir(tmp_path_factory.mktemp("a"))
    assert default_address() == "127.0.0.1:9520"
    path = Path("data/adapter.sock")
    path.parent.mkdir()
    path.write_text("")
    assert default_address() == "127.0.0.1:9520"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        assert default_address() == "unix:data/adapter.sock"
