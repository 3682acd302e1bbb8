"""How soon the states of groups are told, by place: a fleet of adapters of this tree, then of another checkout.

    python -m benchmarks.against_verdicts /path/of/the/other/checkout [ADAPTERS] [GROUPS of an adapter]

A broker's log that serves bounds, adapters, a Meta Service with the scaler of the fleet, a console. Ten groups of each adapter
are in each state, the others are as they should be:

    stop    one commit, while the log goes on
    stall   the same offset is committed each second, while the log goes on
    beyond  the log ended below the offset from the beginning
    anew    the log ended at the offset, and from one moment on far below: it was made anew

Prints for each state and place (`ListGroupLag` of the adapters, the scaler, the console, the adapters' metrics) after how many
seconds all of its groups were told: from the last commit, or from the moment; then after a restart of every process, from when
the last adapter had compared its offsets. A place that has not told all within LIMIT_S has `-`.
"""

import asyncio
import json
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import grpc.aio

from adapter.client import OffsetClient
from adapter.rpc import lag_pb, offsets_grpc, offsets_pb, scaler_grpc, scaler_pb
from adapter.runtime.serving.statuses import Context
from benchmarks.against import ROOT, Tree, ready

BAD = 10  # groups of each state
PORT = 21_000
META, LOG, CONSOLE, METRICS = PORT + 100, PORT + 101, PORT + 102, PORT + 200
OFFSET = 1_000
RISE = 20  # messages a second
LIMIT_S = 60.0
LOOK_S = 0.3
STATES = {"stop": lag_pb.STOP, "stall": lag_pb.STALL, "beyond": lag_pb.BEYOND, "anew": lag_pb.BEYOND}
Told = Callable[[str], Awaitable[int]]  # how many groups of a state are told


class Log(offsets_grpc.BrokerLogServicer):
    """The log of all brokers."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.anew = False

    async def GetBounds(self, request: offsets_pb.GetBoundsRequest, context: Context) -> offsets_pb.GetBoundsReply:  # noqa: ARG002, D102
        reply = offsets_pb.GetBoundsReply()
        for shard in request.shards:
            reply.bounds.add(shard=shard, low=0, high=self._end(shard.split("/")[0]))
        return reply

    async def GetOffsetsForTime(  # noqa: D102
        self, request: offsets_pb.GetOffsetsForTimeRequest, context: Context
    ) -> offsets_pb.GetOffsetsForTimeReply:
        raise NotImplementedError

    def _end(self, state: str) -> int:
        if state in {"stop", "stall"}:
            return OFFSET + int((time.monotonic() - self.began) * RISE)
        return {"beyond": OFFSET - 100, "anew": 5 if self.anew else OFFSET}.get(state, OFFSET)


class Fleet:
    """The processes of a tree, and what each place tells."""

    def __init__(self, tree: Tree, directory: Path, adapters: int, groups: int) -> None:
        self._tree = tree
        self._directories = [directory / str(at) for at in range(adapters)]
        self._directory = directory
        states = [state for state in STATES for _ in range(BAD)]
        self.groups = [
            [f"{states[at] if at < len(states) else 'well'}-{broker}-{at:04}" for at in range(groups)]
            for broker in range(adapters)
        ]
        for one in self._directories:
            one.mkdir()

    async def start(self, running: ExitStack) -> None:
        """Start all, and wait until each adapter has compared its offsets."""
        addresses = json.dumps([f"127.0.0.1:{PORT + at}" for at in range(len(self._directories))])
        fleet = f"[fleet]\nadapters = {addresses}\n"
        running.enter_context(self._tree.process("meta", self._tree.meta(META, self._directory) + fleet, self._directory))
        for at, directory in enumerate(self._directories):
            settings = self._tree.adapter(PORT + at, META, directory).replace(
                "listen = ''", f"listen = '127.0.0.1:{METRICS + at}'"
            )
            settings += f"[broker_log]\naddress = '127.0.0.1:{LOG}'\n"
            running.enter_context(self._tree.process("serve", settings, directory))
        console = f"[server]\nlisten = '127.0.0.1:{CONSOLE}'\n{fleet}"
        running.enter_context(self._tree.process("console", console, self._directory))
        for directory in self._directories:
            await ready(directory)

    async def commit(self, state: str = "") -> None:
        """Commit the offset of all groups, or of those in a state."""
        async with AsyncExitStack() as stack:
            for directory, groups in zip(self._directories, self.groups, strict=True):
                client = await stack.enter_async_context(OffsetClient.connect(f"unix:{directory}/a.sock", LIMIT_S))
                wanted = [group for group in groups if group.startswith(state)]
                await asyncio.gather(*(client.commit(group, {f"{group.split('-')[0]}/{group}": OFFSET}) for group in wanted))

    async def adapters(self, state: str) -> int:
        """Of the adapters' own call."""
        told = 0
        for directory in self._directories:
            async with OffsetClient.connect(f"unix:{directory}/a.sock", LIMIT_S) as client:
                wanted = lag_pb.LagFilter(pattern=f"{state}-*", at_least=lag_pb.WARN)
                page = await client.lag.ListGroupLag(lag_pb.ListGroupLagRequest(filter=wanted, page_size=1_000))
                told += sum(row.status == STATES[state] for row in page.groups)
        return told

    async def scaler(self, state: str) -> int:
        """Of the scaler: one of the groups of each adapter, as many as KEDA asks about at a time."""
        told = 0
        async with grpc.aio.insecure_channel(f"127.0.0.1:{META}") as channel:
            stub = scaler_grpc.ExternalScalerStub(channel)
            for groups in self.groups:
                group = next(group for group in groups if group.startswith(state))
                scaled = scaler_pb.ScaledObjectRef(name="x", namespace="d", scalerMetadata={"group": group, "lagThreshold": "10"})
                try:
                    metrics = await stub.GetMetrics(scaler_pb.GetMetricsRequest(scaledObjectRef=scaled), timeout=5)
                    active = await stub.IsActive(scaled, timeout=5)
                    # A consumer that has stopped is kept, and asked for no more than one.
                    lag = sum(value.metricValueFloat or value.metricValue for value in metrics.metricValues)
                    told += state in {"stop", "stall"} and active.result and lag == 0
                except grpc.aio.AioRpcError as error:
                    told += state in {"beyond", "anew"} and "none of its log" in (error.details() or "")
        return told * BAD

    async def console(self, state: str) -> int:
        """Of the console's page of groups."""
        page = json.loads(await _get(f"http://127.0.0.1:{CONSOLE}/groups?q={state}-*&size=500&format=json"))
        return sum(row["status"] == lag_pb.LagStatus.Name(STATES[state]).lower() for row in page["groups"])

    async def metrics(self, state: str) -> int:
        """Of the adapters' metrics."""
        row = re.compile(rf'offset_adapter_group_lag_status\{{group="{state}-[^}}]*\}} {STATES[state]}(\.0)?$', re.MULTILINE)
        pages = [await _get(f"http://127.0.0.1:{METRICS + at}/metrics") for at in range(len(self._directories))]
        return sum(len(row.findall(page)) for page in pages)

    async def told(self, states: Sequence[str], began: float) -> dict[str, dict[str, str]]:
        """Place -> state -> after how many seconds since `began` it was told of all groups."""
        places: dict[str, Told] = {
            "adapters": self.adapters,
            "scaler": self.scaler,
            "console": self.console,
            "metrics": self.metrics,
        }
        found = {place: dict.fromkeys(states, "-") for place in places}

        async def wait(place: str, state: str) -> None:
            while True:
                with suppress(Exception):  # of a process that starts, or of a tree that lacks it
                    if await places[place](state) >= BAD * len(self.groups):
                        found[place][state] = f"{time.monotonic() - began:.1f}"
                        return
                await asyncio.sleep(LOOK_S)

        with suppress(TimeoutError):
            async with asyncio.timeout(LIMIT_S):
                await asyncio.gather(*(wait(place, state) for place in places for state in states))
        return found


