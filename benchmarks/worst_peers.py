"""The worst peers: one in the place of a service that the process calls, and many connections whose requests are refused.

Beside each an honest client commits all the time.
"""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from benchmarks.machine import ROOT
from benchmarks.report import Cell, Table
from benchmarks.resident import memory, reset_peak
from benchmarks.worst_honest import Honest

CONNECTIONS, AT_ONCE = 8, 8  # of each connection as many as its credit for large messages holds
SECONDS = 10.0  # of an attack
MIB = 2**20
COLUMNS = ("peers", "slowest honest commit ms", "of the event loop's CPU ms", "memory MiB at its peak", "more", "answers")
REFUSED = ("commit, 2,000,000 empty groups", "read, names of 4 MiB", "stream, 2,000,000 empty groups", "scaler, topics of 4 MiB")

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
GOAWAY = bytes([0, 0, 8, 7, 0, 0, 0, 0, 0]) + bytes(8)  # no call was begun, no error (RFC 9113, section 6.8)


@contextmanager
def goodbyes() -> Iterator[str]:
    """The address of a peer that says goodbye to each connection, and stays."""
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
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in (listener, *accepted):
            each.close()


def with_meta(directory: Path, address: str) -> ServiceProcess:
    """An adapter whose Meta Service is at this address."""
    return adapter_process(directory, address)


def with_broker_log(directory: Path, address: str) -> ServiceProcess:
    """An adapter whose broker's log is at this address, and which has no Meta Service."""
    return adapter_process(directory, "127.0.0.1:1", extra=f"[broker_log]\naddress = '{address}'")


def with_fleet(directory: Path, address: str) -> ServiceProcess:
    """A Meta Service that asks an adapter at this address for its scaler."""
    service = meta_process(directory)
    service.settings += f"\n[fleet]\nadapters = ['{address}']\n"
    return service


IN_PLACE_OF: Mapping[str, Callable[[Path, str], ServiceProcess]] = {
    "the Meta Service": with_meta,
    "the broker's log": with_broker_log,
    "an adapter of the Meta Service's scaler": with_fleet,
}


async def table(directory: Path) -> Table:
    """Measure all of them, each beside a new process."""
    rows: list[list[Cell]] = [["nothing", *await _beside(with_meta(directory / "0", "127.0.0.1:1"))]]
    for at, (what, made) in enumerate(IN_PLACE_OF.items(), 1):
        with goodbyes() as address:
            rows.append([f"goodbyes in place of {what}", *await _beside(made(directory / str(at), address))])
    for at, name in enumerate(REFUSED):
        service = with_meta(directory / f"refused-{at}", "127.0.0.1:1")
        rows.append([f"{CONNECTIONS} connections: {name}", *await _beside(service, name)])
    return Table("peers", COLUMNS, rows)


async def _beside(service: ServiceProcess, name: str = "") -> list[Cell]:
    service.directory.mkdir(exist_ok=True)
    with ended(service):
        service.start()
        before = memory(service.pid, "VmRSS")
        reset_peak(service.pid)
        honest = Honest(service, "commit" if service.command == "serve" else "save")
        honest.start()
        await asyncio.sleep(1.0)
        honest.slowest()
        answers = await _flood(service.tcp_address, name) if name else ""
        await asyncio.sleep(0.2 if name else SECONDS)
        slowest_s, cpu_s = honest.slowest()
        honest.stop()
        peak = memory(service.pid, "VmHWM")
    return [slowest_s * 1e3, cpu_s * 1e3, peak / MIB, (peak - before) / MIB, answers]


async def _flood(address: str, name: str) -> str:
    arguments = (address, name, str(AT_ONCE), str(SECONDS), str(CONNECTIONS))
    command = (sys.executable, "-m", "benchmarks.worst_load", *arguments)
    load = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    output, _ = await load.communicate()
    return ", ".join(f"{count} {code}" for code, count in json.loads(output).items())
