"""Resets to the ends and by time, over real gRPC on both sides: what the broker's log says, and what is said without it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.model.bounds import Bounds, ShardKey
from adapter.model.records import next_era
from adapter.rpc import offsets_pb
from adapter.runtime.clocks import wall_ms
from adapter.testing.broker_log import serving as serving_log
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.processes import free_port
from tests.integration.brokers import ScriptedBroker, adapter_at, broker_without_methods, hanging_broker, memory_log
from tests.integration.helpers import PATIENCE_S, key, record, serving

LONG_AGO_MS = 1_000  # so that no group counts as active
HOUR_MS = 3_600_000
NEEDS_BOUNDS: list[dict[str, Any]] = [{"to_earliest": True}, {"to_latest": True}, {"to_timestamp_ms": 5}]
TIMELESS, NEEDLESS = NEEDS_BOUNDS[:2], [{"to_offset": 2}, {"shift_by": -5}, {"to_current": True}]


def name_of(to: Mapping[str, Any]) -> str:
    """Where a reset goes, for the name of a test."""
    return next(iter(to))


def meta_of(**offsets: int) -> FakeMeta:
    """A Meta Service with offsets of the group `g`."""
    return FakeMeta({key(shard): record(offset, committed_at_ms=LONG_AGO_MS) for shard, offset in offsets.items()})


async def reset(client: OffsetClient, *shards: str, execute: bool = True, **to: Any) -> offsets_pb.ChangeReply:
    """Reset shards of the group `g`, or all of them."""
    request = offsets_pb.ResetOffsetsRequest(group="g", shards=shards, execute=execute, **to)
    return await client.admin.ResetOffsets(request, timeout=PATIENCE_S)


async def refusal(client: OffsetClient, *shards: str, **to: Any) -> tuple[grpc.StatusCode, str]:
    """The status and the text that a reset is refused with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await reset(client, *shards, **to)
    return caught.value.code(), caught.value.details() or ""


async def read(client: OffsetClient) -> dict[str, int]:
    """What a consumer of the group `g` gets."""
    return {shard: row.offset for shard, row in (await client.read("g")).items()}


def rows(reply: offsets_pb.ChangeReply) -> dict[str, tuple[int, int, str]]:
    """Shard -> offset before, offset after, warning."""
    return {row.shard: (row.before.offset, row.after.offset, row.warning) for row in reply.rows}


def stored(meta: FakeMeta) -> dict[str, tuple[int, int]]:
    """What the Meta Service holds: shard -> (epoch, offset)."""
    return {name.shard: held.position for name, held in meta.records.items()}


@pytest.mark.parametrize(
    ("to", "after"),
    [
        ({"to_earliest": True}, {"a": 2, "b": 0}),
        ({"to_latest": True}, {"a": 5, "b": 1}),
        ({"to_timestamp_ms": 30}, {"a": 3, "b": 0}),
    ],
    ids=["earliest", "latest", "time"],
)
@pytest.mark.parametrize("execute", [False, True])
async def test_a_reset_goes_where_the_log_says(
    directory: Path, to: Mapping[str, Any], after: Mapping[str, int], *, execute: bool
) -> None:
    """Each shard by its own log; a dry run shows the same and changes nothing."""
    log = memory_log(a=[10, 20, 25, 40, 30], b=[50])
    log.trim(ShardKey("default", "a"), 2)
    meta = meta_of(a=4, b=1)
    async with serving_log(log) as broker, adapter_at(directory, broker, meta) as client:
        reply = await reset(client, execute=execute, **to)
        assert rows(reply) == {"a": (4, after["a"], ""), "b": (1, after["b"], "")}
        assert (list(reply.warnings), reply.executed) == ([], execute)
        assert await read(client) == (after if execute else {"a": 4, "b": 1})
    epoch = next_era(1) if execute else 1
    assert stored(meta) == {name: (epoch, offset) for name, offset in (after if execute else {"a": 4, "b": 1}).items()}


