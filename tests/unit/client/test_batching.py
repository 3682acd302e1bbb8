"""Commits that share requests: which commits are merged, and the result of each caller."""

import asyncio
import re
from typing import Any

import pytest

from adapter.client import batching
from adapter.client.progress import Progress
from adapter.errors import InvalidInputError
from adapter.model.records import CommitMode, Member
from adapter.rpc import offsets_pb
from tests.unit.links import Client, FakeAdapter, codes, settled, virtual


@virtual
async def test_a_lone_commit_is_sent_at_once() -> None:
    """Within two iterations of the event loop, without a delay to collect others."""
    client = Client(FakeAdapter())
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await client.commit({"s": 1}) == []
    assert loop.time() == began
    assert client.sent() == [{"g": {"s": 1}}]
    await client.ended()


@virtual
async def test_what_is_committed_in_one_turn_of_the_loop_shares_a_request() -> None:
    """Also the commits of callers that one reply resumes."""
    client = Client(FakeAdapter())
    await asyncio.gather(*(client.commit({str(at): at}) for at in range(20)))
    assert [len(request["g"]) for request in client.sent()] == [20]


@virtual
async def test_what_arrives_while_requests_are_under_way_shares_the_next_one() -> None:
    """It has the newest value of each shard, of all groups."""
    client = Client(FakeAdapter())
    await client.held()
    tasks = [client.start({"a": at}) for at in (1, 3, 2)] + [client.start({"a": 1, "b": 2}, "h"), client.start({"b": 9})]
    await settled()
    assert client.sent() == []
    await client.released(*tasks)
    assert client.sent() == [{"g": {"a": 3, "b": 9}, "h": {"a": 1, "b": 2}}]
    assert client.adapter.most == batching.MAX_SHARED
    await client.ended()


@virtual
async def test_the_columns_are_packed_and_have_no_epochs_where_none_is_known() -> None:
    """In the compact form of a request; if an epoch is known, there is one for each shard."""
    client = Client(FakeAdapter())
    await client.commit({"a": 1, "b": 2})
    assert [list(group.epochs) for group in client.adapter.requests[0].groups] == [[]]
    await client.held()
    await client.released(client.start({"a": 3}, epoch=1), client.start({"b": 4}))
    assert client.sent() == [{"g": {"a": 3, "b": 4}}]
    assert [list(group.epochs) for group in client.adapter.requests[0].groups] == [[1, 0]]
    assert not any(group.shards for request in client.adapter.requests for group in request.groups)


@virtual
async def test_each_caller_learns_what_supersedes_its_own_value() -> None:
    """From the adapter's row, or else from the larger offset of another caller in the request."""
    client = Client(FakeAdapter())
    await client.commit({"low": 7})
    await client.held()
    tasks = [client.start({"low": 5, "new": 1}), client.start({"low": 6, "new": 2, "own": 1}), client.start({"new": 2})]
    assert await client.released(*tasks) == [[("low", 1, 7), ("new", 0, 2)], [("low", 1, 7)], []]
    assert client.sent() == [{"g": {"low": 6, "new": 2, "own": 1}}]


@virtual
async def test_the_same_shard_of_another_group_or_namespace_is_another_one() -> None:
    """Each group gets its own superseded rows."""
    client = Client(FakeAdapter())
    await client.commit({"s": 7})
    await client.held()
    other = asyncio.ensure_future(client.batcher.commit(("other", "g"), {"s": 1}, CommitMode.INCREASE_ONLY, {}, None))
    assert await client.released(client.start({"s": 1}), client.start({"s": 1}, "h")) == [[("s", 1, 7)], []]
    assert await other is None
    assert len(client.adapter.requests) == 1


@virtual
async def test_a_caller_may_go_on_with_its_own_mapping() -> None:
    """The call copies the mapping, so later changes have no effect."""
    client = Client(FakeAdapter())
    await client.held()
    offsets = {"s": 1}
    tasks = [client.start(offsets), client.start({"s": 5})]
    await settled()
    offsets.update(s=9, t=9)
    assert await client.released(*tasks) == [[("s", 0, 5)], []]
    assert client.sent() == [{"g": {"s": 5}}]


