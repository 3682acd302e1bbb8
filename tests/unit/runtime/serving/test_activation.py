"""Sockets that a service manager hands over: which are taken, and what is said of the others."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.errors import ListenError
from adapter.runtime.serving import activation
from adapter.runtime.serving.activation import inherited
from adapter.runtime.settings.config import ServerSection


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """Sockets that count as handed over; descriptor numbers of a test process begin anywhere."""
    made: list[socket.socket] = []

    def opened(at: int) -> socket.socket:
        return actual(os.dup(made[at].fileno()))

    actual = activation._opened  # descriptors 3 and 4 are others in this process
    monkeypatch.setattr(activation, "FIRST", 0)
    monkeypatch.setattr(activation, "_opened", opened)
    yield made
    for each in made:
        each.close()


def environment(count: object = 1, pid: object = None) -> dict[str, str]:
    """What the service manager sets."""
    return {"LISTEN_PID": str(pid or os.getpid()), "LISTEN_FDS": str(count), "LISTEN_FDNAMES": "a.socket", "HOME": "/"}


def tcp(address: str = "127.0.0.1") -> socket.socket:
    """A socket that listens."""
    return socket.create_server((address, 0))


def unix(path: Path, mode: int = 0o600) -> socket.socket:
    """A Unix socket that listens."""
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    path.chmod(mode)
    made.listen()
    return made


def section(listen: str = "127.0.0.1:0", **settings: Any) -> ServerSection:
    """The settings of a server."""
    return ServerSection(listen=listen, **settings)


def test_without_variables_nothing_is_taken() -> None:
    """The process opens its addresses itself."""
    assert inherited(section(), {"HOME": "/"}).all == []


def test_what_is_for_another_process_is_left_alone() -> None:
    """A service that starts this one by a shell, and keeps the sockets for itself."""
    assert inherited(section(), environment(pid=os.getpid() + 1)).all == []


def test_sockets_are_matched_by_their_kind(handed: list[socket.socket], tmp_path: Path) -> None:
    """In any order; the variables are removed, so that no child takes them for its own."""
    handed += [unix(tmp_path / "a.sock"), tcp()]
    variables = environment(2)
    found = inherited(section(unix_socket=str(tmp_path / "a.sock")), variables)
    try:
        assert variables == {"HOME": "/"}
        assert [each.getsockname() for each in found.tcp] == [handed[1].getsockname()]
        assert [each.getsockname() for each in found.unix] == [str(tmp_path / "a.sock")]
        assert all(not each.get_inheritable() and not each.getblocking() for each in found.all)
    finally:
        found.close()


def test_all_addresses_of_a_name_are_taken(handed: list[socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket for each, as systemd opens them for two ListenStream=."""
    handed += [tcp(), tcp("127.0.0.2")]
    port = handed[0].getsockname()[1]
    resolved = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ("127.0.0.1", "127.0.0.2")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolved)
    found = inherited(section("localhost:0"), environment(2))
    assert len(found.tcp) == 2
    found.close()


def test_another_tcp_address_is_an_error_that_names_both(handed: list[socket.socket]) -> None:
    """Clients would connect to the one of the settings, where nobody listens."""
    handed.append(tcp())
    port = handed[0].getsockname()[1]
    for listen in (f"127.0.0.1:{port % 65_535 + 1}", f"127.0.0.2:{port}"):
        with pytest.raises(
            ListenError, match=rf"server.listen = '{listen}', .* handed over 127.0.0.1:{port}: make ListenStream="
        ):
            inherited(section(listen), environment())


def test_another_unix_socket_is_an_error_that_names_both(handed: list[socket.socket], tmp_path: Path) -> None:
    """Also when the settings name none."""
    handed.append(unix(tmp_path / "a.sock"))
    for path in (str(tmp_path / "b.sock"), ""):
        with pytest.raises(
            ListenError, match=rf"server.unix_socket = '{path}', .* handed over {tmp_path}/a.sock: make ListenStream="
        ):
            inherited(section(unix_socket=path), environment())


def test_a_link_to_the_directory_of_a_socket_is_the_same_place(handed: list[socket.socket], tmp_path: Path) -> None:
    """/var/run is /run."""
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    handed.append(unix(tmp_path / "run" / "a.sock"))
    found = inherited(section(unix_socket=str(tmp_path / "link" / "a.sock")), environment())
    assert len(found.unix) == 1
    found.close()


def test_a_socket_that_is_open_to_others_than_the_settings_say_is_refused(handed: list[socket.socket], tmp_path: Path) -> None:
    """Who reads unix_socket_mode = 0600 relies on it; the group as well."""
    path = tmp_path / "a.sock"
    handed.append(unix(path, 0o666))
    with pytest.raises(
        ListenError, match="unix_socket_mode = '0600', and the service manager's socket has 0666: make SocketMode="
    ):
        inherited(section(unix_socket=str(path)), environment())
    path.chmod(0o660)
    with pytest.raises(
        ListenError, match=r"unix_socket_group = '54321', and the service manager's socket has the group .* SocketGroup="
    ):
        inherited(section(unix_socket=str(path), unix_socket_mode="0660", unix_socket_group="54321"), environment())


def test_a_unix_socket_without_its_file_is_refused(handed: list[socket.socket], tmp_path: Path) -> None:
    """Nobody could connect to it."""
    handed.append(unix(tmp_path / "a.sock"))
    (tmp_path / "a.sock").unlink()
    with pytest.raises(ListenError, match=r"is gone .*: restart the socket unit"):
        inherited(section(unix_socket=str(tmp_path / "a.sock")), environment())


def test_two_unix_sockets_are_refused(handed: list[socket.socket], tmp_path: Path) -> None:
    """The same one, in two units."""
    handed += [unix(tmp_path / "a.sock")] * 2
    with pytest.raises(ListenError, match="handed it over twice"):
        inherited(section(unix_socket=str(tmp_path / "a.sock")), environment(2))


def test_what_does_not_listen_is_refused(handed: list[socket.socket]) -> None:
    """Accept=yes hands over a connection, ListenDatagram= a UDP socket."""
    handed += [socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket()]
    for each in range(2):
        with pytest.raises(ListenError, match="is not a listening TCP or Unix socket: use ListenStream= and Accept=no"):
            inherited(section(), environment())
        handed.append(handed.pop(each))


def test_a_count_that_is_no_number_is_refused() -> None:
    """Nobody can know what the descriptors are then."""
    with pytest.raises(ListenError, match="LISTEN_FDS = 'many'"):
        inherited(section(), environment("many"))


def test_a_descriptor_that_is_no_socket_is_refused() -> None:
    """In a process of its own, in which 3 is a file."""
    program = (
        "import os; os.open('/dev/null', os.O_RDONLY); from adapter.runtime.serving.activation import inherited;"
        "from adapter.runtime.settings.config import ServerSection;"
        "inherited(ServerSection(listen='127.0.0.1:0'), {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '1'})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "descriptor 3 from the service manager: is not a socket" in done.stderr
