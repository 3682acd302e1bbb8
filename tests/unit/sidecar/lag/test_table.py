"""The table of the live lag against plain Python: which keys it keeps, and that it judges them as the reference does."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adapter.model.bounds import Bounds, ShardKey
from adapter.model.codec import pack_names
from adapter.model.lag_rows import US_OF_MS
from adapter.model.records import Held
from adapter.rpc import lag_pb
from adapter.sidecar.config import LagSection
from adapter.sidecar.lag.feed import News
from adapter.sidecar.lag.table import LagTable
from adapter.sidecar.lag.view import View
from tests.lag_reference import Commit, Head, History, Rules, judged, lag_seconds, status

BEGIN_MS = 1_700_000_000_000
SECTION = LagSection(shards=100, window_points=5, head_points=5, head_distance_ms=1_000)
RULES = Rules(minimum=SECTION.minimum_points, allowed=0, least=5_000_000, recent_heads=5)


@dataclass
class Store:
    """What was written, each with a write counter, and what a table of few shards should keep of it."""

    room: int
    seq: int = 0
    held: dict[bytes, Held] = field(default_factory=dict)

    def write(self, name: int, offset: int, *, live: bool = True) -> Held:
        """Write a key; the group is the first digit."""
        self.seq += 1
        one = ((1, offset, live, BEGIN_MS, "", "", 0), self.seq, _key(name))
        self.held[one[2]] = one
        return one

    def newest(self) -> set[bytes]:
        """The live keys that were written last."""
        last = sorted((one for one in self.held.values() if one[0][2]), key=lambda one: one[1])
        return {one[2] for one in last[-self.room :]}


def _key(name: int) -> bytes:
    return pack_names("default", f"g{name % 3}", f"s{name}")


def _evaluated(table: LagTable, news: News, told: list[tuple[ShardKey, Bounds]] | None = None, now_ms: int = BEGIN_MS) -> View:
    return table.evaluate(news, told or [], now_ms, ask=False).view


def _kept(view: View) -> set[bytes]:
    return {pack_names(*view.groups[group], view.shard(row)) for row, group in enumerate(view.group_of.tolist()) if group >= 0}


WRITES = st.lists(st.tuples(st.integers(0, 11), st.sampled_from(["write", "delete", "remove"])), max_size=12)


@given(st.lists(WRITES, max_size=8), st.integers(1, 12))
def test_the_keys_that_were_written_last_are_kept(rounds: list[list[tuple[int, str]]], room: int) -> None:
    """Whatever is written, deleted and removed between two evaluations; groups and their numbers agree with it."""
    store, table = Store(room), LagTable(SECTION.model_copy(update={"shards": room}), lambda _: None)
    known: set[bytes] = set()
    for writes in rounds:
        news = News()
        for name, what in writes:
            if what == "remove":
                news.removed[_key(name)] = store.seq
                store.held.pop(_key(name), None)
            else:
                news.records.append(store.write(name, 5, live=what == "write"))
        view = _evaluated(table, news)
        # What had no room before comes back only when it moves.
        touched = {one[2] for one in news.records}
        candidates = {key: one for key, one in store.held.items() if key in known | touched and one[0][2]}
        expected = set(sorted(candidates, key=lambda key: candidates[key][1])[-room:])
        known = _kept(view)
        assert known == expected
        groups = {key[: 1 + 7 + 1 + 2] for key in known}
        assert view.groups_kept == len(groups) == int(view.kept.sum())
        assert view.shards_kept == len(known) == int(view.sums.shards.sum())
        names = [view.groups[number].group for number in view.order(lag_pb.NAME).tolist()]
        assert names == sorted(names)


def test_a_row_that_another_key_got_takes_no_commit_of_the_one_before() -> None:
    """Between the look-up and the merge its row became free, and another key's: here by newer keys, for lack of room."""
    store, table = Store(1), LagTable(SECTION.model_copy(update={"shards": 1}), lambda _: None)
    _evaluated(table, News(records=[store.write(1, 5)]))
    older, newer = store.write(1, 900), store.write(2, 7)
    view = _evaluated(table, News(records=[older], filled=[newer]))
    assert [(shard.shard, shard.offset) for shard in view.shards(np.array([0]))] == [("s2", 7)]


STEPS = st.lists(
    st.tuples(st.integers(0, 3_000), st.one_of(st.none(), st.integers(0, 30)), st.one_of(st.none(), st.integers(0, 40))),
    min_size=1,
    max_size=14,
)


