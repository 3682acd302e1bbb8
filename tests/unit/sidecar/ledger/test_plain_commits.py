"""The fast path accepts only the requests that it should, and has the same effect as the general path."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from adapter.errors import AdapterError, DiskFullError
from adapter.model.records import CommitMode, OffsetKey
from adapter.rpc import offsets_pb
from adapter.sidecar.api.commit_requests import parse_commit
from adapter.sidecar.engine.core import Core
from adapter.sidecar.ledger.ledger import MAX_TOGETHER
from adapter.sidecar.ledger.operations import Standing
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import core_over, key, record, watched
from tests.unit.sidecar.engine.fast_requests import Request, columns, request
from tests.unit.sidecar.engine.standing import NOW_MS, STANDING


def takes(core: Core, sent: Request) -> bool:
    """Offer a request to the fast path; False if it declines."""
    taken = core.ledger.commit_plain([(sent,)], NOW_MS)
    assert taken.offsets == taken.counts[0]
    return bool(taken.offsets)


def in_columns(shard: str, mode: int, *, offset: int, epoch: int) -> Request:
    """A commit of one shard as columns."""
    return columns({"shard_names": [shard], "offsets": [offset], "epochs": [epoch] if epoch else []}, mode=mode)


@pytest.mark.parametrize("made", [request, in_columns])
@pytest.mark.parametrize("mode", list(CommitMode))
async def test_the_fast_path_does_what_an_entry_does(tmp_path: Path, mode: CommitMode, made: Callable[..., Request]) -> None:
    """For any stored record, in either mode and form: same record, counter, dirty keys, and reply or error."""
    offered = list(product(range(5), (0, 1, 2)))
    async with (
        core_over(tmp_path / "a", FakeMeta(), knows="g") as general,
        core_over(tmp_path / "b", FakeMeta(), knows="g") as fast,
    ):
        # No field has seven values: over all that may stand, each pair of values meets.
        some = [*product(STANDING, offered)][::7]
        cases = [(key(str(at)), *case) for at, case in enumerate(some)]
        for core in (general, fast):
            core.ledger.store.write({where: standing for where, standing, _ in cases if standing})
        taken = 0
        for where, standing, (offset, epoch) in cases:
            sent = made(where.shard, mode.value, offset=offset, epoch=epoch)
            wanted = await outcome(general, sent, where)
            if takes(fast, sent):
                taken += 1
                after = fast.ledger.store.get(where)
                assert standing
                assert after in {standing, standing._replace(offset=offset, committed_at_ms=NOW_MS, metadata="")}
                assert ([Standing(where, after)], fast.ledger.store.find(where), where in fast.ledger.dirty) == wanted
            else:
                assert await outcome(fast, sent, where) == wanted
        assert taken > len(cases) / 10
        assert list(fast.ledger.store.scan()) == list(general.ledger.store.scan())
        assert fast.ledger.dirty.take() == general.ledger.dirty.take()
    again = [watched(tmp_path / name) for name in "ab"]
    assert [store.loss for store in again] == [None, None]
    for store in again:
        store.close()


async def outcome(core: Core, sent: Request, where: OffsetKey) -> object:
    """The reply of the general path, and the records after it."""
    commit = parse_commit(sent, NOW_MS).commit
    try:
        answer = await core.ledger.submit(commit._replace(entries=commit.offered(), columns=()))
    except AdapterError as error:
        return type(error), str(error)
    return answer, core.ledger.store.find(where), where in core.ledger.dirty


PLAIN: dict[str, Any] = {"shard_names": ["s"], "offsets": [9]}
OTHERS: list[Request] = [
    request(),
    request(offset=9, metadata="m"),
    request(offset=9, topic="t"),
    request(offset=9, partition=1),
    request(offset=9, committed_at_ms=5),
    request(offset=9, high_watermark=10),
    request(offset=9, low_watermark=10),
    request(offset=9, epoch=2**63),
    request(offset=9, mode=2),
    request(offset=9, mode=-1),
    request(offset=9, group={"member_id": "m"}),
    request(offset=9, group={"generation": 0}),
    request(offset=9, group={"shard_names": ["t"], "offsets": [1]}),
    request(offset=9, group={"offsets": [1]}),
    request(offset=9, group={"epochs": [1]}),
    request(offset=9, group={"group": "other"}),
    request(offset=9, group={"namespace": "other"}),
    request(offset=9, group={"shards": []}),
    request("t", offset=9),
    request("", offset=9),
    Request(),
    Request(groups=[*request(offset=9).groups, *request("t", offset=9).groups]),
    columns(PLAIN, mode=2),
    columns(PLAIN | {"shards": [offsets_pb.ShardCommit(shard="t", offset=1)]}),
    columns(PLAIN | {"member_id": "m"}),
    columns(PLAIN | {"generation": 0}),
    columns(PLAIN | {"offsets": [9, 9]}),
    columns(PLAIN | {"epochs": [1, 1]}),
    columns(PLAIN | {"epochs": [2**63]}),
    columns(PLAIN, PLAIN),
    columns(PLAIN, PLAIN | {"namespace": "default"}),
    columns(PLAIN, {"group": "", "shard_names": []}),
    columns(PLAIN, {"shard_names": ["t"], "offsets": [9]}),
    columns({"shard_names": ["s", "s"], "offsets": [8, 9]}),
    columns({"shard_names": ["s", "t"], "offsets": [9, 9]}),
    columns({}),
]


async def test_whatever_is_more_or_less_is_left_by_the_fast_path(tmp_path: Path) -> None:
    """A request in any other form is declined, and nothing of it is stored (10)."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        core.ledger.store.write({key(): record(0)})
        for sent in OTHERS:
            assert not takes(core, sent), sent
            assert (core.ledger.store.get(key()), len(core.ledger.dirty)) == (record(0), 0), sent
        assert takes(core, request(offset=9, group={"namespace": "default"}))


