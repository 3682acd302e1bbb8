"""What the doctor sees of the addresses of a process."""

import os
import socket

import pytest

from adapter.cli.doctor import running
from adapter.cli.doctor.findings import FAIL, OK


def test_a_unix_socket_that_systemd_holds_is_no_failure(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory belongs to root, so that the process could not make it; nobody connects to it."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    path = str(tmp_path_factory.mktemp("s") / "adapter.sock")
    with socket.socket(socket.AF_UNIX) as held:
        assert [row.state for row in running.unix_socket_directory(path)] == [FAIL]
        held.bind(path)
        assert [row.state for row in running.unix_socket_directory(path)] == [FAIL]
        held.listen()
        assert [row.state for row in running.unix_socket_directory(path)] == [OK]
        held.settimeout(0)
        with pytest.raises(BlockingIOError):
            held.accept()
