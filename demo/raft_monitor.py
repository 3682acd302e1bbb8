"""Polls Raft groups, Meta Service processes and adapters several times a second and writes their status into the state."""

from http.client import HTTPConnection

import anyio
import anyio.to_thread
import grpc.aio
from prometheus_client.parser import text_string_to_metric_families

from adapter.rpc import offsets_pb
from adapter.testing.processes import ServiceProcess
from demo.counting import Rate, Total
from demo.monitor import without_answer
from demo.raft_fleet import Broker, Fleet, MetaProcess
from demo.raft_state import RaftState

ADAPTERS_EVERY_S = 0.05  # the resolution of the measured lag
LEADERS_EVERY_S = 0.2
METAS_EVERY_S = 0.4
STATUS_TIMEOUT_S = 1.0

Samples = dict[tuple[str, str], float]


class Monitor:
    """Polls the processes of one demo."""

    def __init__(self, fleet: Fleet, state: RaftState) -> None:
        self._fleet = fleet
        self._state = state

    async def run(self) -> None:
        """Poll until cancelled. Raises DemoError if a process ends unexpectedly."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_leaders, name="watch leaders")
            for meta in self._fleet.metas:
                tasks.start_soon(self._watch_meta, meta, name=f"watch {meta.name}")
            for broker in self._fleet.brokers:
                tasks.start_soon(self._watch_adapter, broker, name=f"watch {broker.name}")

    async def _watch_leaders(self) -> None:
        while True:
            at = self._state.elapsed
            self._state.looked(await self._fleet.leaders.look(), at)
            await anyio.sleep(LEADERS_EVERY_S)

    async def _watch_meta(self, meta: MetaProcess) -> None:
        shown = self._state.metas[meta.name]
        save_calls, moves = Total(), Total()
        while True:
            samples = await anyio.to_thread.run_sync(metrics, meta.metrics_port)
            shown.state = _without_answer(meta.process) if samples is None else "serving"
            found = samples or {}
            shown.balances = bool(found.get(("offset_meta_leaders_balancing", "")))
            if samples is not None:
                saves = sum(found.get(("offset_meta_calls_total", rpc), 0) for rpc in ("SaveOffsetData", "MergeOffsetData"))
                shown.save_calls = save_calls.shown(int(saves))
                shown.moves = moves.shown(int(found.get(("offset_meta_leader_moves_total", "moved"), 0)))
            await anyio.sleep(METAS_EVERY_S)

    async def _watch_adapter(self, broker: Broker) -> None:
        shown, rate, commits = self._state.brokers[broker.name], Rate(), Total()
        while True:
            try:
                status = await broker.client.admin.Status(offsets_pb.StatusRequest(), timeout=STATUS_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                shown.state = _without_answer(broker.adapter)
                shown.endpoint, shown.commits_per_s, shown.dirty_keys, shown.lag_s = "", 0.0, 0, 0.0
            else:
                shown.state = offsets_pb.StatusReply.State.Name(status.state).lower()
                shown.endpoint, shown.dirty_keys = status.meta_endpoint, status.dirty_keys
                shown.commits_per_s = rate.of(self._state.elapsed, commits.shown(status.commits))
                self._state.lagging(broker.name, status.oldest_dirty_seconds)
            await anyio.sleep(ADAPTERS_EVERY_S)


def _without_answer(service: ServiceProcess) -> str:
    """A status in a word or two."""
    return without_answer(service).partition(" (")[0]


def metrics(port: int) -> Samples | None:
    """The metrics at an address: (name, first label) -> value. None if it does not answer. Blocks."""
    connection = HTTPConnection("127.0.0.1", port, timeout=STATUS_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except OSError:
        return None
    finally:
        connection.close()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value for family in families for sample in family.samples
    }
