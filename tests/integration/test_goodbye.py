"""A peer in the place of the Meta Service that says goodbye (GOAWAY, RFC 9113, section 6.8) and stays connected."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adapter.testing.processes import adapter_process, ended
from adapter.testing.waiting import PATIENCE_S
from tests.integration.helpers import wait_until
from tests.integration.honest import MIB, Held, undisturbed

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
GOAWAY = bytes([0, 0, 8, 7, 0, 0, 0, 0, 0]) + bytes(8)  # no call was begun, no error
COMMITS = 300


@contextmanager
def goodbyes() -> Iterator[str]:
    """The address of such a peer."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.sendall(SETTINGS + GOAWAY)
                accepted.append(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_S)
    for each in (listener, *accepted):
        each.close()


def test_a_peer_that_says_goodbye_and_stays_costs_no_memory_and_no_time(directory: Path) -> None:
    """GRPC repeated the calls without a pause: gigabytes, and commits waited for seconds."""
    with goodbyes() as address:
        adapter = adapter_process(directory, address)
        with ended(adapter):
            adapter.start()
            with undisturbed(adapter) as honest:
                wait_until(lambda: honest.acknowledged >= COMMITS, "commits go on")
            assert Held(adapter).memory("VmHWM") < 300 * MIB  # since its start, when the first calls were made
            assert honest.worst_cpu_s < 5.0
