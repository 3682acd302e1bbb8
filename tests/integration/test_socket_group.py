"""The mode and group of the Unix socket: who else can commit, and that administration stays with the owner."""

import grp
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from adapter.client.client import OffsetClient
from adapter.errors import ConfigError, ListenError
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config, running_sidecar

OTHER_USER, OTHER_GROUP = 54_321, 54_322  # nobody has them
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user can enter."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def can_connect(path: Path, user: int, group: int) -> bool:
    """Whether a process of another user can open a socket. The process does nothing else."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(path))
        except BaseException:  # noqa: BLE001 - a child that goes on would run the other tests
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


@AS_ROOT
async def test_a_group_can_open_the_socket_and_others_cannot(shared: Path) -> None:
    """By the number of a group that has no name."""
    server = {"unix_socket": str(shared / "a.sock"), "unix_socket_mode": "0660", "unix_socket_group": str(OTHER_GROUP)}
    async with running_sidecar(adapter_config(shared, server=server), FakeMeta()):
        path = shared / "a.sock"
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, OTHER_GROUP)
        assert can_connect(path, OTHER_USER, OTHER_GROUP)
        assert not can_connect(path, OTHER_USER, OTHER_USER)


async def test_the_owner_commits_and_administers_on_an_open_socket(directory: Path) -> None:
    """The kernel tells who calls."""
    async with (
        running_sidecar(adapter_config(directory, server={"unix_socket_mode": "0660"}), FakeMeta()) as sidecar,
        OffsetClient.connect(sidecar.addresses[-1]) as client,
    ):
        assert await client.commit("g", {"a": 1}) == []
        assert [row.offset async for row in client.list()] == [1]
        assert (await client.status()).commits == 1


async def test_a_directory_that_keeps_the_group_out_is_told(directory: Path) -> None:
    """A socket in a directory of mode 0700 is closed, whatever its own mode."""
    os.chmod(directory, 0o700)  # noqa: PTH101 - one short call
    with capture_logs() as lines:
        async with running_sidecar(adapter_config(directory, server={"unix_socket_mode": "0660"}), FakeMeta()):
            pass
    assert [line["unix_socket"] for line in lines if line["event"] == "server.socket_unreachable"] == [str(directory / "a.sock")]


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({"unix_socket_mode": "660 "}, "server.unix_socket_mode: '660 ' is not a mode like 0660"),
        ({"unix_socket_mode": "0460"}, "server.unix_socket_mode: '0460' is not a mode like 0660"),
        ({"unix_socket_mode": "0666x"}, "server.unix_socket_mode"),
        ({"unix_socket_mode": "0660", "unix_socket_group": "no-such-group"}, "this machine has no group 'no-such-group'"),
        ({"unix_socket_group": "0"}, "cannot open the socket with unix_socket_mode = '0600'; 0660 lets it"),
        ({"unix_socket": "", "unix_socket_mode": "0660", "unix_socket_group": "0"}, "there is no unix_socket"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(tmp_path: Path, server: dict[str, str], why: str) -> None:
    """`check-config` says so before a start does."""
    with pytest.raises(ConfigError) as refused:
        adapter_config(tmp_path, server=server)
    assert why in str(refused.value)


def test_a_group_is_named_or_numbered(tmp_path: Path) -> None:
    """A name is one of this machine; a number need not have one, as in a container."""
    name = grp.getgrgid(os.getegid()).gr_name
    for group in (name, str(OTHER_GROUP)):
        section = adapter_config(tmp_path, server={"unix_socket_mode": "0660", "unix_socket_group": group}).server
        assert section.socket_mode == 0o660


async def test_a_group_that_this_user_is_not_in_is_an_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the setting; nothing listens then."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "not permitted by the test")

    monkeypatch.setattr(os, "chown", refuse)
    server = {"unix_socket_mode": "0660", "unix_socket_group": str(OTHER_GROUP)}
    with pytest.raises(ListenError, match=r"server\.unix_socket_group = '54322'"):
        async with running_sidecar(adapter_config(directory, server=server), FakeMeta()):
            pass
    assert not (directory / "a.sock").exists()
