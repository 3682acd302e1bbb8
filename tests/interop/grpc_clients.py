"""Clients of other gRPC implementations against the adapter, scenario by scenario. `make interop` builds and runs them.

What a client does and prints is in clients.md; what it has to have seen is here. A relay counts the connections of a run.
"""

import asyncio
import json
import os
import sys
import uuid
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adapter.client.client import OffsetClient
from adapter.model.records import DEFAULT_NAMESPACE
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.service_manager import service_manager
from adapter.testing.waiting import PATIENCE_S

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-adapter-interop"
SECONDS_MAX = 90.0
SILENCE_S = 15.0  # of the keepalive scenario: longer than the 10 s between pings

OK, CANCELLED, INVALID, DEADLINE, EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 0, 1, 3, 4, 8, 12, 13, 14

# Where clients differ; clients.md says why.
TOO_MUCH_METADATA = {"java": INTERNAL, "go": INTERNAL}
OUT_OF_TIME = {"rust": CANCELLED}
WROTE_TOO_LATE = {"python": INTERNAL}
NEVER_SENT = {"rust": CANCELLED}
NEVER_SENT_TEXTS = ("operation was canceled: connection closed", "operation was canceled: connection was not ready")

PROGRAMS: dict[str, list[str]] = {
    "python": [sys.executable, "-m", "tests.interop.python_client"],
    "java": ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{CACHE}/java-grpc/classes:{CACHE}/java-grpc/jars/*", "Client"],
    "node": ["node", str(HERE / "node/client.js")],
    "go": [str(CACHE / "go/client")],
    "rust": [str(CACHE / "rust/client")],
}
ENVIRONMENT = {"NODE_PATH": str(CACHE / "node/node_modules"), "LC_ALL": "C.UTF-8", "NO_PROXY": "*", "no_proxy": "*"}
RESTARTING = ("python", "go", "java")  # clients that have the scenario `restarts`
RESTARTS = 50

Report = dict[str, Any]

each_client = pytest.mark.parametrize("client", PROGRAMS)


class Relay:
    """A TCP relay: how many connections came, and the longest time in which nothing passed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._passed = 0.0
        self._open: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.silence_s = 0.0

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay a connection until both sides have ended it, or `end`."""
        self.connections += 1
        task = asyncio.create_task(self._relay(reader, writer), name="relay")
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def end(self) -> None:
        """End the connections that are left: the program at the one side has ended, and the adapter goes on."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", self._port)
        self._passed = self._now()
        try:
            await asyncio.gather(self._pass(reader, behind[1]), self._pass(behind[0], writer))
        except ConnectionError:
            pass  # one side is gone: so will be the other
        finally:
            writer.close()
            behind[1].close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            self.silence_s = max(self.silence_s, self._now() - self._passed)
            self._passed = self._now()
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


@asynccontextmanager
async def relayed(port: int) -> AsyncIterator[tuple[Relay, str]]:
    """A relay in front of a port of this machine, and its address."""
    relay = Relay(port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    async with server:
        yield relay, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await relay.end()


async def start(client: str, *arguments: str) -> asyncio.subprocess.Process:
    """Start a client's program."""
    command = [*PROGRAMS[client], *arguments]
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=os.environ | ENVIRONMENT)


async def report(process: asyncio.subprocess.Process) -> Report:
    """End a program's stdin; returns what it printed."""
    try:
        out, err = await asyncio.wait_for(process.communicate(b""), SECONDS_MAX)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()
    printed: Report = json.loads(out.splitlines()[-1])
    return printed


@dataclass(frozen=True)
class Pair:
    """A client against an adapter; each run has a group of its own."""

    client: str
    adapter: ServiceProcess
    group: str

    async def run(self, scenario: str, *arguments: object) -> Report:
        """A scenario, on one connection."""
        async with relayed(self.adapter.port) as (relay, address):
            printed = await report(await start(self.client, scenario, address, self.group, *map(str, arguments)))
        assert relay.connections == 1
        return printed

    async def stored(self, group: str = "") -> dict[str, int]:
        """What the adapter has of the group."""
        return await stored(self.adapter, group or self.group)


def new_group() -> str:
    """A name that no other run has."""
    return f"g-{uuid.uuid4().hex}"


async def stored(adapter: ServiceProcess, group: str) -> dict[str, int]:
    """The offsets of a group by shard."""
    async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
        return {row.shard: row.offset async for row in client.list(DEFAULT_NAMESPACE, group)}


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A Meta Service for all adapters."""
    service = meta_process(tmp_path_factory.mktemp("m"))
    with ended(service):
        service.start()
        yield service


@pytest.fixture(scope="module")
def new_adapter(meta: ServiceProcess, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], ServiceProcess]:
    """Makes an adapter, not yet started."""
    return lambda: adapter_process(tmp_path_factory.mktemp("a"), meta.tcp_address)


@pytest.fixture(scope="module")
def adapter(new_adapter: Callable[[], ServiceProcess]) -> Iterator[ServiceProcess]:
    """One adapter for all clients."""
    service = new_adapter()
    with ended(service):
        service.start()
        yield service


@pytest.fixture(params=PROGRAMS)
def pair(request: pytest.FixtureRequest, adapter: ServiceProcess) -> Pair:
    """Each client."""
    return Pair(request.param, adapter, new_group())


async def test_small_commits_are_answered_one_by_one(pair: Pair) -> None:
    """100 unary calls."""
    assert await pair.run("unary", 100) == {"codes": {"0": 100}}
    assert await pair.stored() == {"s-0": 100}


async def test_the_unix_socket_is_the_same(pair: Pair) -> None:
    """Unary calls and a stream on it."""
    address = f"unix:{pair.adapter.socket}"
    assert await report(await start(pair.client, "unary", address, pair.group, "10")) == {"codes": {"0": 10}}
    streamed = await report(await start(pair.client, "stream", address, pair.group, "200"))
    assert (streamed["code"], streamed["covers"]) == (OK, 200)
    assert (await pair.stored())["s-0"] == 200


async def test_a_message_above_4_mib_is_refused_and_one_below_is_not(pair: Pair) -> None:
    """3.9 MiB, 4.1 MiB, and a small one on the same connection."""
    assert await pair.run("large") == {"codes": [OK, EXHAUSTED, OK]}
    assert len(await pair.stored()) == 1001


async def test_large_commits_share_a_connection(pair: Pair) -> None:
    """16 of 1 MiB at the same time."""
    assert await pair.run("concurrent_large") == {"codes": {"0": 16}}
    assert len(await pair.stored(f"{pair.group}-15")) == 256


async def test_large_replies_share_a_connection(pair: Pair) -> None:
    """4 of 2 MiB at the same time."""
    printed = await pair.run("big_reply")
    assert printed["commit"] == OK
    assert [(read["code"], read["rows"], read["metadata_bytes"]) for read in printed["reads"]] == [(OK, 500, 500 * 4096)] * 4


async def test_the_text_of_a_refusal_may_have_any_letters(pair: Pair) -> None:
    """Percent-encoded on the way."""
    group = f"{pair.group}-Grüße%20世界"
    printed = await Pair(pair.client, pair.adapter, group).run("invalid")
    text = f"groups[0].shards[1].shard: default/{group}/s-0 is in the request twice"
    assert printed == {"code": INVALID, "message": text, "after": OK}


async def test_unknown_methods_are_unimplemented(pair: Pair) -> None:
    """Those of an unknown service, too."""
    assert await pair.run("unknown") == {"codes": [UNIMPLEMENTED, UNIMPLEMENTED, OK]}


async def test_a_deadline_ends_a_call_and_not_its_connection(pair: Pair) -> None:
    """Of a stream that sends nothing, and of calls that have hardly any time."""
    printed, late = await pair.run("deadline"), {DEADLINE, OUT_OF_TIME.get(pair.client, DEADLINE)}
    short = {int(code): count for code, count in printed.pop("short").items()}
    assert printed.pop("stream") in late
    assert printed == {"after": OK, "last": OK}
    assert set(short) <= {OK, *late}
    assert sum(short.values()) == 20


async def test_cancelled_streams_leave_nothing_behind(pair: Pair) -> None:
    """200 of them on one connection."""
    assert await pair.run("cancel", 200) == {"answered": 200, "codes": {str(CANCELLED): 200}, "after": OK}
    assert await pair.stored() == {"s-0": 201}


async def test_a_stream_takes_many_commits_in_order(pair: Pair) -> None:
    """10,000 of them, sent without waiting."""
    printed = await pair.run("stream", 10_000)
    assert 0 < printed.pop("replies") <= 10_000
    assert printed == {"code": OK, "covers": 10_000, "refused": 0, "ordered": True}
    assert await pair.stored() == {f"s-{at % 100}": at for at in range(9_901, 10_001)}


async def test_a_refused_commit_does_not_end_its_stream(pair: Pair) -> None:
    """The reply says why."""
    printed = await pair.run("bidi_refused")
    text = f"groups[0].shards[1].shard: default/{pair.group}/s-0 is in the request twice"
    replies = [(1, OK, ""), (2, INVALID, text), (3, OK, "")]
    assert printed["code"] == OK
    assert [(reply["id"], reply["code"], reply["message"]) for reply in printed["replies"]] == replies


async def test_many_calls_share_a_connection(pair: Pair) -> None:
    """10,000 of them, 64 at a time."""
    count = 10_000
    assert await pair.run("many", count, 64) == {"codes": {"0": count}, "rows": count, "sum": count * (count + 1) // 2}


@each_client
async def test_a_client_with_more_calls_than_a_connection_takes_waits(client: str, adapter: ServiceProcess) -> None:
    """1,500 at a time."""
    pair = Pair(client, adapter, new_group())
    assert await pair.run("many", 3_000, 1_500) == {"codes": {"0": 3_000}, "rows": 3_000, "sum": 4_501_500}


async def test_a_compressed_commit_is_unimplemented(pair: Pair) -> None:
    """The status says what is taken."""
    printed = await pair.run("compressed")
    assert (printed["code"], printed["after"]) == (UNIMPLEMENTED, OK)


async def test_too_much_metadata_ends_a_call_and_not_its_connection(pair: Pair) -> None:
    """20 KiB of it."""
    printed = await pair.run("metadata")
    assert (printed["small"], printed["large"], printed["after"]) == (OK, TOO_MUCH_METADATA.get(pair.client, EXHAUSTED), OK)


async def test_the_health_can_be_watched(pair: Pair) -> None:
    """A stream from the server, cancelled by the client."""
    assert await pair.run("server_stream") == {"status": 1, "code": CANCELLED, "after": OK}


async def test_pings_keep_a_silent_connection(adapter: ServiceProcess) -> None:
    """All clients at the same time: each pings, and is still connected after the silence."""

    async def one(client: str) -> tuple[str, Report, int, bool]:
        async with relayed(adapter.port) as (relay, address):
            printed = await report(await start(client, "keepalive", address, new_group(), str(SILENCE_S)))
        return client, printed, relay.connections, relay.silence_s < SILENCE_S - 1

    seen = await asyncio.gather(*map(one, PROGRAMS))
    assert seen == [(client, {"codes": {"0": 2}}, 1, True) for client in PROGRAMS]


@each_client
async def test_a_drain_loses_nothing_and_says_unavailable(client: str, new_adapter: Callable[[], ServiceProcess]) -> None:
    """Two orderly ends under load: clients see UNAVAILABLE, come again, and find all that was acknowledged."""
    adapter, group = new_adapter(), new_group()
    with ended(adapter):
        adapter.start()
        process = await start(client, "drain", adapter.tcp_address, group)
        before = await _advanced(adapter, group, {})
        for _ in range(2):
            assert await asyncio.to_thread(adapter.stop) == 0
            await asyncio.to_thread(adapter.start)
            before = await _advanced(adapter, group, before)
        printed = await report(process)
        found = await stored(adapter, group)
    # A commit that was not acknowledged may have been made all the same.
    assert {shard: offset for shard, offset in printed["acknowledged"].items() if not offset <= found[shard] <= offset + 1} == {}
    causes, never_sent = printed.get("causes", {}), NEVER_SENT.get(client, OK)
    codes, streamed = ({int(code) for code in printed[key]} for key in ("codes", "stream_codes"))
    assert {OK, UNAVAILABLE} <= codes <= {OK, UNAVAILABLE, never_sent}, causes
    assert {UNAVAILABLE} <= streamed <= {OK, UNAVAILABLE, never_sent, WROTE_TOO_LATE.get(client, OK)}, causes
    # Any other call that ends as CANCELLED is the server's fault.
    assert [cause for cause in causes if cause.startswith(f"{CANCELLED} ") and not cause.endswith(NEVER_SENT_TEXTS)] == []


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("client", RESTARTING)
@pytest.mark.parametrize("place", ["tcp", "unix"])
async def test_fifty_restarts_behind_a_service_manager_refuse_no_commit(
    client: str, place: str, new_adapter: Callable[[], ServiceProcess]
) -> None:
    """It holds the socket: who connects meanwhile waits. No unary call fails, streams end and go on, and nothing is lost."""
    adapter, group = new_adapter(), new_group()
    with service_manager(adapter) as manager:
        manager.hold_tcp()
        manager.hold_unix()
        await asyncio.to_thread(manager.start)
        process = await start(client, "restarts", adapter.tcp_address if place == "tcp" else adapter.address, group)
        before = await _advanced(adapter, group, {}, 1)
        for _ in range(RESTARTS):
            assert await asyncio.to_thread(manager.restart) == 0
            before = await _advanced(adapter, group, before, 1)
        printed = await report(process)
        found = await stored(adapter, group)
    committed = sum(printed["codes"].values())
    sys.stdout.write(f"{client}, {place}: {RESTARTS} restarts, {committed} commits, longest {printed['longest_ms']} ms\n")
    assert printed["codes"].keys() == {str(OK)}, printed["codes"]
    assert {shard: found[shard] for shard in printed["acknowledged"] if shard != "stream"} == {
        shard: offset for shard, offset in printed["acknowledged"].items() if shard != "stream"
    }
    assert printed["acknowledged"]["stream"] <= found["stream"] <= printed["acknowledged"]["stream"] + 1
    # A stream is told to go on with another one, and finds it; 13: see clients.md.
    assert {int(code) for code in printed["stream_codes"]} <= {OK, UNAVAILABLE, WROTE_TOO_LATE.get(client, OK)}


async def _advanced(adapter: ServiceProcess, group: str, before: Mapping[str, int], by: int = 50) -> dict[str, int]:
    """Wait until each of the nine shards is so far beyond where it was."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await stored(adapter, group)
            if len(found) == 9 and all(offset > before.get(shard, 0) + by for shard, offset in found.items()):
                return found
            await asyncio.sleep(0.05)