async def test_the_log_is_asked_for_each_reset(directory: Path) -> None:
    """Bounds are of this moment: messages came in, old ones went, and at last the shard was made anew."""
    shard = ShardKey("default", "s")
    log = memory_log(s=[1, 2, 3])
    async with serving_log(log) as broker, adapter_at(directory, broker, meta_of(s=1)) as client:
        assert rows(await reset(client, to_latest=True))["s"][1] == 3
        log.append(shard, 4)
        log.trim(shard, 2)
        assert rows(await reset(client, to_latest=True))["s"][1] == 4
        assert rows(await reset(client, to_earliest=True))["s"][1] == 2
        log.create(shard)
        assert rows(await reset(client, to_latest=True))["s"][1] == 0


async def test_a_time_before_the_first_message_is_the_first_message(directory: Path) -> None:
    """That is, the first one that is still there."""
    log = memory_log(s=[10, 20, 30])
    log.trim(ShardKey("default", "s"), 1)
    async with serving_log(log) as broker, adapter_at(directory, broker, meta_of(s=3)) as client:
        assert rows(await reset(client, to_timestamp_ms=0)) == {"s": (3, 1, "")}


@pytest.mark.parametrize("times", [[10, 20], []], ids=["old", "empty"])
async def test_a_time_after_the_last_message_is_the_end_and_is_warned_of(directory: Path, times: list[int]) -> None:
    """As Kafka's tool does it: nothing that comes later is skipped."""
    async with serving_log(memory_log(s=times)) as broker, adapter_at(directory, broker, meta_of(s=1)) as client:
        reply = await reset(client, to_timestamp_ms=21)
    assert rows(reply) == {"s": (1, len(times), "no message is at or after this time: the end of the shard")}


@pytest.mark.parametrize(
    ("to", "after", "warning"),
    [
        ({"to_offset": 1}, 2, "1 is outside: the shard has 2 to 5"),
        ({"to_offset": 9}, 5, "9 is outside: the shard has 2 to 5"),
        ({"shift_by": -3}, 2, "1 is outside: the shard has 2 to 5"),
        ({"shift_by": 100}, 5, "104 is outside: the shard has 2 to 5"),
        ({"to_offset": 5}, 5, ""),
        ({"to_offset": 2}, 2, ""),
    ],
)
async def test_a_target_outside_of_the_log_is_corrected_with_a_warning(
    directory: Path, to: Mapping[str, Any], after: int, warning: str
) -> None:
    """To the nearest end; the end itself is inside: it is the next message to come."""
    log = memory_log(s=range(5))
    log.trim(ShardKey("default", "s"), 2)
    async with serving_log(log) as broker, adapter_at(directory, broker, meta_of(s=4)) as client:
        assert rows(await reset(client, **to)) == {"s": (4, after, warning)}


async def test_to_current_corrects_only_what_is_outside(directory: Path) -> None:
    """One is behind the end of a shard made anew, one before the beginning of a trimmed one, one is fine."""
    log = memory_log(new=[1], old=range(9), fine=range(9))
    log.trim(ShardKey("default", "old"), 6)
    meta = meta_of(new=8, old=2, fine=3)
    async with serving_log(log) as broker, adapter_at(directory, broker, meta) as client:
        reply = await reset(client, to_current=True)
    assert {row.shard: (row.after.offset, row.changed) for row in reply.rows} == {
        "new": (1, True),
        "old": (6, True),
        "fine": (3, False),
    }
    assert stored(meta)["fine"] == (1, 3)


async def test_targets_of_a_file_are_corrected_one_by_one(directory: Path) -> None:
    """Also for shards without an offset so far."""
    targets = [offsets_pb.ResetOffsetsRequest.Target(shard=name, offset=7) for name in ("a", "b")]
    async with serving_log(memory_log(a=range(9), b=range(3))) as broker, adapter_at(directory, broker, meta_of(a=1)) as client:
        reply = await reset(client, to_targets=offsets_pb.ResetOffsetsRequest.Targets(targets=targets), create=True)
    assert rows(reply) == {"a": (1, 7, ""), "b": (0, 3, "7 is outside: the shard has 0 to 3")}


