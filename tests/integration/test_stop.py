"""Invariant 8: how the process stops."""

import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapter.client.client import OffsetClient
from adapter.model.records import FIRST_EPOCH, SaveEntry
from adapter.rpc import offsets_pb
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.history import META, History
from adapter.testing.processes import ServiceProcess, adapter_process, ended
from adapter.testing.waiting import eventually
from tests.integration.helpers import PATIENCE_S, PATIENT_META, commits, each, key, rpc, serving, status_of, stored_in, wait_until

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
LONG_GRACE = "[stop]\ngrace_ms = 120000\ndrain_timeout_ms = 120000"  # beyond what a test waits: nothing may use it up


class Committer(threading.Thread):
    """Commits ever larger offsets until it is refused, and keeps a history of what was sent and acknowledged."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__()
        self._address = address
        self._shard = name
        self.history = History()
        self.ended_with: grpc.StatusCode | None = None
        self.running = threading.Event()

    def run(self) -> None:
        """Commit until an error."""
        with rpc(self._address) as stubs:
            for offset in range(1, 1_000_000):
                write = self.history.begin(key(self._shard), (FIRST_EPOCH, offset))
                try:
                    stubs.store.CommitOffsets(commits({self._shard: offset}), timeout=PATIENCE_S)
                except grpc.RpcError as error:
                    self.ended_with = error.code()
                    return
                write.acknowledged()
                self.running.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_under_load_loses_nothing(directory: Path, meta: ServiceProcess, number: signal.Signals) -> None:
    """New commits are refused, those in flight are answered, exit 0, and the Meta Service has all of it (8)."""
    adapter = adapter_process(directory, meta.address)
    with ended(adapter):
        adapter.start()
        committers = [Committer(adapter.address, f"s{at}") for at in range(6)]
        for committer in committers:
            committer.start()
        for committer in committers:
            assert committer.running.wait(PATIENCE_S)
        adapter.signal(number)
        assert adapter.process is not None
        assert adapter.process.wait(PATIENCE_S) == 0
        for committer in committers:
            committer.join(PATIENCE_S)
        assert {committer.ended_with for committer in committers} == {UNAVAILABLE}
        found = stored_in(meta)
        for committer in committers:
            committer.history.carrying().done()
            reading = committer.history.reading(META)
            reading.found({name: at for name, at in found.items() if name in committer.history.least()})
            assert committer.history.check() == []


def test_a_stop_without_the_meta_service_exits_1_and_the_next_start_pushes(directory: Path, meta: ServiceProcess) -> None:
    """Within the drain deadline; what stayed behind is on disk (4, 8)."""
    adapter = adapter_process(directory, meta.address, extra=f"{PATIENT_META}[stop]\ndrain_timeout_ms = 500")
    with ended(adapter):
        adapter.start()
        with rpc(adapter.address) as stubs:
            stubs.store.CommitOffsets(commits({"a": 1}), timeout=PATIENCE_S)
            stubs.admin.Flush(offsets_pb.FlushRequest(), timeout=PATIENCE_S)
            meta.kill()
            stubs.store.CommitOffsets(commits({"a": 2, "b": 1}), timeout=PATIENCE_S)
        assert adapter.stop(PATIENCE_S) == 1
        assert "left=2" in adapter.log
        meta.start()
        adapter.start()
        assert stored_in(meta) == {key("a"): (1, 2), key("b"): (1, 1)}
        assert status_of(adapter).recovery.pushed == 2
        assert adapter.stop(PATIENCE_S) == 0


def test_a_second_signal_stops_at_once(directory: Path, meta: ServiceProcess) -> None:
    """Though the drain deadline is far away; what is dirty stays on disk, exit 1 (8)."""
    adapter = adapter_process(directory, meta.address, extra=LONG_GRACE)
    with ended(adapter):
        adapter.start()
        meta.kill()
        with rpc(adapter.address) as stubs:
            stubs.store.CommitOffsets(commits({"a": 1}), timeout=PATIENCE_S)
        adapter.signal(signal.SIGTERM)
        wait_until(lambda: "sidecar.stopping" in adapter.log, "stopping")
        assert adapter.process is not None
        assert adapter.process.poll() is None
        assert adapter.stop(PATIENCE_S) == 1
        assert "process.forced" in adapter.log
        meta.start()
        adapter.start()
        assert stored_in(meta) == {key("a"): (1, 1)}
        assert adapter.stop(PATIENCE_S) == 0


def test_open_streams_end(directory: Path, meta: ServiceProcess) -> None:
    """What was answered is in the Meta Service; the rest is told to be sent again; nobody waits for the grace time (8)."""
    adapter = adapter_process(directory, meta.address, extra=LONG_GRACE)
    go_on = threading.Event()

    def requests(number_of: int) -> Iterator[offsets_pb.StreamCommitsRequest]:
        for number in range(1, number_of):
            yield offsets_pb.StreamCommitsRequest(id=number, commit=commits({f"s{number_of}": number}))
        go_on.wait()

    with ended(adapter):
        adapter.start()
        with rpc(adapter.address) as stubs:
            busy = stubs.store.StreamCommits(requests(1_000_000), timeout=PATIENCE_S)
            idle = stubs.store.StreamCommits(requests(2), timeout=PATIENCE_S)
            answered = [next(idle)]
            while sum(reply.covers for reply in answered) < 300:
                answered.append(next(busy))
            adapter.signal(signal.SIGTERM)
            answered += _until_ended(busy) + _until_ended(idle)
            go_on.set()
            assert adapter.process is not None
            assert adapter.process.wait(PATIENCE_S) == 0
            found = stored_in(meta)
            acknowledged = max(reply.id for reply in answered if not reply.code)
            assert found[key("s1000000")][1] >= acknowledged >= 299
            assert found[key("s2")] == (1, 1)
            # In order to the end: the acknowledged ones are a prefix, so the client knows what to send again.
            good = [reply for reply in answered[1:] if not reply.code]
            assert [reply.id for reply in each(good)] == list(range(1, good[-1].id + 1))


def _until_ended(stream: Any) -> list[offsets_pb.StreamCommitsReply]:
    replies: list[offsets_pb.StreamCommitsReply] = []
    with pytest.raises(grpc.RpcError) as caught:
        replies.extend(stream)  # keeps what came before the error
    ended_with = (caught.value.code(), caught.value.details())
    assert ended_with == (UNAVAILABLE, "the adapter is stopping; send again what was not answered")
    return replies


def test_an_open_health_watch_does_not_hold_up_the_stop(directory: Path, meta: ServiceProcess) -> None:
    """It is told NOT_SERVING, and then nobody waits for it (8)."""
    adapter = adapter_process(directory, meta.address, extra=LONG_GRACE)
    with ended(adapter):
        adapter.start()
        with grpc.insecure_channel(adapter.address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            adapter.signal(signal.SIGTERM)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert adapter.process is not None
            assert adapter.process.wait(PATIENCE_S) == 0


async def test_what_is_in_flight_is_finished_and_what_is_new_is_refused(directory: Path) -> None:
    """A write-through commit waits for the Meta Service when the stop comes: it is answered, and counts (8)."""
    meta = FakeMeta()
    release = anyio.Event()
    answers: list[Any] = []

    async def held(entries: Sequence[SaveEntry]) -> Any:
        await release.wait()
        return meta.apply(entries)

    meta.faults.append(held)
    async with serving(directory, meta, mode="write_through") as (sidecar, client), anyio.create_task_group() as tasks:

        async def commit() -> None:
            answers.append(await client.commit("g", {"in_flight": 1}))

        tasks.start_soon(commit)
        await eventually(lambda: bool(meta.saves), PATIENCE_S)
        sidecar.stop()
        await _until_refused(client)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.store.CommitOffsets(commits({"new": 1}))
        assert caught.value.code() is UNAVAILABLE
        assert not answers
        release.set()
    assert answers == [[]]
    assert meta.records.keys() == {key("in_flight")}


async def _until_refused(client: OffsetClient) -> None:
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                await client.status()
            except grpc.aio.AioRpcError:
                return


def test_a_stop_during_the_recovery_does_not_wait_for_it(directory: Path, meta: ServiceProcess) -> None:
    """With keys that a former process left dirty it exits 1, and they stay on disk (8)."""
    adapter = adapter_process(directory, meta.address, extra="[recovery]\ntimeout_ms = 120000\n[stop]\ndrain_timeout_ms = 300")
    with ended(adapter):
        adapter.start()
        meta.kill()
        with rpc(adapter.address) as stubs:
            stubs.store.CommitOffsets(commits({"a": 1}), timeout=PATIENCE_S)
        adapter.kill()
        adapter.launch()
        wait_until(lambda: adapter.log.count("sidecar.takes_commits") == 2, "it takes commits")
        with rpc(adapter.address) as stubs:
            stubs.store.CommitOffsets(commits({"b": 2}), timeout=PATIENCE_S)
            status = stubs.admin.Status(offsets_pb.StatusRequest(), timeout=PATIENCE_S)
        assert status.state == offsets_pb.StatusReply.RECOVERING  # the Meta Service has not answered
        assert adapter.stop(PATIENCE_S) == 1
        assert "left=2" in adapter.log
        meta.start()
        adapter.start()
        assert stored_in(meta) == {key("a"): (1, 1), key("b"): (1, 2)}


def test_a_clean_stop_of_an_idle_adapter_exits_0_though_the_meta_service_is_gone(directory: Path, meta: ServiceProcess) -> None:
    """Nothing is dirty, so nothing stays behind (8)."""
    adapter = adapter_process(directory, meta.address, extra=LONG_GRACE)
    with ended(adapter):
        adapter.start()
        with rpc(adapter.address) as stubs:
            stubs.store.CommitOffsets(commits({"a": 1}), timeout=PATIENCE_S)
            stubs.admin.Flush(offsets_pb.FlushRequest(), timeout=PATIENCE_S)
        meta.kill()
        assert adapter.stop(PATIENCE_S) == 0


def test_the_meta_service_stops_with_everything_that_it_answered(directory: Path, meta: ServiceProcess) -> None:
    """Exit 0; the next start has it."""
    adapter = adapter_process(directory, meta.address)
    with ended(adapter):
        adapter.start()
        with rpc(adapter.address) as stubs:
            stubs.store.CommitOffsets(commits({"a": 1}), timeout=PATIENCE_S)
            stubs.admin.Flush(offsets_pb.FlushRequest(), timeout=PATIENCE_S)
        assert meta.stop(PATIENCE_S) == 0
        meta.start()
        assert stored_in(meta) == {key("a"): (1, 1)}
