"""Broadcasting groups: names, the choice of the lowest offset, commits, and what is stored."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from adapter.errors import InvalidInputError, MetaUnavailableError
from adapter.model.broadcast_names import is_of_client
from adapter.model.records import GroupKey, OffsetRecord
from adapter.rpc import offsets_pb
from adapter.sidecar.api.requests import parse_commit_broadcast, parse_read_broadcast
from adapter.sidecar.engine.broadcast import Client, Lowest, group_of_client, group_of_lowest, lowest_of
from adapter.testing.fake_meta import FakeMeta
from tests.unit.broadcasting import world
from tests.unit.expiring import NOW_MS
from tests.unit.helpers import commit_of, key, record, send

GROUP = GroupKey("default", "g")


def client(name: str, last_ms: int, **offsets: int) -> Client:
    """A client of which only the offsets matter."""
    return Client(name, {shard: record(offset) for shard, offset in offsets.items()}, last_ms)


@pytest.mark.parametrize(
    ("clients", "kept", "expected"),
    [
        pytest.param([client("x", 1000, s=5), client("y", 1000, s=9)], {}, (5, "x", 2), id="the slowest of two"),
        pytest.param([client("x", 1000, s=5), client("y", 1000, s=5)], {}, (5, "x", 2), id="of equals the first by name"),
        pytest.param([client("x", 899, s=5), client("y", 900, s=9)], {}, (9, "y", 1), id="to the millisecond"),
        pytest.param([client("x", 1000, t=1, s=5), client("y", 1000, t=1)], {}, (5, "x", 1), id="only those of the shard"),
        pytest.param([client("x", 950, s=5)], {"s": record(2, committed_at_ms=990)}, (5, "x", 1), id="live before kept"),
        pytest.param([client("x", 5000, s=5)], {}, (5, "x", 1), id="from the future"),
        pytest.param([], {"s": record(2, committed_at_ms=1)}, (2, "", 0), id="kept, all gone"),
        pytest.param([client("x", 500, s=5)], {"s": record(2, committed_at_ms=501)}, (2, "", 0), id="kept after the last commit"),
        pytest.param(
            [client("x", 500, s=5)], {"s": record(2, committed_at_ms=500)}, (5, "", 0), id="kept before the last commit"
        ),
        pytest.param([client("x", 500, s=9), client("y", 400, s=5)], {}, (5, "", 0), id="live at the last commit"),
        pytest.param([client("x", 500, s=9), client("y", 399, s=5)], {}, (9, "", 0), id="gone at the last commit"),
        pytest.param([], {"s": record(2)}, (2, "", 0), id="kept at an unknown time"),
        pytest.param([client("x", 1000, t=1)], {}, None, id="nobody ever"),
    ],
)
def test_the_lowest_offset_of_a_shard(
    clients: list[Client], kept: dict[str, OffsetRecord], expected: tuple[int, str, int] | None
) -> None:
    """The time is 1,000, and clients expire after 100. RocketMQ: BroadcastOffsetManager.scanOffsetData, its `Math.min`."""
    found = lowest_of(clients, kept, 1000, 100, ["s"])
    assert found == (
        {"s": Lowest(record(expected[0], committed_at_ms=found["s"].record.committed_at_ms), *expected[1:])} if expected else {}
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("g@broadcast@c", True),
        ("g@broadcast@10.0.0.1@7#1", True),
        ("g@broadcast@a@broadcast@b", True),
        ("g@broadcast", False),
        ("g@broadcast@", False),
        ("@broadcast@c", False),
        ("g@Broadcast@c", False),
        ("g", False),
    ],
)
def test_the_group_of_a_client_is_known_by_its_name(name: str, expected: bool) -> None:
    """RocketMQ's client ids are IP@PID#TIME, so an @ in them is no separator."""
    assert is_of_client(GroupKey("default", name)) is expected


@pytest.mark.parametrize(
    ("group", "client_id", "problem"),
    [
        ("", "c", "group is empty"),
        ("g\n", "c", "group has the control character U+000A at position 1"),
        ("g@broadcast", "c", "group: g@broadcast is what a broadcasting group's offsets are kept as"),
        ("g@broadcast@x", "c", "group: g@broadcast@x is what a broadcasting group's offsets are kept as"),
        ("g", "", "client_id is empty"),
        ("g", "c\0", "client_id has the control character U+0000 at position 1"),
        ("g", "c" * 256, "client_id is 256 bytes long; at most 255 are allowed"),
        ("g" * 100, "c" * 145, "client_id: is too long for this group: GROUP@broadcast@CLIENT is 256 bytes; at most 255"),
    ],
)
def test_a_bad_name_is_refused_by_its_field(group: str, client_id: str, problem: str) -> None:
    """The error names the field, and nothing of the request is stored (10)."""
    shards = [offsets_pb.ShardCommit(shard="s", offset=1)]
    with pytest.raises(InvalidInputError, match=problem.replace("+", r"\+")):
        parse_commit_broadcast(offsets_pb.CommitBroadcastRequest(group=group, client_id=client_id, shards=shards))


