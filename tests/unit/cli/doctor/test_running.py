"""What the doctor sees of the addresses of a process."""

import os
import socket

import pytest

from adapter.cli.doctor import running
from adapter.cli.doctor.findings import FAIL, OK, WARN
from adapter.rpc import offsets_pb


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


def test_what_a_front_does_not_reach_is_a_warning() -> None:
    """Nodes, and a broker that has to be told; nothing while all is well, or while a broker is just being told."""
    assert list(running._front(offsets_pb.RobustmqStatus(untold_groups=2))) == []
    told = offsets_pb.RobustmqStatus(unreachable=["n:1: refused"], untold_groups=2, broker_error="UNAVAILABLE: gone")
    nodes, notices = running._front(told)
    assert (nodes.state, nodes.seen) == (WARN, "the adapter does not reach n:1: refused")
    assert (notices.state, notices.seen) == (WARN, "the broker is not told of 2 groups that others changed: UNAVAILABLE: gone")
