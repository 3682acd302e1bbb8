"""The listener for Spark's streaming queries, fed with progress as Spark writes it, before a real sidecar."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import anyio
import anyio.from_thread
import grpc.aio
import pytest
from prometheus_client import REGISTRY
from pyspark.sql.streaming.listener import QueryIdleEvent, QueryProgressEvent, QueryTerminatedEvent, SourceProgress
from structlog.testing import capture_logs

from adapter.client import BlockingOffsetClient, OffsetClient
from adapter.errors import ConfigError, InvalidInputError, TransientError
from adapter.pipeline import outbox
from adapter.pipeline.listener import OffsetCommitListener, Position, kafka_positions
from adapter.rpc import offsets_pb
from adapter.runtime.settings.config import ClientTls
from adapter.testing.sidecars import sidecar_in_thread
from adapter.testing.waiting import PATIENCE_S, eventually

KAFKA = "KafkaV2[Subscribe[orders]]"


def source(end: object, latest: object = None, description: str = KAFKA) -> dict[str, Any]:
    """A source of a progress."""
    rates = {"numInputRows": 1, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}
    return {"description": description, "startOffset": None, "endOffset": end, "latestOffset": latest, **rates}


def progress(run: UUID, *sources: dict[str, Any], name: str | None = "etl", batch: int = 0) -> QueryProgressEvent:
    """A batch of a query has ended."""
    fields: dict[str, Any] = {
        "id": str(UUID(int=7)),
        "runId": str(run),
        "name": name,
        "timestamp": "2026-11-24T10:00:00.000Z",
        "batchId": batch,
        "batchDuration": 5,
        "durationMs": {},
        "stateOperators": [],
        "sources": list(sources),
        "sink": {"description": "sink", "numOutputRows": 1},
        "numInputRows": 1,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "observedMetrics": {},
    }
    return QueryProgressEvent.fromJson({"progress": fields})


def ended(run: UUID) -> QueryTerminatedEvent:
    """A query has ended."""
    return QueryTerminatedEvent(UUID(int=7), run, None, None)


def committed(address: str, group: str = "etl", namespace: str = "default") -> dict[str, int]:
    """Shard -> offset."""
    with BlockingOffsetClient(address, PATIENCE_S) as client:
        return {shard: row.offset for shard, row in client.read(group, namespace=namespace).items()}


def counted(result: str) -> float:
    """The counter of offsets."""
    return REGISTRY.get_sample_value("offset_listener_offsets_total", {"result": result}) or 0.0


def test_the_end_offsets_of_kafka_are_committed_as_they_are_and_with_the_ends_of_the_log(tmp_path: Path) -> None:
    """Both count the next offset to read. With the end of the log the adapter knows the lag."""
    run = uuid4()
    with sidecar_in_thread(tmp_path) as address, OffsetCommitListener(address, namespace="spark") as listener:
        listener.onQueryProgress(progress(run, source({"orders": {"0": 40, "1": 7}}, {"orders": {"0": 50}, "other": {"0": 1}})))
        assert listener.flush(PATIENCE_S)
        with BlockingOffsetClient(address, PATIENCE_S) as client:
            rows = client.read("etl", namespace="spark")
        assert {shard: (row.offset, row.topic, row.partition) for shard, row in rows.items()} == {
            "orders/0": (40, "orders", 0),
            "orders/1": (7, "orders", 1),
        }
        assert asyncio.run(live_lag(address)) == {"orders/0": 10, "orders/1": None}


async def live_lag(address: str) -> dict[str, int | None]:
    """The lag of the group `etl` by shard, as `top` and the console have it, when the adapter has evaluated it."""
    async with OffsetClient.connect(address) as client:
        with anyio.fail_after(PATIENCE_S):
            while True:
                try:
                    found = await client.group_lag("etl", namespace="spark")
                except grpc.aio.AioRpcError:  # not evaluated yet
                    await anyio.sleep(0.05)
                else:
                    return {row.shard: row.lag if row.HasField("lag") else None for row in found.shards}


def test_a_batch_that_ends_later_takes_the_place_of_what_waits_for_an_adapter(tmp_path: Path) -> None:
    """The adapter is not there at first: callbacks return at once, and what it gets in the end is the newest offset, once."""
    run = uuid4()
    with OffsetCommitListener(f"unix:{tmp_path / 'a.sock'}") as listener:
        before = counted("committed")
        for end in range(1, 200):
            listener.onQueryProgress(progress(run, source({"orders": {"0": end}}), batch=end))
        assert not listener.flush(0)
        with sidecar_in_thread(tmp_path) as address:
            wait(lambda: counted("committed") > before)
            assert committed(address) == {"orders/0": 199}
            assert counted("committed") == before + 1


def test_an_offset_that_comes_while_an_older_one_is_sent_is_sent_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to the older one does not count for it."""
    run, sent, answer = uuid4(), threading.Event(), threading.Event()
    send = outbox._committed

    async def held(client: OffsetClient, request: offsets_pb.CommitOffsetsRequest) -> offsets_pb.CommitOffsetsReply:
        reply = await send(client, request)
        sent.set()
        await asyncio.to_thread(answer.wait, PATIENCE_S)
        return reply

    monkeypatch.setattr(outbox, "_committed", held)
    with sidecar_in_thread(tmp_path) as address, OffsetCommitListener(address) as listener:
        listener.onQueryProgress(progress(run, source({"orders": {"0": 1}})))
        assert sent.wait(PATIENCE_S)
        listener.onQueryProgress(progress(run, source({"orders": {"0": 2}}), batch=1))
        answer.set()
        assert listener.flush(PATIENCE_S)
        assert committed(address) == {"orders/0": 2}


