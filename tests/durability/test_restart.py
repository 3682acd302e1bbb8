"""Restarts behind a service manager that holds the sockets: clients that never retry see no commit fail, and nothing is lost.

Invariants 1, 2, 3 and 8. The clients make transparent retries only: gRPC's own, of calls that the server says it has not begun.
"""

import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import grpc
import grpc.aio

from adapter.client.client import OffsetClient
from adapter.testing.history import History
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.service_manager import ServiceManager, service_manager
from tests.durability.load import CALL_S, LIMIT_S, Load, Turn, local_positions, watching

RESTARTS = 3
CONNECTIONS = 3  # to each address
CONSUMERS = 4  # of each connection
# Without a retry policy: a service config that a name service might give is not taken either.
NO_RETRIES = (("grpc.use_local_subchannel_pool", 1), ("grpc.service_config_disable_resolution", 1))


class NeverRefused(Load):
    """Consumers of whom no commit may fail, in any way."""

    expected = frozenset[grpc.StatusCode]()
    longest_s = 0.0

    def timed(self, turn: Turn) -> Turn:
        """A turn that measures how long it took."""

        async def measured(number: int) -> None:
            begun = time.monotonic()
            await turn(number)
            self.longest_s = max(self.longest_s, time.monotonic() - begun)

        return measured


@asynccontextmanager
async def unforgiving_load(addresses: Sequence[str], history: History) -> AsyncIterator[tuple[list[NeverRefused], list[Load]]]:
    """Consumers over several connections to each address; and streams, which end with each restart and are opened again."""
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        loads, streams = list[NeverRefused](), list[Load]()
        for at, address in enumerate([each for each in addresses for _ in range(CONNECTIONS)]):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, NO_RETRIES))
            client = OffsetClient(channel, CALL_S, resend=False)
            load = NeverRefused(client, history)
            loads.append(load)
            for number in range(CONSUMERS):
                tasks.start_soon(load.take_turns, load.timed(load.consumer(f"consumer-{at}-{number}")))
            streams.append(Load(client, history))
            tasks.start_soon(streams[at].take_turns, streams[at].stream(f"stream-{at}"))
        yield loads, streams
        tasks.cancel_scope.cancel()


async def restarted(manager: ServiceManager, loads: Sequence[NeverRefused], times: int) -> None:
    """Restart so many times, each time after commits of every connection."""
    for _ in range(times):
        for load in loads:
            await load.progress(20)
        assert await anyio.to_thread.run_sync(manager.restart) == 0
    for load in loads:
        await load.progress(20)


def handed_over(tmp_path: Path, meta: ServiceProcess) -> ServiceProcess:
    """An adapter whose service manager will open both of its addresses."""
    return adapter_process(tmp_path, meta.address)


async def test_restarts_under_load_refuse_no_commit_and_lose_none(tmp_path: Path) -> None:
    """On TCP and on the Unix socket; those who connect meanwhile wait. The Meta Service has all of it after each stop."""
    history = History()
    meta = meta_process(tmp_path)
    adapter = handed_over(tmp_path, meta)
    with ended(meta), service_manager(adapter) as manager:
        await anyio.to_thread.run_sync(meta.start)
        manager.hold_tcp()
        manager.hold_unix()
        await anyio.to_thread.run_sync(manager.start)
        addresses = (adapter.tcp_address, adapter.address)
        async with unforgiving_load(addresses, history) as (loads, streams), watching(meta.address, history) as watcher:
            await restarted(manager, loads, RESTARTS)
            for load in (*loads, *streams):
                await load.pause()
            await local_positions(adapter.address, history)
            longest_s = max(load.longest_s for load in loads)
            assert await anyio.to_thread.run_sync(adapter.stop) == 0
            await watcher.has_everything()
        assert history.check() == []
    sys.stdout.write(f"{RESTARTS} restarts, {sum(load.commits for load in loads)} commits, longest {longest_s:.2f} s\n")


