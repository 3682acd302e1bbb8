"""Polls both processes several times a second and writes their status into the state."""

import signal

import anyio
import anyio.to_thread
import grpc.aio

from adapter.rpc import offsets_pb
from adapter.testing.processes import ServiceProcess
from demo.cluster import Cluster, DemoError
from demo.counting import Rate, Total
from demo.state import State

INTERVAL_S = 0.25
STATUS_TIMEOUT_S = 1.0


class Monitor:
    """Polls the processes of one demo."""

    def __init__(self, cluster: Cluster, state: State) -> None:
        self._cluster = cluster
        self._state = state
        self._save_calls = Total()
        self._commits_rate, self._save_calls_rate = Rate(), Rate()

    async def run(self) -> None:
        """Poll until cancelled. Raises DemoError if a process ends unexpectedly."""
        while True:
            await self._ask_adapter()
            await self._ask_meta()
            self._take_rates()
            await anyio.sleep(INTERVAL_S)

    async def _ask_adapter(self) -> None:
        adapter = self._cluster.adapter
        try:
            status = await self._cluster.broker.admin.Status(offsets_pb.StatusRequest(), timeout=STATUS_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            self._state.adapter = without_answer(adapter)
            return
        self._state.adapter = f"{offsets_pb.StatusReply.State.Name(status.state).lower()} (pid {adapter.pid})"
        self._state.dirty_keys = status.dirty_keys
        self._state.oldest_dirty_s = status.oldest_dirty_seconds
        self._state.flush_ms = status.last_flush_seconds * 1000
        self._state.save_calls = self._save_calls.shown(status.save_calls)

    async def _ask_meta(self) -> None:
        meta = self._cluster.meta
        healthy = await anyio.to_thread.run_sync(meta.healthy)
        self._state.meta = f"serving (pid {meta.pid})" if healthy else without_answer(meta)

    def _take_rates(self) -> None:
        state = self._state
        state.commits_per_s = self._commits_rate.of(state.elapsed, state.acknowledged)
        state.save_calls_per_s = self._save_calls_rate.of(state.elapsed, state.save_calls)


def without_answer(service: ServiceProcess) -> str:
    """Why a process does not answer, as text. Raises DemoError if it ended unexpectedly."""
    if service.process is None:
        return "not started"
    code = service.process.poll()
    if code is None:
        return f"not ready (pid {service.pid})"
    if code not in {0, -signal.SIGKILL}:  # ended neither by the demo's stop nor by its kill
        raise DemoError(f"the process {service.command!r} ended by itself: code {code}")
    return "killed (SIGKILL)" if code else "stopped (exit code 0)"