@pytest.mark.parametrize("to", NEEDS_BOUNDS, ids=name_of)
async def test_a_shard_that_the_broker_does_not_have_refuses_the_whole_reset(directory: Path, to: Mapping[str, Any]) -> None:
    """By its name, and nothing of it is done; the others can be named without it."""
    meta = meta_of(s=1, gone=1)
    async with serving_log(memory_log(s=[1, 9])) as broker, adapter_at(directory, broker, meta) as client:
        code, text = await refusal(client, **to)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "default/g/gone: the broker does not know this shard" in text
        assert rows(await reset(client, "s", **to)).keys() == {"s"}
    assert stored(meta)["gone"] == (1, 1)


@pytest.mark.parametrize("to", NEEDLESS, ids=name_of)
async def test_other_resets_of_such_a_shard_are_not_checked_and_say_so(directory: Path, to: Mapping[str, Any]) -> None:
    """The number is taken as it is, or stays."""
    async with serving_log(memory_log(s=range(9))) as broker, adapter_at(directory, broker, meta_of(s=5, gone=50)) as client:
        reply = await reset(client, **to)
    assert list(reply.warnings) == ["the broker does not have gone: the target was not checked"]
    assert rows(reply)["gone"][2] == ""


async def test_a_shard_that_is_left_out_of_the_offsets_by_time_is_not_sent_to_the_end(directory: Path) -> None:
    """Left out is not "no message is that young": it was there a moment ago, when its bounds were asked for."""

    def forgets(request: Any, _: Any) -> Any:
        if isinstance(request, offsets_pb.GetBoundsRequest):
            bounds = [offsets_pb.GetBoundsReply.Bounds(shard=shard, high=9) for shard in request.shards]
            return offsets_pb.GetBoundsReply(bounds=bounds)
        return offsets_pb.GetOffsetsForTimeReply()

    meta = meta_of(s=1)
    async with serving_log(ScriptedBroker(forgets)) as broker, adapter_at(directory, broker, meta) as client:
        code, text = await refusal(client, to_timestamp_ms=5)
    assert (code, stored(meta)) == (grpc.StatusCode.FAILED_PRECONDITION, {"s": (1, 1)})
    assert "default/g/s: the broker gave no offset for this time" in text


@pytest.mark.parametrize("to", NEEDS_BOUNDS, ids=name_of)
async def test_with_the_broker_away_it_is_refused_and_named(directory: Path, to: Mapping[str, Any]) -> None:
    """Not done by halves, and not by what commits told long ago: where a broker is configured, its word counts."""
    broker, meta = f"127.0.0.1:{free_port()}", meta_of(s=1)
    async with adapter_at(directory, broker, meta) as client:
        code, text = await refusal(client, **to)
    assert (code, stored(meta)) == (grpc.StatusCode.UNAVAILABLE, {"s": (1, 1)})
    assert text.startswith(f"the broker at {broker} cannot be reached: ")


@pytest.mark.parametrize("to", NEEDLESS, ids=name_of)
async def test_with_the_broker_away_other_resets_go_on_with_a_warning(directory: Path, to: Mapping[str, Any]) -> None:
    """The cause is told, and that the target was not checked."""
    broker = f"127.0.0.1:{free_port()}"
    async with adapter_at(directory, broker, meta_of(s=50)) as client:
        reply = await reset(client, **to)
    away, unchecked = reply.warnings
    assert away.startswith(f"the broker at {broker} cannot be reached: ")
    assert unchecked == "the bounds of s are not known: the target was not checked"
    assert (reply.executed, rows(reply)["s"][2]) == (True, "")