async def test_who_connects_between_two_processes_is_served_by_the_second(tmp_path: Path) -> None:
    """A commit that was sent while nobody ran is answered when somebody does."""
    meta = meta_process(tmp_path)
    adapter = handed_over(tmp_path, meta)
    with ended(meta), service_manager(adapter) as manager:
        await anyio.to_thread.run_sync(meta.start)
        manager.hold_unix()
        async with OffsetClient.connect(adapter.address, LIMIT_S, resend=False) as client, anyio.create_task_group() as tasks:
            done = anyio.Event()

            async def commit() -> None:
                await client.commit("g", {"s": 1})
                done.set()

            tasks.start_soon(commit)
            for _ in range(2):
                await anyio.to_thread.run_sync(manager.start)
                await done.wait()
                assert {shard: row.offset for shard, row in (await client.read("g")).items()} == {"s": 1}
                assert await anyio.to_thread.run_sync(adapter.stop) == 0
                assert adapter.socket
                assert adapter.socket.is_socket()  # it is the service manager's


async def test_a_kill_under_load_loses_nothing_though_its_calls_fail(tmp_path: Path) -> None:
    """What was answered is there, in the process that the same sockets lead to; only calls that the kill cut off fail."""
    history = History()
    meta = meta_process(tmp_path)
    adapter = handed_over(tmp_path, meta)
    with ended(meta), service_manager(adapter) as manager:
        await anyio.to_thread.run_sync(meta.start)
        manager.hold_tcp()
        await anyio.to_thread.run_sync(manager.start)
        async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(adapter.tcp_address, NO_RETRIES))
            load = Load(OffsetClient(channel, CALL_S, resend=False), history)
            for number in range(CONSUMERS):
                tasks.start_soon(load.take_turns, load.consumer(f"consumer-{number}"))
            await load.progress()
            adapter.kill()
            await anyio.to_thread.run_sync(manager.start)
            await load.progress()
            await load.pause()
            tasks.cancel_scope.cancel()
        # How many, says gRPC: on a busy machine each consumer fails at once while the channel waits to connect again.
        assert set(load.failures) <= {grpc.StatusCode.UNAVAILABLE}
        await local_positions(adapter.address, history)


async def test_ready_is_said_after_the_recovery_and_stopping_before_the_flush(tmp_path: Path) -> None:
    """While the Meta Service is away commits are taken, the start is not over, and more time is asked for (9)."""
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, extra="[recovery]\ntimeout_ms = 120000\n[stop]\ndrain_timeout_ms = 120000")
    with ended(meta), service_manager(adapter, watchdog_s=30.0) as manager:
        manager.hold_unix()
        seen = manager.launch()
        await anyio.to_thread.run_sync(manager.wait_for, "STATUS=recovering", seen)
        async with OffsetClient.connect(adapter.address, LIMIT_S, resend=False) as client:
            await client.commit("g", {"s": 1})
        assert "READY=1" not in manager.heard
        assert "EXTEND_TIMEOUT_USEC=60000000" in manager.heard
        assert "WATCHDOG=1" in manager.heard
        await anyio.to_thread.run_sync(meta.start)
        await anyio.to_thread.run_sync(manager.wait_for, "READY=1", seen)
        meta.kill()
        async with OffsetClient.connect(adapter.address, LIMIT_S, resend=False) as client:
            await client.commit("g", {"s": 2})
        seen = len(manager.heard)
        assert adapter.process
        adapter.process.terminate()
        await anyio.to_thread.run_sync(manager.wait_for, "STOPPING=1", seen)
        await anyio.to_thread.run_sync(manager.wait_for, "EXTEND_TIMEOUT_USEC=60000000", seen)
        assert adapter.process.poll() is None
        await anyio.to_thread.run_sync(meta.start)
        assert await anyio.to_thread.run_sync(adapter.process.wait, LIMIT_S) == 0