async def test_columns_of_any_groups_are_one_write(tmp_path: Path) -> None:
    """A shard may go on in several requests of a turn; a confirmed offset counts, and is not written again."""
    async with core_over(tmp_path, FakeMeta(), knows=("g", "h")) as core:
        known = [key("a"), key("b"), OffsetKey("default", "h", "a")]
        core.ledger.store.write(dict.fromkeys(known, record(5, committed_at_ms=NOW_MS)))
        before = core.ledger.store.seq
        both = {"shard_names": ["a", "b"], "offsets": [6, 5]}
        sent = [
            columns(both, {"group": "h", "shard_names": ["a"], "offsets": [9]}),
            columns({"shard_names": ["a"], "offsets": [7]}),
        ]
        assert core.ledger.commit_plain([sent, [columns({"shard_names": ["a"], "offsets": [4]})]], NOW_MS) == ([2, 0], 4)
        assert [found and found.offset for found in map(core.ledger.store.get, known)] == [7, 5, 9]
        assert (core.ledger.store.seq - before, core.ledger.dirty.keys()) == (3, {known[0], known[2]})
    again = watched(tmp_path)
    assert (again.loss, again.find(known[0])) == (None, (record(7, committed_at_ms=NOW_MS), before + 3))
    again.close()


async def test_a_write_takes_no_columns_without_end(tmp_path: Path) -> None:
    """The event loop is held meanwhile. What is left goes the general way, one request at a time."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        names = [f"{at:04}" for at in range(MAX_TOGETHER)]
        core.ledger.store.write({key(name): record(1) for name in names})
        some = [columns({"shard_names": names[at : at + 256], "offsets": [2] * 256}) for at in range(0, len(names), 256)]
        assert core.ledger.commit_plain([[*some, some[0]], [some[1]]], NOW_MS) == ([len(some), 0], len(names))
        assert not takes(core, columns({"shard_names": names, "offsets": [3] * len(names)}))


async def test_what_is_not_in_memory_is_left_by_the_fast_path(tmp_path: Path) -> None:
    """The key may be in the store. The general path brings it into memory, so the next commit is accepted."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        core.ledger.store.write({key(): record(1)})
        core.ledger.store.states.discard(key())
        assert not takes(core, request(offset=9))
        core.ledger.store.get(key())
        assert takes(core, request(offset=9))


async def test_with_always_every_commit_is_left_by_the_fast_path(tmp_path: Path) -> None:
    """Such a commit waits for a sync (1), and a written-through one waits for the Meta Service."""
    async with core_over(tmp_path, FakeMeta(), knows="g", store=watched(tmp_path, "always")) as core:
        core.ledger.store.write({key(): record(1)})
        assert not takes(core, request(offset=9))
    async with core_over(tmp_path, FakeMeta(), knows="g", policy=[{"groups": "x", "mode": "write_through"}]) as core:
        assert not takes(core, request(offset=9))


async def test_a_fast_commit_that_cannot_be_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records in memory, dirty keys and counters stay as they were (1)."""
    store = watched(tmp_path)
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store) as core:
        store.write({key(): record(1)})

        def full(_: object) -> None:
            raise DiskFullError("full by the test")

        with monkeypatch.context() as patched:
            patched.setattr(store._disk, "write", full)
            with pytest.raises(DiskFullError):
                takes(core, request(offset=9))
        assert (store.find(key()), store.seq, len(core.ledger.dirty)) == ((record(1), 1), 1, 0)
        assert takes(core, request(offset=9))
    again = watched(tmp_path)
    assert (again.loss, again.find(key())) == (None, (record(9, committed_at_ms=NOW_MS), 2))
    again.close()