def wait(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    with anyio.from_thread.start_blocking_portal() as portal:
        portal.call(eventually, condition)


def test_the_end_of_a_query_waits_for_its_last_offsets_within_a_limit(tmp_path: Path) -> None:
    """Without an adapter it gives up after `flush_s`, and the next query's end does not wait again."""
    run = uuid4()
    with OffsetCommitListener(f"unix:{tmp_path / 'a.sock'}", flush_s=0.01) as listener:
        listener.onQueryProgress(progress(run, source({"orders": {"0": 1}})))
        listener.onQueryTerminated(ended(run))
        assert not listener.flush(3600.0)
    with sidecar_in_thread(tmp_path) as address, OffsetCommitListener(address, flush_s=PATIENCE_S) as listener:
        listener.onQueryProgress(progress(run, source({"orders": {"0": 2}})))
        listener.onQueryTerminated(ended(run))
        assert committed(address) == {"orders/0": 2}


def test_queries_are_groups_of_their_own_and_a_pattern_may_name_the_checkpoint(tmp_path: Path) -> None:
    """By name, or by the id that a checkpoint keeps over restarts."""
    with sidecar_in_thread(tmp_path) as address:
        with OffsetCommitListener(address, flush_s=PATIENCE_S) as listener:
            listener.onQueryProgress(progress(uuid4(), source({"orders": {"0": 1}}), name="a"))
            listener.onQueryProgress(progress(uuid4(), source({"orders": {"0": 2}}), name="b"))
        with OffsetCommitListener(address, group="spark-{id}", shard="{topic}:{partition}", flush_s=PATIENCE_S) as listener:
            listener.onQueryProgress(progress(uuid4(), source({"orders": {"0": 3}}), name=None))
        assert committed(address, "a") == {"orders/0": 1}
        assert committed(address, "b") == {"orders/0": 2}
        assert committed(address, f"spark-{UUID(int=7)}") == {"orders:0": 3}


def test_of_two_sources_in_one_partition_the_lower_position_counts(tmp_path: Path) -> None:
    """A self-join is as far as its slower side."""
    with sidecar_in_thread(tmp_path) as address:
        with OffsetCommitListener(address, flush_s=PATIENCE_S) as listener:
            listener.onQueryProgress(progress(uuid4(), source({"orders": {"0": 4}}), source({"orders": {"0": 9, "1": 5}})))
        assert committed(address) == {"orders/0": 4, "orders/1": 5}


def test_a_new_checkpoint_does_not_rewind_a_group_unless_that_is_asked_for(tmp_path: Path) -> None:
    """Else the larger offset stands, and a warning says so once. With `rewind` the first offsets of each run count."""
    with sidecar_in_thread(tmp_path) as address:
        with OffsetCommitListener(address, flush_s=PATIENCE_S) as listener:
            listener.onQueryProgress(progress(uuid4(), source({"orders": {"0": 100}})))
        before = counted("superseded")
        with capture_logs() as logs, OffsetCommitListener(address, flush_s=PATIENCE_S) as listener:
            again = uuid4()
            for end in (5, 6):
                listener.onQueryProgress(progress(again, source({"orders": {"0": end}})))
                assert listener.flush(PATIENCE_S)
        warnings = [row for row in logs if row["event"] == "listener.superseded"]
        assert [(row["group"], row["shard"], row["offset"], row["stands"]) for row in warnings] == [("etl", "orders/0", 5, 100)]
        assert counted("superseded") == before + 2
        assert committed(address) == {"orders/0": 100}
        with OffsetCommitListener(address, rewind=True, flush_s=PATIENCE_S) as listener:
            for run, end in ((again, 7), (again, 9), (again, 8), (uuid4(), 3)):
                listener.onQueryProgress(progress(run, source({"orders": {"0": end}})))
                assert listener.flush(PATIENCE_S)
                assert committed(address) == {"orders/0": end}


def test_a_rewind_that_waits_stays_one_when_a_newer_offset_takes_its_place(tmp_path: Path) -> None:
    """The second batch of the run ends before the adapter has the first."""
    with sidecar_in_thread(tmp_path) as address, OffsetCommitListener(address, flush_s=PATIENCE_S) as listener:
        listener.onQueryProgress(progress(uuid4(), source({"orders": {"0": 100}})))
    run = uuid4()
    with OffsetCommitListener(address, rewind=True) as listener:
        for end in (5, 6):
            listener.onQueryProgress(progress(run, source({"orders": {"0": end}})))
        with sidecar_in_thread(tmp_path):
            assert listener.flush(PATIENCE_S)
            assert committed(address) == {"orders/0": 6}


def test_a_query_without_new_data_keeps_its_group(tmp_path: Path) -> None:
    """Its offsets are committed again, without the end of the log, of which others may know more by then."""
    run = uuid4()
    with sidecar_in_thread(tmp_path) as address, OffsetCommitListener(address, namespace="spark") as listener:
        listener.onQueryProgress(progress(run, source({"orders": {"0": 40}}, {"orders": {"0": 50}})))
        assert listener.flush(PATIENCE_S)
        with BlockingOffsetClient(address, PATIENCE_S) as client:
            client.remove("etl", namespace="spark")
        listener.onQueryIdle(QueryIdleEvent(UUID(int=7), run, "2026-11-24T10:00:00.000Z"))
        listener.onQueryIdle(QueryIdleEvent(UUID(int=7), uuid4(), "2026-11-24T10:00:00.000Z"))  # of a query without offsets
        assert listener.flush(PATIENCE_S)
        assert committed(address, namespace="spark") == {"orders/0": 40}


def test_offsets_that_are_committed_again_change_nothing_that_waits(tmp_path: Path) -> None:
    """What waits may be newer, and has the end of the log."""
    box = outbox.Outbox(f"unix:{tmp_path / 'a.sock'}", "default", None)
    newer = outbox.Commit(offsets_pb.ShardCommit(shard="orders/0", offset=9, high_watermark=10), rewind=True)
    box.put({("etl", "orders/0"): newer})
    entries = [offsets_pb.ShardCommit(shard=f"orders/{number}", offset=5, high_watermark=6) for number in range(2)]
    box.put_again("etl", {entry.shard: entry for entry in entries})
    assert box._pending == {
        ("etl", "orders/0"): newer,
        ("etl", "orders/1"): outbox.Commit(offsets_pb.ShardCommit(shard="orders/1", offset=5)),
    }
    box.close(0)


@pytest.mark.parametrize(
    ("positions", "name", "said"),
    [
        (lambda _: 1 / 0, "etl", "ZeroDivisionError"),
        (lambda source: [Position("t", 0, -1, len(source.endOffset))], "etl", "ValueError"),
        (lambda source: int(f"no number: {source.endOffset}"), "etl", "ValueError"),
        (lambda _: [Position("t", 0, 1, -1)], "etl", "ValueError"),
        (lambda _: [Position("t\n", 0, 1)], "etl", "control character"),
        (kafka_positions, None, "queryName"),
        (kafka_positions, "e\ntl", "the group has the control character"),
    ],
)
def test_a_batch_that_cannot_be_used_is_counted_and_told_once(positions: Any, name: str | None, said: str) -> None:
    """The query goes on: nothing is raised into Spark. Another text of the same error is not told again."""
    before = REGISTRY.get_sample_value("offset_listener_unusable_batches_total") or 0.0
    run = uuid4()
    with capture_logs() as logs, OffsetCommitListener("127.0.0.1:1", positions=positions) as listener:
        for batch in range(2):
            listener.onQueryProgress(progress(run, source({"orders": {"0": batch}}), name=name))
        assert listener.flush(0)
    assert [said in row["problem"] for row in logs if row["event"] == "listener.unusable_batch"] == [True]
    assert REGISTRY.get_sample_value("offset_listener_unusable_batches_total") == before + 2


def test_a_group_that_the_adapter_cannot_take_now_does_not_hold_up_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is written through while the Meta Service is away."""
    send = outbox._committed

    async def only_others(client: OffsetClient, request: offsets_pb.CommitOffsetsRequest) -> offsets_pb.CommitOffsetsReply:
        if request.groups[0].group == "a":
            raise TransientError("the Meta Service is away")
        return await send(client, request)

    monkeypatch.setattr(outbox, "_committed", only_others)
    with sidecar_in_thread(tmp_path) as address, OffsetCommitListener(address, flush_s=0) as listener:
        for name in ("a", "b"):
            listener.onQueryProgress(progress(uuid4(), source({"orders": {"0": 1}}), name=name))
        wait(lambda: committed(address, "b") == {"orders/0": 1})
        assert committed(address, "a") == {}


def test_a_refused_request_does_not_hold_up_those_of_other_groups(tmp_path: Path) -> None:
    """It is told and given up: the same offsets would be refused again."""

    def without_offset(source: SourceProgress) -> list[Position]:
        return [at._replace(offset=None) if at.topic == "odd" else at for at in kafka_positions(source)]  # type: ignore[arg-type]

    before = counted("refused")
    with sidecar_in_thread(tmp_path) as address:
        with capture_logs() as logs, OffsetCommitListener(address, positions=without_offset, flush_s=PATIENCE_S) as listener:
            listener.onQueryProgress(progress(uuid4(), source({"odd": {"0": 1}}), name="a"))
            listener.onQueryProgress(progress(uuid4(), source({"orders": {"0": 2}})))
            assert listener.flush(PATIENCE_S)
        assert committed(address) == {"orders/0": 2}
    assert [row["group"] for row in logs if row["event"] == "listener.refused"] == ["a"]
    assert counted("refused") == before + 1


def test_memory_is_bounded_while_there_is_no_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards beyond the limit are dropped; those that wait get newer offsets as before."""
    monkeypatch.setattr(outbox, "MAX_PENDING", 3)
    before, run = counted("dropped"), uuid4()
    with capture_logs() as logs, OffsetCommitListener("127.0.0.1:1", flush_s=0) as listener:
        for end in (1, 2):
            listener.onQueryProgress(progress(run, source({"orders": {str(partition): end for partition in range(5)}})))
        pending = listener._outbox._pending
        assert [commit.entry.offset for commit in pending.values()] == [2, 2, 2]
    assert counted("dropped") == before + 4
    assert [row["dropped"] for row in logs if row["event"] == "listener.full"] == [2, 2]


def test_many_partitions_are_sent_in_requests_that_the_adapter_takes(tmp_path: Path) -> None:
    """5,000 is its limit."""
    ends = {str(partition): partition for partition in range(5_001)}
    with sidecar_in_thread(tmp_path) as address:
        with OffsetCommitListener(address, flush_s=PATIENCE_S) as listener:
            listener.onQueryProgress(progress(uuid4(), source({"orders": ends})))
        assert committed(address) == {f"orders/{partition}": int(partition) for partition in ends}


def test_sources_other_than_kafka_are_left_alone_and_unknown_offsets_too() -> None:
    """Spark has null for an offset that it does not know; py4j makes that None."""
    assert kafka_positions(SourceProgress.fromJson(source({"logOffset": 3}, description="FileStreamSource[file:/x]"))) == []
    assert kafka_positions(SourceProgress.fromJson(source(None))) == []
    assert kafka_positions(SourceProgress(KAFKA, "None", "None", "None", 0, 0.0, 0.0, {})) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"group": "{topic}"}, r"group = '\{topic\}': its fields may be \{id\}, \{query\}"),
        ({"shard": "{topic}"}, r"needs \{topic\} and \{partition\}"),
        ({"shard": "{topic}/{partition:d}"}, "a field is only its name in braces"),
        ({"namespace": ""}, "namespace is empty"),
        ({"address": "foo"}, "^address = 'foo' is not host:port with a port from 0 to 65535, and not unix:path either$"),
    ],
)
def test_settings_are_checked_at_once(settings: dict[str, str], said: str) -> None:
    """Address, names and patterns by the listener, no thread is left."""
    with pytest.raises(InvalidInputError, match=said):
        OffsetCommitListener(**{"address": "127.0.0.1:1", **settings})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="/not/there"):
        OffsetCommitListener("127.0.0.1:1", tls=ClientTls(ca=Path("/not/there")))
    assert "offset-listener" not in {thread.name for thread in threading.enumerate()}


def test_after_the_close_spark_may_still_call(tmp_path: Path) -> None:
    """A listener that was closed and not removed takes nothing, and hinders nothing."""
    listener = OffsetCommitListener(f"unix:{tmp_path / 'a.sock'}", flush_s=0.01)
    listener.close()
    listener.close()
    run = uuid4()
    listener.onQueryProgress(progress(run, source({"orders": {"0": 1}})))
    listener.onQueryTerminated(ended(run))