@virtual
async def test_members_of_one_group_never_share_a_request() -> None:
    """The adapter refuses such a request. Commits of one member are merged, and other groups share it."""
    client = Client(FakeAdapter())
    await client.held()
    members = [Member(1, "a"), Member(1, "b"), Member(1, "a"), None]
    tasks = [client.start({str(at): at}, member=member) for at, member in enumerate(members)] + [client.start({"s": 1}, "h")]
    assert await client.released(*tasks) == [[]] * 5
    assert client.sent() == [{"g": {"0": 0, "2": 2}, "h": {"s": 1}}, {"g": {"1": 1}}, {"g": {"3": 3}}]
    assert [request.groups[0].member_id for request in client.adapter.requests] == ["a", "b", ""]
    await client.ended()


@virtual
async def test_values_of_different_epochs_are_not_compared_here() -> None:
    """Which one is newer depends on the stored epoch, which a commit without an epoch takes."""
    client = Client(FakeAdapter())
    await client.commit({"s": 50})
    await client.commit({"s": 5}, overwrite=True)
    await client.held()
    tasks = [client.start({"s": 100}), client.start({"s": 60}, epoch=2), client.start({"s": 70}, epoch=2)]
    tasks += [client.start({"s": 90}, epoch=1), client.start({"t": 1})]
    # 70 and 90 come behind 100: both are superseded, as is 60.
    assert await client.released(*tasks) == [[], [("s", 2, 100)], [("s", 2, 100)], [("s", 2, 100)], []]
    assert [request["g"]["s"] for request in client.sent()] == [100, 70, 90]
    assert [list(request.groups[0].epochs)[:1] for request in client.adapter.requests] == [[], [2], [1]]


@virtual
async def test_an_overwrite_has_its_request_and_its_place() -> None:
    """Commits of its group keep their order before and after it; other groups may overtake it."""
    client = Client(FakeAdapter())
    await client.held()
    tasks = [client.start({"s": 9}), client.start({"s": 3}, overwrite=True), client.start({"s": 2}, overwrite=True)]
    tasks += [client.start({"s": 4}), client.start({"s": 5}), client.start({"s": 1}, "h")]
    assert await client.released(*tasks) == [[], [], [], [("s", 0, 5)], [], []]
    assert client.sent() == [{"g": {"s": 9}, "h": {"s": 1}}, {"g": {"s": 3}}, {"g": {"s": 2}}, {"g": {"s": 5}}]
    assert client.adapter.records[("default", "g", "s")][:2] == (3, 5)  # type: ignore[index]
    await client.ended()


