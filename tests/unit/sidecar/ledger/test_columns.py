"""The compact form of commits is validated as strictly as the other form, and has the same effect."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from adapter.errors import AdapterError, DiskFullError, InvalidInputError
from adapter.model.records import EPOCH_MAX, CommitMode, GroupKey, OffsetKey
from adapter.rpc import offsets_pb
from adapter.sidecar.api.commit_requests import parse_commit
from adapter.sidecar.engine.core import Core
from adapter.sidecar.ledger.operations import Columns, Commit, Standing
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import core_over, key, record, watched
from tests.unit.sidecar.engine.standing import NOW_MS, STANDING

G = GroupKey("default", "g")


def parsed(*groups: dict[str, Any]) -> Commit:
    """The commit in a request that arrived at 1,000 ms."""
    made = [offsets_pb.GroupCommits(**{"group": "g", **fields}) for fields in groups]
    return parse_commit(offsets_pb.CommitOffsetsRequest(groups=made), NOW_MS).commit


def one(shard: str, offset: int, **fields: Any) -> offsets_pb.ShardCommit:
    """A commit in the other form."""
    return offsets_pb.ShardCommit(shard=shard, offset=offset, **fields)


def test_names_and_offsets_are_taken_place_by_place() -> None:
    """An absent epoch is unknown."""
    commit = parsed({"shard_names": ["a", "b"], "offsets": [7, 0]})
    assert commit == Commit([], CommitMode.INCREASE_ONLY, {}, [Columns(G, ["a", "b"], [7, 0], (), NOW_MS)])
    assert dict(commit.offered()) == {
        key("a"): record(7, 0, committed_at_ms=NOW_MS),
        key("b"): record(0, 0, committed_at_ms=NOW_MS),
    }
    assert commit.size == 2


def test_epochs_go_with_their_shards() -> None:
    """If a group occurs twice in a request, the parts are joined, and epochs stay with their shards."""
    commit = parsed({"shard_names": ["a"], "offsets": [1]}, {"shard_names": ["b"], "offsets": [2], "epochs": [9]})
    assert commit.columns == [Columns(G, ["a", "b"], [1, 2], [0, 9], NOW_MS)]


@pytest.mark.parametrize("known", [False, True], ids=["first", "again"])
def test_both_forms_may_be_in_a_group(*, known: bool) -> None:
    """Entries with only an offset are treated as columns, with known and unknown names."""
    shards = [one("b", 2, epoch=3), one("c", 3, metadata="m")]
    if known:
        parsed({"shard_names": ["a", "b", "c"], "offsets": [1, 1, 1]})
    commit = parsed({"shard_names": ["a"], "offsets": [1], "shards": shards})
    assert commit.columns == [Columns(G, ["a", "b"], [1, 2], [0, 3], NOW_MS)]
    assert commit.entries == [(key("c"), record(3, 0, committed_at_ms=NOW_MS, metadata="m"))]
    assert (commit.size, len(commit.offered())) == (3, 3)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"shard_names": ["a", "b"], "offsets": [1]}, "groups[0].offsets: are 1, for 2 shard_names"),
    ({"offsets": [1]}, "groups[0].offsets: are 1, for 0 shard_names"),
    ({"epochs": [1]}, "groups[0].epochs: are 1, for 0 shard_names"),
    ({"shard_names": ["a"], "offsets": [1], "epochs": [1, 2]}, "groups[0].epochs: are 2, for 1 shard_names"),
    (
        {"shard_names": ["a", "b"], "offsets": [1, 1], "epochs": [1, EPOCH_MAX + 1]},
        "groups[0].epochs[1]: 9223372036854775808 is over",
    ),
    ({"shard_names": ["a", ""], "offsets": [1, 2]}, "groups[0].shard_names[1] is empty"),
    ({"shard_names": ["a", "x\n"], "offsets": [1, 2]}, "groups[0].shard_names[1] has the control character"),
    ({"shard_names": ["a", "y" * 256], "offsets": [1, 2]}, "groups[0].shard_names[1] is 256 bytes long"),
    ({"shard_names": ["a", "b", "a"], "offsets": [1, 2, 3]}, "groups[0].shard_names[2]: default/g/a is in the request twice"),
    (
        {"shard_names": ["a"], "offsets": [1], "shards": [one("a", 2)]},
        "groups[0].shards[0].shard: default/g/a is in the request twice",
    ),
    ({"shard_names": ["a"], "offsets": [1], "group": "z\n"}, "groups[0].group has the control character"),
    ({"shards": [offsets_pb.ShardCommit(shard="a")]}, "groups[0].shards[0].offset is missing"),
    ({"shards": [one("a", 1, epoch=EPOCH_MAX + 1)]}, "groups[0].shards[0].epoch: 9223372036854775808 is over"),
    ({"shards": [one("a", 1, low_watermark=1)]}, "groups[0].shards[0].high_watermark is missing"),
]


@pytest.mark.parametrize(("fields", "text"), BAD, ids=[text for _, text in BAD])
def test_a_bad_column_is_refused_by_its_place(fields: dict[str, Any], text: str) -> None:
    """The error has its index; also if the valid names were seen before (10)."""
    parsed({"shard_names": ["a", "b"], "offsets": [1, 1]})
    with pytest.raises(InvalidInputError) as caught:
        parsed(fields)
    assert text in str(caught.value)


def test_a_shard_is_found_twice_across_groups_of_one_name() -> None:
    """The repetition is detected in either form (10)."""
    for second in ({"shard_names": ["b", "a"], "offsets": [1, 1]}, {"shards": [one("a", 1)]}):
        for first in ({"shard_names": ["a"], "offsets": [1]}, {"shards": [one("a", 1, metadata="m")]}):
            with pytest.raises(InvalidInputError, match="default/g/a is in the request twice"):
                parsed(first, second)


def columns(offsets: dict[str, int], epochs: Sequence[int] = (), at_ms: int = NOW_MS) -> Columns:
    """Columns of the group `g`."""
    return Columns(G, list(offsets), list(offsets.values()), epochs, at_ms)


async def submit(core: Core, *parts: Columns, mode: CommitMode = CommitMode.INCREASE_ONLY) -> list[Standing]:
    """Commit columns."""
    return await core.ledger.submit(Commit((), mode, columns=parts))


async def test_only_what_did_not_go_forward_is_answered(tmp_path: Path) -> None:
    """Lower offsets are decided one by one; all changes are one batch."""
    store = watched(tmp_path)
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store) as core:
        await submit(core, columns({"a": 1, "b": 5}))
        core.ledger.dirty.take()
        batches = store.batches
        first = record(7, committed_at_ms=NOW_MS)
        stands = record(5, committed_at_ms=NOW_MS)
        assert await submit(core, columns({"a": 7, "b": 4, "c": 7})) == [Standing(key("b"), stands)]
        assert store.batches == batches + 1
        assert [store.find(key(shard)) for shard in "abc"] == [(first, 3), (stands, 2), (first, 4)]
        assert core.ledger.dirty.pending == 2


async def test_several_groups_go_forward_in_one_batch(tmp_path: Path) -> None:
    """The next open finds counters and bookkeeping that match."""
    store = watched(tmp_path)
    other = GroupKey("default", "h")
    async with core_over(tmp_path, FakeMeta(), knows="gh", store=store) as core:
        for offset in range(1, 4):
            await submit(core, columns({"a": offset, "b": offset}), Columns(other, ["a"], [offset], (), NOW_MS))
        assert [store.seq_of(found) for found in (key("a"), key("b"), key("a", "h"))] == [7, 8, 9]
        assert len(core.ledger.dirty) == 3
    again = watched(tmp_path)
    assert (again.loss, again.keys, again.get(key("a", "h"))) == (None, 3, record(3, committed_at_ms=NOW_MS))
    again.close()


async def test_columns_that_cannot_be_written_change_nothing(tmp_path: Path) -> None:
    """Memory and the set of dirty keys stay as they were."""
    store = watched(tmp_path)
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store) as core:
        await submit(core, columns({"a": 1}))
        await core.flusher.flush_once()
        store.refuses = DiskFullError("full by the test")
        with pytest.raises(DiskFullError):
            await submit(core, columns({"a": 2}))
        assert (store.get(key("a")), len(core.ledger.dirty)) == (record(1, committed_at_ms=NOW_MS), 0)


OFFERED = list(product(range(1, 5), (0, 1, 2)))


@pytest.mark.parametrize("mode", list(CommitMode))
@pytest.mark.parametrize("group", ["g", "unknown"])
async def test_a_column_does_what_an_entry_does(tmp_path: Path, mode: CommitMode, group: str) -> None:
    """For any stored record, in either mode: same record, counter, dirty keys, and reply or error."""
    async with (
        core_over(tmp_path / "one", FakeMeta(), knows="g") as one_by_one,
        core_over(tmp_path / "two", FakeMeta(), knows="g") as fast,
    ):
        # No field has seven values: over all that may stand, each pair of values meets.
        some = [*product(STANDING, OFFERED)][::7]
        cases = [(key(str(at), group), *case) for at, case in enumerate(some)]
        for core in (one_by_one, fast):
            core.ledger.store.write({where: standing for where, standing, _ in cases if standing})
        for where, _, (offset, epoch) in cases:
            column = Columns(where.group_key, [where.shard], [offset], [epoch] if epoch else (), NOW_MS)
            wanted = await outcome(one_by_one, Commit(list(column.entries()), mode), where)
            assert await outcome(fast, Commit((), mode, columns=[column]), where) == wanted
        assert list(fast.ledger.store.scan()) == list(one_by_one.ledger.store.scan())
        assert all(fast.ledger.store.find(found.key) == (found.record, found.seq) for found in fast.ledger.store.scan())
        assert fast.ledger.dirty.take() == one_by_one.ledger.dirty.take()


async def outcome(core: Core, commit: Commit, where: OffsetKey) -> object:
    """The reply, and the records after it."""
    try:
        # No answer: it went forward.
        answer = await core.ledger.submit(commit) or [Standing(where, core.ledger.store.get(where))]
    except AdapterError as error:
        return type(error), str(error)
    return answer, core.ledger.store.find(where), where in core.ledger.dirty