async def _get(url: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(url, timeout=20) as reply:  # noqa: S310 - our own pages
            return str(reply.read().decode())

    return await asyncio.to_thread(get)


async def measure(tree: Tree, adapters: int, groups: int) -> None:
    """Print the tables of a tree."""
    log = Log()
    server = grpc.aio.server()
    offsets_grpc.add_BrokerLogServicer_to_server(log, server)
    server.add_insecure_port(f"127.0.0.1:{LOG}")
    await server.start()
    with tempfile.TemporaryDirectory() as name:
        fleet = Fleet(tree, Path(name), adapters, groups)
        with ExitStack() as running:
            await fleet.start(running)
            await fleet.commit()
            log.began = time.monotonic()

            async def stall() -> None:
                while True:
                    with suppress(grpc.aio.AioRpcError):  # of the adapters that start
                        await fleet.commit("stall")
                    await asyncio.sleep(1.0)

            stalling = asyncio.create_task(stall())
            show(tree, "from the last commit", await fleet.told(["stop", "stall", "beyond"], log.began))
            log.anew = True
            show(tree, "from the moment", await fleet.told(["anew"], time.monotonic()))
        with ExitStack() as running:
            began = time.monotonic()
            await fleet.start(running)
            print(f"all processes stopped and started in {time.monotonic() - began:.1f} s")
            show(tree, "from the restart", await fleet.told([*STATES], time.monotonic()))
            stalling.cancel()
    await server.stop(None)


def show(tree: Tree, title: str, found: dict[str, dict[str, str]]) -> None:
    """Print a table: a row for each state, a column for each place."""
    print(f"{tree.root}: seconds {title}")
    print(f"{'':10}", *(f"{place:>10}" for place in found))
    for state in next(iter(found.values())):
        print(f"{state:10}", *(f"{row[state]:>10}" for row in found.values()), flush=True)


if __name__ == "__main__":
    options = dict(enumerate(sys.argv))
    for checkout in (ROOT, Path(sys.argv[1]).resolve()):
        asyncio.run(measure(Tree(checkout), int(options.get(2, 10)), int(options.get(3, 1_000))))