@given(STEPS, st.integers(0, 20_000))
def test_a_history_is_judged_as_the_reference_judges_it(steps: list[tuple[int, int | None, int | None]], after_ms: int) -> None:
    """The reference gets the same history whole, the table step by step: time passes, then a commit, or a head, or both."""
    table, now_ms, seq, epoch, last = LagTable(SECTION, lambda _: None), BEGIN_MS, 0, 1, 0
    commits: dict[int, Commit] = {}
    heads: dict[int, Head] = {}
    newest: Head | None = None
    top = (-1, -1)
    # Heads of a shard are kept from its first commit on.
    for passed_ms, offset, high in [(0, 0, None), *steps]:
        now_ms += passed_ms
        news, told = News(), []
        now = now_ms * US_OF_MS
        if high is not None:
            told = [(ShardKey("default", "s"), Bounds(0, high, now_ms))]
            if newest is None or (now, high) > newest:
                newest = Head(now, high)
                heads[now // 1_000_000] = newest
        if offset is not None:
            epoch += offset < last
            last = offset
            seq += 1
            news.records.append(((epoch, offset, True, now_ms, "", "", 0), seq, pack_names("default", "g", "s")))
            top = max(top, (epoch, offset))
            lag = None if newest is None else max(newest.high - offset, 0)
            before = commits.get(now // 1_000_000)
            new = Commit(now, offset, lag, epoch)
            if before is None or (before.epoch, before.offset, before.time) < (epoch, offset, now):
                commits[now // 1_000_000] = new
            elif (before.epoch, before.offset, before.time) == (epoch, offset, now) and lag is not None:
                commits[now // 1_000_000] = before._replace(lag=lag if before.lag is None else min(lag, before.lag))
        view = _evaluated(table, news, told, now_ms)
    now_ms += after_ms
    view = _evaluated(table, News(), [], now_ms)
    now = now_ms * US_OF_MS
    window = [commits[slot] for slot in sorted(commits)][-5:]
    history = History(window, [heads[slot] for slot in sorted(heads)][-5:], now, now, top, 0 if newest else None)
    shard = next(iter(view.shards(view.rows_of(0))))
    expected = lag_pb.LagStatus.Value(status(history, RULES)) if judged(history, RULES) else lag_pb.LAG_STATUS_UNSPECIFIED
    assert shard.status == expected
    assert (shard.lag if shard.HasField("lag") else None) == history.lag
    seconds = lag_seconds(history)
    assert shard.HasField("lag_seconds") == (seconds is not None)
    assert seconds is None or abs(shard.lag_seconds - float(seconds)) < 1e-3
    assert shard.points == len(window)


def test_many_idle_rows_are_judged_in_turn() -> None:
    """A silent shard among more than are judged at once becomes STOP within ten evaluations, though nothing of it moves."""
    count, keys = 12_000, []
    table = LagTable(SECTION.model_copy(update={"shards": count}), lambda _: None)
    now_ms, seq = BEGIN_MS, 0
    keys = [pack_names("default", "g", f"s{at}") for at in range(count)]
    for offset in range(3):
        now_ms += 1_000
        records: list[Held] = [((1, offset, True, now_ms, "", "", 0), seq + at + 1, key) for at, key in enumerate(keys)]
        seq += count
        told = [(ShardKey("default", f"s{at}"), Bounds(0, 10, now_ms)) for at in range(count)]
        _evaluated(table, News(records=records), told, now_ms)
    now_ms += 60_000
    stopped = [int(_evaluated(table, News(), [], now_ms).sums.stop[0]) for _ in range(10)]
    assert 0 < stopped[0] < count
    assert stopped[-1] == count


def test_the_lag_at_an_old_commit_is_unknown() -> None:
    """What is read from the store was committed when the log ended elsewhere: only commits that are seen have a lag of then."""
    table, store = LagTable(SECTION, lambda _: Bounds(0, 100, BEGIN_MS)), Store(100)
    _evaluated(table, News(filled=[store.write(1, 10)]))
    for second in (2, 3, 4):
        one = ((1, 10, True, BEGIN_MS + second * 1_000, "", "", 0), store.seq + second, _key(1))
        view = _evaluated(table, News(records=[one]), now_ms=BEGIN_MS + second * 1_000)
    assert view.sums.stall.tolist() == [1]


def test_the_shards_that_were_asked_longest_ago_are_asked_first() -> None:
    """Each once in the interval."""
    table = LagTable(SECTION, lambda _: None)
    store = Store(100)
    news = News(records=[store.write(name, 1) for name in range(4)])
    first = table.evaluate(news, [], BEGIN_MS, ask=True).ask
    assert sorted(shard.shard for shard in first) == ["s0", "s1", "s2", "s3"]
    assert table.evaluate(News(), [], BEGIN_MS + 1_000, ask=True).ask == []
    again = table.evaluate(News(records=[store.write(9, 1)]), [], BEGIN_MS + 2_000, ask=True).ask
    assert [shard.shard for shard in again] == ["s9"]
    assert len(table.evaluate(News(), [], BEGIN_MS + 4_000, ask=True).ask) == 4