@pytest.mark.parametrize("to", NEEDS_BOUNDS, ids=name_of)
async def test_a_broker_that_does_not_answer_ends_the_reset(directory: Path, to: Mapping[str, Any]) -> None:
    """After its deadline."""
    meta = meta_of(s=1)
    async with serving_log(hanging_broker()) as broker, adapter_at(directory, broker, meta, timeout_ms=100) as client:
        code, text = await refusal(client, **to)
    assert (code, stored(meta)) == (grpc.StatusCode.UNAVAILABLE, {"s": (1, 1)})
    assert "did not answer within 0.1 s" in text


async def test_a_broker_without_the_service_is_told_so(directory: Path) -> None:
    """Its address is in the settings, but it cannot be asked."""
    async with serving_log(broker_without_methods()) as broker, adapter_at(directory, broker, meta_of(s=1)) as client:
        code, text = await refusal(client, to_earliest=True)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert text.startswith(f"the broker at {broker} does not serve offsets.v1.BrokerLog: ")


async def test_bounds_that_cannot_be_right_move_nothing(directory: Path) -> None:
    """An end before the beginning: the broker is not believed."""
    wrong = offsets_pb.GetBoundsReply(bounds=[offsets_pb.GetBoundsReply.Bounds(shard="s", low=9, high=3)])
    meta = meta_of(s=1)
    async with serving_log(ScriptedBroker(lambda *_: wrong)) as broker, adapter_at(directory, broker, meta) as client:
        code, text = await refusal(client, to_earliest=True)
    assert (code, stored(meta)) == (grpc.StatusCode.UNAVAILABLE, {"s": (1, 1)})
    assert "gave an answer that cannot be right" in text


@pytest.mark.parametrize("to", TIMELESS, ids=name_of)
async def test_without_any_bounds_it_is_said_what_is_missing(directory: Path, to: Mapping[str, Any]) -> None:
    """Neither a broker log nor a commit: refused, and both ways out are named."""
    meta = meta_of(s=1)
    async with serving(directory, meta) as (_, client):
        code, text = await refusal(client, **to)
    assert (code, stored(meta)) == (grpc.StatusCode.FAILED_PRECONDITION, {"s": (1, 1)})
    assert "the bounds of s are not known: no broker_log.address is configured, and no commit since the start told them" in text


async def test_without_a_broker_log_there_is_no_reset_by_time(directory: Path) -> None:
    """Bounds that commits told do not help: only a broker knows when a message was written."""
    async with serving(directory, meta_of(s=1)) as (sidecar, client):
        sidecar.core().bounds.note({ShardKey("default", "s"): Bounds(0, 9, wall_ms())})
        code, text = await refusal(client, to_timestamp_ms=5)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "no broker_log.address is configured" in text


@pytest.mark.parametrize(
    ("to", "after", "warning"),
    [
        ({"to_earliest": True}, 3, ""),
        ({"to_latest": True}, 9, ""),
        ({"to_offset": 20}, 9, "20 is outside: the shard has 3 to 9"),
    ],
    ids=["earliest", "latest", "offset"],
)
async def test_bounds_that_commits_told_serve_instead_and_their_age_is_told(
    directory: Path, to: Mapping[str, Any], after: int, warning: str
) -> None:
    """The oldest of them, for these shards."""
    async with serving(directory, meta_of(s=5, t=5)) as (sidecar, client):
        sidecar.core().bounds.note({ShardKey("default", "s"): Bounds(3, 9, wall_ms() - HOUR_MS)})
        sidecar.core().bounds.note({ShardKey("default", "t"): Bounds(3, 9, wall_ms())})
        reply = await reset(client, **to)
    assert rows(reply) == dict.fromkeys("st", (5, after, warning))
    assert [re.sub(r"36\d\d", "36xx", text) for text in reply.warnings] == ["bounds as commits told them, up to 36xx s ago"]