@virtual
async def test_a_bad_commit_is_refused_in_its_callers_turn() -> None:
    """The call itself raises; an invalid commit is neither merged nor sent (10)."""
    client = Client(FakeAdapter())
    await client.held()
    good = client.start({"s": 1})
    await settled()
    for bad, text in (
        ({}, "offsets is empty; at least one offset is needed"),
        ({"": 1}, "shard is empty"),
        ({"a": 1, "b\n": 1}, "shard has the control character U[+]000A at position 1"),
        ({"x" * 256: 1}, "shard is 256 bytes long; at most 255 are allowed"),
        ({"a": -1}, "offset of a: -1 is not a number from 0 to 18446744073709551615"),
        ({"a": 2**64}, "offset of a: 18446744073709551616 is not a number"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            await client.commit(bad)
    with pytest.raises(InvalidInputError, match="group is empty"):
        await client.commit({"s": 1}, "")
    with pytest.raises(InvalidInputError, match="epoch of s: -1 is not"):
        await client.commit({"s": 1}, epoch=-1)
    with pytest.raises(InvalidInputError, match="member_id has the control character"):
        await client.commit({"s": 1}, member=Member(1, "\0"))
    with pytest.raises(InvalidInputError, match="generation: -1 is not"):
        await client.commit({"s": 1}, member=Member(-1))
    with pytest.raises(InvalidInputError, match=r"shard has half of a surrogate pair, U[+]D800, at position 1"):
        await client.commit({"a\ud800": 1})
    assert codes(await client.released(good)) == [[]]
    assert client.sent() == [{"g": {"s": 1}}]
    await client.ended()


@virtual
async def test_what_counts_as_a_whole_number_is_one() -> None:
    """Any type with __index__ is accepted, such as those of a numeric library."""

    class Number:
        def __index__(self) -> int:
            return 7

    client = Client(FakeAdapter())
    assert await client.commit({"s": Number(), "t": True}) == []  # type: ignore[dict-item]
    assert client.sent() == [{"g": {"s": 7, "t": 1}}]


FULL = Progress(4, high=50, low=1, log_id="a", metadata="m", topic="t", partition=3)


@virtual
async def test_an_offset_goes_with_all_that_it_came_with() -> None:
    """Beside plain ones in the same request, with its epoch."""
    client = Client(FakeAdapter())
    await client.held()
    await client.released(client.start({"s": FULL, "plain": 7}, epoch=1))
    group = client.adapter.requests[0].groups[0]
    expected = offsets_pb.ShardCommit(shard="s", offset=4, epoch=1, metadata="m", topic="t", partition=3)
    expected.low_watermark, expected.high_watermark, expected.log_id = 1, 50, "a"
    assert (list(group.shards), dict(zip(group.shard_names, group.offsets, strict=True))) == ([expected], {"plain": 7})
    assert list(group.epochs) == [1]


@virtual
async def test_of_merged_commits_the_one_with_the_larger_offset_is_sent_as_a_whole() -> None:
    """Of equal ones the last; a plain larger offset has no metadata of another."""
    client = Client(FakeAdapter())
    await client.held()
    tasks = [
        client.start({"s": one}) for one in (Progress(5, metadata="a"), Progress(5, metadata="b"), Progress(4, metadata="c"))
    ]
    tasks += [client.start({"plain": one}) for one in (Progress(5, metadata="a"), 6)]
    await client.released(*tasks)
    group = client.adapter.requests[0].groups[0]
    assert [(row.offset, row.metadata) for row in group.shards] == [(5, "b")]
    assert dict(zip(group.shard_names, group.offsets, strict=True)) == {"plain": 6}
    assert len(client.adapter.requests) == 1


@virtual
async def test_offsets_of_two_logs_are_not_merged() -> None:
    """The larger one may be that of the log that is gone."""
    client = Client(FakeAdapter())
    await client.held()
    await client.released(*(client.start({"s": Progress(at, high=900, log_id=log)}) for at, log in ((900, "a"), (5, "b"))))
    found = [[(row.offset, row.log_id) for row in request.groups[0].shards] for request in client.adapter.requests]
    assert found == [[(900, "a")], [(5, "b")]]


@virtual
async def test_long_texts_count_as_several_offsets() -> None:
    """So no request is larger than gRPC's limit of 4 MiB, however many callers there are."""
    client = Client(FakeAdapter())
    await client.held()
    long = Progress(1, high=2, metadata="m" * 4_096, topic="t" * 255, log_id="l" * 255)
    await client.released(*(client.start({f"{at:0255}": long}) for at in range(4_000)))
    sizes = [request.ByteSize() for request in client.adapter.requests]
    assert len(sizes) > 1
    assert max(sizes) < 4 * 2**20
    assert sum(len(request.groups[0].shards) for request in client.adapter.requests) == 4_000


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "offset": ({"offset": -1}, "offset: -1 is not a number from 0 to"),
    "no_number": ({"offset": 1.5}, "offset: 1.5 is not a number"),
    "partition": ({"partition": 2**32}, "partition: 4294967296 is not"),
    "high": ({"high": 2**64}, "high: 18446744073709551616 is not"),
    "low": ({"low": 3, "high": 2}, "low: 3 is over high, 2"),
    "no_high": ({"log_id": "a"}, "high is missing: low and log_id alone say nothing"),
    "metadata": ({"metadata": "x" * 4_097}, "metadata is 4097 bytes long"),
    "log_id": ({"high": 2, "log_id": "\n"}, "log_id has the control character"),
    "topic": ({"topic": "x" * 256}, "topic is 256 bytes long"),
}


@pytest.mark.parametrize("name", WRONG)
def test_progress_that_an_adapter_would_refuse_is_refused_at_once(name: str) -> None:
    """The text names the field."""
    values, problem = WRONG[name]
    with pytest.raises(InvalidInputError, match=f"^{re.escape(problem)}"):
        Progress(**{"offset": 1, **values})
