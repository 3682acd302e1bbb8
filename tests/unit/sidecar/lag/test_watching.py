"""Watchers of the live lag: the first replies have all, later ones what changed, and a slow one costs no memory."""

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from adapter.errors import NotReadyError, OverloadedError
from adapter.model.records import next_era
from adapter.rpc import lag_pb
from adapter.sidecar.lag import table, watching
from adapter.sidecar.lag.filters import Filter
from adapter.sidecar.lag.watching import changes
from adapter.sidecar.ledger.operations import Reconcile
from tests.unit.helpers import PATIENCE_S, key, tombstone
from tests.unit.sidecar.lag.lagging import Lagging, lagging

Replies = AsyncGenerator[lag_pb.WatchGroupLagReply, None]


async def _next(replies: Replies) -> lag_pb.WatchGroupLagReply:
    with anyio.fail_after(PATIENCE_S):
        return await anext(replies)


def _groups(reply: lag_pb.WatchGroupLagReply) -> list[str]:
    return [one.group for one in reply.groups]


async def _delete(lag: Lagging, *groups: str) -> None:
    await lag.core.ledger.submit(Reconcile([(key("s", group), tombstone(next_era(1))) for group in groups]))
    await lag.evaluate()


async def test_the_first_reply_has_all_and_later_ones_what_changed(tmp_path: Path) -> None:
    """In key order; a group that stands still is not told again."""
    async with lagging(tmp_path) as lag:
        await lag.commit({"s": 1}, "b")
        await lag.commit({"s": 1}, "a")
        await lag.evaluate()
        replies = changes(lag.live.watches, Filter())
        first = await _next(replies)
        assert (first.resync, _groups(first), first.evaluated_at_ms) == (True, ["a", "b"], lag.now_ms)
        lag.pass_s()
        await lag.commit({"s": 2}, "b")
        await lag.evaluate()
        later = await _next(replies)
        assert (later.resync, _groups(later), len(later.removed)) == (False, ["b"], 0)


async def test_a_group_that_leaves_is_told(tmp_path: Path) -> None:
    """Also if another one has its number in the same evaluation."""
    async with lagging(tmp_path) as lag:
        await lag.commit({"s": 1}, "a")
        await lag.commit({"s": 1}, "b")
        await lag.evaluate()
        replies = changes(lag.live.watches, Filter())
        await _next(replies)
        await _delete(lag, "a")
        left = await _next(replies)
        assert ([one.group for one in left.removed], _groups(left)) == (["a"], [])
        await lag.commit({"s": 1}, "c")
        await _delete(lag, "b")
        both = await _next(replies)
        assert ([one.group for one in both.removed], _groups(both)) == (["b"], ["c"])


async def test_a_group_that_does_not_match_any_more_is_told_as_removed(tmp_path: Path) -> None:
    """And comes back when it matches again."""
    async with lagging(tmp_path) as lag:
        for at in range(4):
            await lag.step(10, 100 + at)
        replies = changes(lag.live.watches, Filter(at_least=lag_pb.STALL))
        assert _groups(await _next(replies)) == ["g"]
        await lag.step(200, 200)
        gone = await _next(replies)
        assert ([one.group for one in gone.removed], _groups(gone)) == (["g"], [])


async def test_a_filter_chooses_by_pattern_and_namespace(tmp_path: Path) -> None:
    """A shell pattern of the group's name."""
    async with lagging(tmp_path) as lag:
        for group in ("payments-1", "payments-2", "orders"):
            await lag.commit({"s": 1}, group)
        await lag.evaluate()
        for wanted, expected in (
            (Filter(pattern="payments-*"), ["payments-1", "payments-2"]),
            (Filter(namespace="default", pattern="*s"), ["orders"]),
            (Filter(namespace="other"), []),
        ):
            replies = changes(lag.live.watches, wanted)
            assert _groups(await _next(replies)) == expected
            await replies.aclose()
        # New groups are compared, too.
        await lag.commit({"s": 1}, "payments-3")
        await lag.evaluate()
        assert len(_groups(await _next(changes(lag.live.watches, Filter(pattern="payments-*"))))) == 3


async def test_a_watcher_that_reads_slowly_gets_the_newest_values_only(tmp_path: Path) -> None:
    """Of ten evaluations in between, one reply."""
    async with lagging(tmp_path) as lag:
        await lag.step(1, 100)
        replies = changes(lag.live.watches, Filter())
        await _next(replies)
        for offset in range(2, 12):
            await lag.step(offset, 100)
        reply = await _next(replies)
        assert [one.lag for one in reply.groups] == [89]
        with anyio.move_on_after(0.05) as waiting:
            await anext(replies)
        assert waiting.cancelled_caught


async def test_a_watcher_begins_anew_when_more_groups_left_than_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told to forget all."""
    monkeypatch.setattr(table, "MAX_REMOVED", 1)
    async with lagging(tmp_path) as lag:
        for group in "abc":
            await lag.commit({"s": 1}, group)
        await lag.evaluate()
        replies = changes(lag.live.watches, Filter())
        await _next(replies)
        await _delete(lag, "a", "b")
        reply = await _next(replies)
        assert (reply.resync, _groups(reply), len(reply.removed)) == (True, ["c"], 0)


async def test_many_groups_come_in_several_replies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of bounded size; only the first says `resync`."""
    monkeypatch.setattr(watching, "MAX_GROUPS", 2)
    async with lagging(tmp_path) as lag:
        for at in range(5):
            await lag.commit({"s": 1}, f"g{at}")
        await lag.evaluate()
        replies = changes(lag.live.watches, Filter())
        found = [await _next(replies) for _ in range(3)]
        assert [one.resync for one in found] == [True, False, False]
        assert [_groups(one) for one in found] == [["g0", "g1"], ["g2", "g3"], ["g4"]]


async def test_watchers_are_bounded_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is refused while there are too many; at the end all are told to begin another one."""
    monkeypatch.setattr(watching, "MAX_WATCHERS", 1)
    async with lagging(tmp_path) as lag:
        await lag.step(1, 10)
        replies = changes(lag.live.watches, Filter())
        await _next(replies)
        with pytest.raises(OverloadedError, match="1 watchers"):
            await _next(changes(lag.live.watches, Filter()))
        lag.live.end()
        with pytest.raises(NotReadyError, match="begin another"):
            await _next(replies)
        assert lag.live.watches.callers == 0