async def test_bounds_that_came_with_a_commit_are_used_end_to_end(directory: Path) -> None:
    """A broker that serves nothing, but tells with its commits."""
    shard = offsets_pb.ShardCommit(shard="s", offset=5, low_watermark=3, high_watermark=9)
    request = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=[shard])])
    async with serving(directory) as (_, client):
        await client.store.CommitOffsets(request, timeout=PATIENCE_S)
        reply = await reset(client, to_earliest=True)
        assert rows(reply) == {"s": (5, 3, "")}
        told, active = reply.warnings
        assert re.fullmatch(r"bounds as commits told them, up to \d+ s ago", told)
        assert "stop its consumers first" in active
        assert await read(client) == {"s": 3}


async def test_one_shard_without_bounds_is_named_beside_the_known_ones(directory: Path) -> None:
    """A reset to the end is refused; one to a number goes on, and says which target was not checked."""
    async with serving(directory, meta_of(s=5, none=5)) as (sidecar, client):
        sidecar.core().bounds.note({ShardKey("default", "s"): Bounds(3, 9, wall_ms())})
        code, text = await refusal(client, to_latest=True)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "the bounds of none are not known" in text
        reply = await reset(client, to_offset=20)
    assert {shard: row[1] for shard, row in rows(reply).items()} == {"s": 9, "none": 20}
    assert "the bounds of none are not known: the target was not checked" in reply.warnings


BEYOND = (
    "6 is beyond the log's end 5: a consumer there gets nothing until the log is that long, or starts where its own rule says"
)
BEFORE = "1 is before the log's start 2: a consumer starts there, or where its own rule says"


async def test_an_import_warns_of_positions_that_the_log_does_not_have(directory: Path) -> None:
    """In the dry run, if they are news and the bounds are known. They are imported as they are."""
    log = memory_log(beyond=[1, 2, 3, 4, 5], before=[1, 2, 3], end=[1, 2, 3], stands=[1])
    log.trim(ShardKey("default", "before"), 2)
    offsets = {"beyond": 6, "before": 1, "end": 3, "stands": 9, "unknown": 9}
    commits = [offsets_pb.ShardCommit(shard=shard, offset=offset) for shard, offset in offsets.items()]
    request = offsets_pb.ImportOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=commits)])
    async with serving_log(log) as broker, adapter_at(directory, broker, meta_of(stands=9)) as client:
        found = {row.shard: row.warning for row in (await client.admin.ImportOffsets(request, timeout=PATIENCE_S)).rows}
        assert found == {"beyond": BEYOND, "before": BEFORE, "end": "", "stands": "", "unknown": ""}
        request.execute = True
        reply = await client.admin.ImportOffsets(request, timeout=PATIENCE_S)
        assert (reply.executed, {row.warning for row in reply.rows}) == (True, {""})
        assert await read(client) == offsets


async def test_an_import_without_the_broker_is_checked_by_what_commits_told(directory: Path) -> None:
    """A broker that does not answer refuses no import."""
    rows = [offsets_pb.ShardCommit(shard="s", offset=3, low_watermark=2, high_watermark=5)]
    told = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="other", shards=rows)])
    commits = [offsets_pb.ShardCommit(shard="s", offset=6)]
    request = offsets_pb.ImportOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=commits)])
    async with adapter_at(directory, f"127.0.0.1:{free_port()}", meta_of()) as client:
        await client.store.CommitOffsets(told, timeout=PATIENCE_S)
        (row,) = (await client.admin.ImportOffsets(request, timeout=PATIENCE_S)).rows
        assert (row.changed, row.warning) == (True, BEYOND)


async def test_a_clone_warns_of_positions_that_the_log_does_not_have(directory: Path) -> None:
    """It copies them as they are."""
    async with serving_log(memory_log(s=[1] * 5, t=[1])) as broker, adapter_at(directory, broker, meta_of(s=6, t=1)) as client:
        request = offsets_pb.CloneGroupRequest(from_group="g", to_group="h", execute=True)
        reply = await client.admin.CloneGroup(request, timeout=PATIENCE_S)
        assert {row.shard: (row.after.offset, row.warning) for row in reply.rows} == {"s": (6, BEYOND), "t": (1, "")}