def test_too_many_shards_are_refused_before_they_are_copied() -> None:
    """The copy of a request of 4 MiB takes 400 MB, and the event loop for two seconds."""
    shards = [offsets_pb.ShardCommit() for _ in range(5_001)]
    with pytest.raises(InvalidInputError, match="shards: are 5001, over 5000; send several requests"):
        parse_commit_broadcast(offsets_pb.CommitBroadcastRequest(group="g", client_id="c", shards=shards))


async def test_a_read_refuses_a_group_whose_lowest_offsets_have_no_name() -> None:
    """They are kept in GROUP@broadcast, also of a read that names no client."""
    longest = "g" * 245
    query = await parse_read_broadcast(offsets_pb.ReadBroadcastRequest(group=longest))
    assert len(group_of_lowest(query.group).group) == 255
    with pytest.raises(InvalidInputError, match="group: is too long for a broadcasting group: GROUP@broadcast is 256 bytes"):
        await parse_read_broadcast(offsets_pb.ReadBroadcastRequest(group=longest + "g"))


async def test_commits_only_increase_and_the_answer_names_the_callers_group(tmp_path: Path) -> None:
    """RocketMQ: `updateOffset(queueId, offset, true)`. Clients have separate offsets."""
    async with world(tmp_path) as here:
        await here.commit("c", {"s": 5, "t": 5})
        await here.commit("d", {"s": 2})
        assert await here.commit("c", {"s": 4, "t": 6}) == [("g", "s", 5)]
        assert (await here.own("c"), await here.own("d")) == ({"s": 5, "t": 6}, {"s": 2})


async def test_the_lowest_is_kept_with_its_client_and_only_when_it_changed(tmp_path: Path) -> None:
    """It is stored in the group `g@broadcast`; a new client that begins lower is a rewind."""
    async with world(tmp_path) as here:
        await here.commit("c", {"s": 50, "t": 1})
        await here.core.broadcasts.keep()
        assert here.kept() == {"s": (50, "c"), "t": (1, "c")}
        seq = here.core.ledger.store.seq
        here.clock.wall_ms += 1
        await here.commit("d", {"s": 60})
        await here.core.broadcasts.keep()
        assert here.core.ledger.store.seq == seq + 1  # the commit
        await here.commit("e", {"s": 40})
        await here.core.broadcasts.keep()
        assert here.kept() == {"s": (40, "e"), "t": (1, "c")}
        assert here.stored().position == (2, 40)


async def test_a_name_beside_what_was_kept_need_not_be_one(tmp_path: Path) -> None:
    """Anybody may commit to that group with any metadata, so it may hold no client id."""
    async with world(tmp_path) as here:
        await send(here.core, commit_of({key("s", "g@broadcast"): 7}, metadata="m" * 4096, committed_at_ms=NOW_MS))
        assert await here.lowest() == {"s": (7, "", 0)}


async def test_what_cannot_be_kept_is_told_once_and_tried_again(tmp_path: Path) -> None:
    """Without the Meta Service the stored lowest offset is unknown, so it is not overwritten. Clients may still commit."""
    meta = FakeMeta({key("s", "g@broadcast"): record(9, 4)})
    async with world(tmp_path, meta) as here:
        meta.down = MetaUnavailableError("down by the test")
        await here.commit("c", {"s": 5})
        with capture_logs() as lines:
            for _ in range(3):
                await here.core.broadcasts.keep()
        assert [line["event"] for line in lines] == ["broadcast.not_kept"]
        assert here.kept() == {}
        meta.down = None
        await here.core.broadcasts.keep()
        assert here.stored().position == (5, 5)


async def test_clients_of_other_groups_are_not_met(tmp_path: Path) -> None:
    """Also with names that begin or end alike, of any length, and over many pages."""
    async with world(tmp_path) as here:
        for group in ("gg", "g@", "g@broadcas", "f", "G"):
            await here.commit("c", {"s": 1}, group)
        await send(
            here.core, commit_of({key("s", "g@broadcast@"): 1, key("s", "g@broadcast@c", "other"): 1}, committed_at_ms=NOW_MS)
        )
        names = ["c", "c2", "\u00e9", "x" * 243, "g@broadcast@c"]
        for at, name in enumerate(names):
            await here.commit(name, {"s": 10 + at})
        await here.commit("m\u00e4ny", {f"t/{at}": at for at in range(4500)})
        assert await here.lowest("s") == {"s": (10, "c", len(names))}
        assert len(await here.lowest()) == 4501


def test_the_groups_names_are_those_of_rocketmq() -> None:
    """BroadcastOffsetManager.broadcastGroupId; and each client has a group of its own."""
    assert group_of_lowest(GROUP).group == "g@broadcast"
    assert group_of_client(GROUP, "10.0.0.1@7").group == "g@broadcast@10.0.0.1@7"
