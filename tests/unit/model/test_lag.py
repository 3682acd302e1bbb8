"""The rules of lag agree with plain Python, and hold at their boundaries."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from adapter.errors import InvalidInputError
from adapter.model.lag import EXTRAPOLATED, Judgement, Past, Sums, judge, lag_now, summed
from adapter.model.lag_rows import UNKNOWN, Bools, Commits, Floats, Heads, Ints, LagSettings
from adapter.model.lag_status import Status
from adapter.model.records import LONG_MAX
from tests import lag_reference as reference
from tests.lag_histories import NOW, SETTLED, history, tables
from tests.lag_reference import SECOND, Commit, Head, History, Rules

HISTORIES = 1_000
SETTINGS = LagSettings(window_points=8, minimum_points=3, allowed_lag=2, head_points=12)
RULES = Rules(minimum=3, allowed=2, least=8 * SECOND, recent_heads=8)


def judged(histories: Sequence[History], settings: LagSettings = SETTINGS) -> Judgement:
    """The judgement of histories with one clock."""
    commits, heads = tables(histories, settings)
    return judge(commits, heads, np.arange(len(histories)), histories[0].now, histories[0].settled, settings, past_of(histories))


def past_of(histories: Sequence[History]) -> Past:
    """What is known of histories beside their commits."""
    return Past(np.array([one.watched for one in histories]), np.array([one.warned for one in histories]))


def one(commits: Sequence[Commit], heads: Sequence[Head], low: int | None = None, now: int = NOW, **others: object) -> History:
    """A history whose last commit is the largest."""
    top = (commits[-1].epoch, commits[-1].offset)
    return replace(History(commits, heads, now, now, top, low), **others)  # type: ignore[arg-type]


def steady(count: int = 5, lag: int | None = 10, step: int = 5, end: int = NOW) -> list[Commit]:
    """Commits a second apart, the last one at `end`."""
    return [Commit(end - (count - 1 - at) * SECOND, 100 + at * step, lag) for at in range(count)]


def of(found: Ints | Floats | Bools, row: int = 0) -> float:
    """A value of a row."""
    return float(found[row])


def unknown_as(value: float | Fraction | None, none: float) -> object:
    """What the module gives for a value of the reference."""
    return none if value is None else value


def test_everything_agrees_with_plain_python() -> None:
    """On random histories in which every status occurs: whole numbers exactly, others nearly."""
    random = Random(19)
    histories = [history(random, SETTINGS.window_points) for _ in range(HISTORIES)]
    found = judged(histories)
    for row, past in enumerate(histories):
        names = Status(found.status[row]).name, Status(found.burrow[row]).name
        assert names == (reference.status(past, RULES), reference.burrow(past, RULES)), past
        whole = (found.lag[row], found.lost[row], found.points[row], found.judged[row])
        expected = unknown_as(past.lag, UNKNOWN), past.lost, len(past.window), reference.judged(past, RULES)
        assert whole == expected, past
        for value, exact in (
            (found.lag_seconds[row], reference.lag_seconds(past)),
            (found.commit_rate[row], reference.commit_rate(past, RULES)),
            (found.produce_rate[row], reference.produce_rate(past)),
            (found.drain_seconds[row], reference.drain_seconds(past, RULES)),
            (found.trend[row], reference.trend(past, RULES)),
        ):
            assert math.isnan(value) if exact is None else math.isclose(value, exact, rel_tol=1e-9, abs_tol=1e-6), past
    for statuses, all_of in ((found.status, list(Status)[1:]), (found.burrow, list(Status)[1:-1])):
        assert min(Counter(statuses.tolist())[name] for name in all_of) > HISTORIES / 150
    assert (found.status != found.burrow).sum() > HISTORIES / 100
    assert 0 < found.judged.sum() < HISTORIES


def ints(values: Sequence[int]) -> Ints:
    """An array."""
    return np.array(values, np.int64)


def test_slots_keep_the_largest_commit_in_whatever_order_and_batches_it_comes() -> None:
    """Late, repeated and reordered ones too; the largest record outlives its slot."""
    random = Random(3)
    settings = LagSettings(window_points=4)
    for turn in range(50):
        rows = random.randrange(1, 5)
        past = [
            [
                Commit(random.randrange(9_000_000), random.randrange(4), random.choice((None, 0, 1, 2)), random.randrange(3))
                for _ in range(random.randrange(1, 20))
            ]
            for _ in range(rows)
        ]
        given = [(row, commit) for row, some in enumerate(past) for commit in some] * 2
        random.shuffle(given)
        table = Commits.empty(rows, settings)
        while given:
            batch, given = given[: (size := random.randrange(1, 8))], given[size:]
            times, epochs, offsets, lags = map(ints, zip(*(columns_of(commit) for _, commit in batch), strict=True))
            table.add(ints([row for row, _ in batch]), times, epochs, offsets, lags, settings)
        for row, some in enumerate(past):
            assert rows_of(table, row) == reference.slots(some, SECOND, settings.window_points), turn
            top = max((commit.epoch, commit.offset, commit.time) for commit in some)
            assert (table.top_epochs[row], table.top_offsets[row], table.top_times[row]) == top


def columns_of(commit: Commit) -> tuple[int, int, int, int]:
    """The arguments of `add`."""
    return commit.time, commit.epoch, commit.offset, UNKNOWN if commit.lag is None else commit.lag


def rows_of(table: Commits, row: int) -> list[Commit]:
    """The commits of a row."""
    columns = (matrix[row, : table.counts[row]].tolist() for matrix in (table.times, table.offsets, table.lags, table.epochs))
    return [Commit(time, offset, None if lag < 0 else lag, epoch) for time, offset, lag, epoch in zip(*columns, strict=True)]


def test_slots_of_heads_keep_the_newest_in_whatever_order_and_batches_it_comes() -> None:
    """And the newest low that is known, which is not always that of the newest head."""
    random = Random(4)
    settings = LagSettings(head_points=3, head_distance_ms=2_000)
    for turn in range(50):
        rows = random.randrange(1, 4)
        past = [
            (random.randrange(rows), random.randrange(9_000_000), random.randrange(4), random.choice((-1, 0, 1)))
            for _ in range(20)
        ]
        given = past * 2
        random.shuffle(given)
        table = Heads.empty(rows, settings)
        while given:
            batch, given = given[: (size := random.randrange(1, 8))], given[size:]
            places, times, highs, lows = map(ints, zip(*batch, strict=True))
            table.add(places, times, highs, lows, settings)
        for row in range(rows):
            some = [(time, high, low) for place, time, high, low in past if place == row]
            count = table.counts[row]
            heads = list(map(Head, table.times[row, :count].tolist(), table.highs[row, :count].tolist()))
            assert heads == reference.head_slots([Head(*head[:2]) for head in some], 2 * SECOND, 3), turn
            seen = [(time, low) for time, _, low in some if low >= 0]
            assert (table.low_times[row], table.lows[row]) == max(seen, default=(UNKNOWN, UNKNOWN))


def test_a_cleared_row_is_like_a_new_one_and_the_others_stay() -> None:
    """A row is used again for another key."""
    settings = LagSettings(window_points=3)
    commits, heads = Commits.empty(3, settings), Heads.empty(3, settings)
    rows = np.arange(3)
    commits.add(rows, ints([9, 9, 9]), ints([5, 5, 5]), ints([7, 7, 7]), ints([1, 1, 1]), settings)
    heads.add(rows, ints([9, 9, 9]), ints([8, 8, 8]), ints([2, 2, 2]), settings)
    commits.clear(ints([1]))
    heads.clear(ints([1]))
    found = judge(commits, heads, rows, 9, 9, settings)
    assert found.lag.tolist() == [1, UNKNOWN, 1]
    assert found.points.tolist() == [1, 0, 1]
    commits.add(ints([1]), ints([3]), ints([1]), ints([1]), ints([0]), settings)
    heads.add(ints([1]), ints([3]), ints([5]), ints([-1]), settings)
    assert judge(commits, heads, rows, 9, 9, settings).lag.tolist() == [1, 4, 1]
    assert rows_of(commits, 1) == [Commit(3, 1, 0, 1)]


def test_what_is_gone_is_lost_and_not_lag() -> None:
    """The log begins after the offset: redpanda #30624."""
    past = one(steady(), [Head(NOW, 1_000)], low=900)
    found = judged([past, replace(past, low=None), replace(past, low=2_000)])
    assert found.lag.tolist() == [100, 880, 0]
    assert found.lost.tolist() == [780, 0, 1_880]
    assert lag_now(ints([5, 5, -1, 5]), ints([9, 9, 9, -1]), ints([7, -1, 0, 0])).tolist() == [2, 4, -1, -1]


def test_the_seconds_of_what_is_gone_do_not_count() -> None:
    """They begin where reading can begin."""
    heads = [Head(NOW - (9 - at) * 10 * SECOND, 100 * at) for at in range(10)]
    found = judged([one(steady(), heads, low=low) for low in (None, 500, 850)])
    assert found.lag_seconds.tolist() == pytest.approx([78.0, 40.0, 5.0])


def test_seconds_are_extrapolated_by_a_multiple_of_what_was_seen_at_most() -> None:
    """Half an hour with few messages says nothing of months; at the limit it means at least."""
    heads = [Head(NOW - 1_800 * SECOND, 10**6), Head(NOW, 10**6 + 1)]
    fast = [Head(NOW - 1_800 * SECOND, 10**6), Head(NOW, 2 * 10**6)]
    found = judged([one(steady(), heads), one(steady(), fast)])
    assert of(found.lag_seconds) == 1_800 + EXTRAPOLATED * 1_800
    assert of(found.lag_seconds, 1) == pytest.approx(1_800 * (2 * 10**6 - 120) / 10**6)


def test_seconds_are_never_negative() -> None:
    """A broker's clock that is ahead makes its heads newer than now."""
    heads = [Head(NOW, 10), Head(NOW + 60 * SECOND, 1_000)]
    assert of(judged([one(steady(), heads)]).lag_seconds) == 0.0


def test_nothing_is_known_of_a_row_without_commits_or_a_shard_without_heads() -> None:
    """Unknown is not 0; and a table without a single head is no error."""
    settings = LagSettings()
    empty = Commits.empty(2, settings)
    for heads, shards in ((Heads.empty(0, settings), [-1, -1]), (Heads.empty(1, settings), [0, -1])):
        found = judge(empty, heads, ints(shards), NOW, NOW, settings)
        assert found.lag.tolist() == [UNKNOWN, UNKNOWN]
        assert found.lost.tolist() == [0, 0]
        assert found.shown.tolist() == [Status.UNKNOWN, Status.UNKNOWN]
        assert found.status.tolist() == found.burrow.tolist() == [Status.OK, Status.OK]
        for values in (found.lag_seconds, found.commit_rate, found.produce_rate, found.drain_seconds, found.trend):
            assert np.isnan(values).all()
    assert judge(Commits.empty(0, settings), Heads.empty(0, settings), ints([]), NOW, NOW, settings).lag.tolist() == []


def test_an_unknown_shard_gets_nothing_of_the_first_one() -> None:
    """-1 is no row."""
    commits, heads = tables([one(steady(), [Head(NOW - SECOND, 150), Head(NOW, 200)], low=130)], SETTINGS)
    found = judge(commits, heads, ints([-1]), NOW, NOW, SETTINGS)
    assert (of(found.lag), of(found.lost)) == (UNKNOWN, 0)
    assert math.isnan(of(found.produce_rate))


def test_the_largest_offsets_do_not_overflow() -> None:
    """2**63 - 1 as offset, head, low and lag."""
    for offset, high, low, lag, lost in (
        (LONG_MAX, LONG_MAX, LONG_MAX, 0, 0),
        (0, LONG_MAX, 0, LONG_MAX, 0),
        (0, LONG_MAX, LONG_MAX - 1, 1, LONG_MAX - 1),
        (LONG_MAX, 0, 0, 0, 0),
    ):
        commits = [Commit(NOW - at * SECOND, offset, LONG_MAX, 0) for at in (3, 2, 1)]
        found = judged([one(commits, [Head(NOW - SECOND, 0), Head(NOW, high)], low)])
        assert (found.lag.tolist(), found.lost.tolist()) == ([lag], [lost])
        assert not any(np.isinf(getattr(found, field.name)).any() for field in fields(found))


def test_a_trend_of_large_lags_loses_no_digits() -> None:
    """The difference counts, not the height."""
    commits = [Commit(NOW - (4 - at) * SECOND, 5, LONG_MAX - 100 + 3 * at) for at in range(5)]
    assert of(judged([one(commits, [])]).trend) == pytest.approx(3.0)


def test_with_a_single_time_there_are_no_rates() -> None:
    """No division by zero, no infinity."""
    commits = [Commit(NOW, at, at) for at in range(4)]
    found = judged([one(commits, [Head(NOW, 5), Head(NOW, 9)]), one(commits[:1], [Head(NOW, 5)])])
    assert np.isnan([found.commit_rate, found.produce_rate, found.trend, found.drain_seconds]).all()
    assert math.isnan(of(found.lag_seconds, 1))


def test_the_allowed_lag_is_no_lag() -> None:
    """At the limit it is OK, one beyond it is not."""
    found = judged([one(steady(lag=9, step=0), [Head(NOW, 100 + lag)]) for lag in (2, 3)])
    assert found.status.tolist() == found.burrow.tolist() == [Status.OK, Status.STALL]


def test_only_commits_of_the_current_era_count() -> None:
    """A reset begins one: what was committed before it is neither a rewind nor a rate."""
    era = 1 << 32
    before = [Commit(NOW - (9 - at) * SECOND, 900 + at, 5, era - 1) for at in range(4)]
    after = [Commit(NOW - (3 - at) * SECOND, 10 + at, 50, era) for at in range(4)]
    past = one([*before, *after], [Head(NOW, 100)])
    found = judged([past, replace(past, commits=[one._replace(epoch=7) for one in past.commits], top=(7, 13))])
    assert found.points.tolist() == [4, 8]
    assert found.status.tolist() == [Status.WARN, Status.REWIND]
    assert of(found.commit_rate) == pytest.approx(1.0)


def test_a_tombstone_is_no_commit() -> None:
    """Nor does it end the window."""
    commits = [*steady(2), Commit(NOW + 1, UNKNOWN, None), *steady(2, end=NOW + 9 * SECOND)]
    assert of(judged([one(commits, [Head(NOW, 200)])]).points) == 4


def test_a_stopped_consumer_has_the_rate_0_and_the_trend_of_what_is_written() -> None:
    """Its window shows nothing of what came since."""
    heads = [Head(NOW - (600 - at * 60) * SECOND, 100 + at * 600) for at in range(11)]
    past = one(steady(end=NOW - 600 * SECOND, step=0, lag=3), heads)
    found = judged([past])
    assert of(found.status) == Status.STOP
    assert of(found.commit_rate) == 0.0
    assert of(found.trend) == pytest.approx(10.0, rel=0.01)
    assert math.isnan(of(found.drain_seconds))


def test_many_rows_are_judged_as_few_are() -> None:
    """Beyond the size of a block; and shards that several rows share."""
    random = Random(7)
    some = [history(random, SETTINGS.window_points) for _ in range(50)]
    few = judged(some)
    commits, heads = tables(some, SETTINGS)
    rows = np.resize(np.arange(50), 9_001)
    past = past_of([some[row] for row in rows])
    many = judge(commits.take(rows), heads, rows, NOW, SETTLED, SETTINGS, past)
    for field in fields(few):
        assert np.array_equal(getattr(many, field.name), getattr(few, field.name)[rows], equal_nan=True)


def sums(lags: Sequence[int], statuses: Sequence[Status], groups: Sequence[int], count: int) -> Sums:
    """The sums of shards of which only lag and status matter; unknown lag is not judged."""
    found = judged([one(steady(), [Head(NOW, 200)])] * len(lags))
    commits, _ = tables([one(steady(), [])] * len(lags), SETTINGS)
    found = replace(found, lag=ints(lags), status=ints(statuses), judged=ints(lags) >= 0)
    return summed(found, commits, ints(groups), count)


def test_a_group_has_the_sums_and_the_worst_of_its_shards() -> None:
    """A stalled shard's lag does not move; unknown is left out and counted."""
    ok, warn, stall, stop = Status.OK, Status.WARN, Status.STALL, Status.STOP
    found = sums([3, 7, 9, -1, -1, 4, 9], [ok, warn, stall, ok, ok, stop, stall], [2, 0, 0, 0, 1, 3, 0], 5)
    assert found.shards.tolist() == [4, 1, 1, 1, 0]
    assert found.known.tolist() == [3, 0, 1, 1, 0]
    assert found.lag.tolist() == [25, UNKNOWN, 3, 4, UNKNOWN]
    assert found.moving_lag.tolist() == [7, UNKNOWN, 3, UNKNOWN, UNKNOWN]
    assert found.status.tolist() == [stall, Status.UNKNOWN, ok, stop, Status.UNKNOWN]
    assert found.worst.tolist() == [2, 4, 0, 5, -1]
    assert (found.warn.tolist(), found.stall.tolist(), found.stop.tolist()) == ([1, 0, 0, 0, 0], [2, 0, 0, 0, 0], [0, 0, 0, 1, 0])
    assert found.last_commit.tolist() == [NOW, NOW, NOW, NOW, UNKNOWN]


def test_sums_are_over_what_is_known_and_poisoned_by_nothing() -> None:
    """NaN stays in its shard; it is the sum only if all are unknown."""
    rate, nan = np.array([1.0, np.nan, 2.0, np.nan]), math.nan
    found = judged([one(steady(), [])] * 4)
    floats = {"lag_seconds": rate, "commit_rate": rate, "produce_rate": rate, "trend": rate, "drain_seconds": rate}
    commits, _ = tables([one(steady(), [])] * 4, SETTINGS)
    total = summed(replace(found, **floats), commits, ints([0, 0, 0, 1]), 2)
    for values in (total.commit_rate, total.produce_rate, total.trend):
        assert np.array_equal(values, [3.0, nan], equal_nan=True)
    assert np.array_equal(total.lag_seconds, [2.0, nan], equal_nan=True)
    assert np.isnan(total.drain_seconds).all()
    assert summed(replace(found, drain_seconds=np.arange(4.0)), commits, ints([0, 0, 0, 1]), 2).drain_seconds.tolist() == [
        2.0,
        3.0,
    ]


def test_a_sum_beyond_the_largest_integer_is_that() -> None:
    """It neither wraps nor loses a message before."""
    ok = Status.OK
    found = sums([LONG_MAX - 5, 5, LONG_MAX, LONG_MAX, LONG_MAX, 2**62, 2**62 - 2], [ok] * 7, [0, 0, 1, 1, 1, 2, 2], 3)
    assert found.lag.tolist() == [LONG_MAX, LONG_MAX, LONG_MAX - 1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window_points", 1),
        ("minimum_points", 11),
        ("point_distance_ms", 0),
        ("allowed_lag", -1),
        ("head_points", 1_001),
        ("head_distance_ms", 0),
    ],
)
def test_settings_without_sense_are_refused_by_their_name(field: str, value: int) -> None:
    """Before anything is judged by them."""
    with pytest.raises(InvalidInputError, match=f"{field} = {value} is not between"):
        LagSettings(**{field: value})


def turns(lags: Sequence[int], window: int = 8) -> list[int]:
    """The status after each commit, each judged with the one before it at hand."""
    found: list[int] = []
    for end in range(window, len(lags) + 1):
        commits = [Commit(NOW - (end - at) * SECOND, 100 + at, lags[at]) for at in range(end - window, end)]
        past = one(commits, [Head(NOW, 200_000)], warned=bool(found) and found[-1] == Status.WARN)
        found.append(int(judged([past]).status[0]))
    return found


@pytest.mark.parametrize("base", [2_000, 60_000])
def test_a_lag_that_grows_unevenly_becomes_warn_once(base: int) -> None:
    """Its end is told every five commits, so that the lag falls in between; and however large it is already."""
    lags = [base + 60 * at + 100 * (-at % 5) for at in range(100)]
    found = turns(lags)
    assert sum(before != after for before, after in pairwise(found)) <= 1
    assert set(found[8:]) == {Status.WARN}


def test_a_lag_that_stays_or_falls_is_ok() -> None:
    """In the same steps; and one that grew and falls now is OK again, once."""
    assert set(turns([2_000 + 100 * (-at % 4) for at in range(60)])) == {Status.OK}
    grew = [2_000 + 60 * at for at in range(20)]
    found = turns([*grew, *(grew[-1] - 60 * at for at in range(1, 20))])
    assert (found[0], found[-1]) == (Status.WARN, Status.OK)
    assert sum(before != after for before, after in pairwise(found)) == 1


def test_an_offset_beyond_the_end_of_its_log_is_beyond_and_its_lag_unknown() -> None:
    """The end was told after the commit, or is that of a log that began after it; else it is only an old end."""
    heads = [Head(NOW - 9 * SECOND, 120), Head(NOW, 60)]
    anew = judged([one(steady(end=NOW - 5 * SECOND), heads)])
    assert (of(anew.status), of(anew.lag), of(anew.judged), of(anew.end)) == (Status.BEYOND, UNKNOWN, True, 60)
    told_later = judged([one(steady(end=NOW - 5 * SECOND), [Head(NOW, 60)])])
    assert of(told_later.status) == Status.BEYOND
    for told in (NOW - SECOND, NOW):
        old_end = judged([one(steady(end=NOW - SECOND), [Head(told, 118)])])
        assert (of(old_end.status), of(old_end.lag)) == (Status.OK, 0)


def test_one_offset_is_enough_for_beyond() -> None:
    """After a restart there are no others."""
    found = judged([one(steady(1, lag=None, end=NOW - 60 * SECOND), [Head(NOW, 40)])])
    assert (of(found.status), of(found.points)) == (Status.BEYOND, 1)


def test_a_log_that_was_made_anew_has_nothing_of_the_dead_one() -> None:
    """Neither seconds nor rates are known until two heads of it are; then they are its own."""
    dead = [Head(NOW - (60 - 10 * at) * SECOND, 10**6 + at) for at in range(5)]
    commits = [Commit(NOW - 2 * SECOND, 0, 5, 2**32)]
    first = judged([one(commits, [*dead, Head(NOW - 10 * SECOND, 5)])])
    assert (of(first.lag), math.isnan(of(first.lag_seconds)), math.isnan(of(first.produce_rate))) == (5, True, True)
    second = judged([one(commits, [*dead, Head(NOW - 10 * SECOND, 5), Head(NOW, 105)])])
    assert (of(second.lag), of(second.lag_seconds), of(second.produce_rate)) == (105, 10.5, 10.0)


def test_an_end_that_was_seen_late_counts_for_nothing() -> None:
    """A consumer tells what it saw before it worked for half a minute; the lag of others does not jump."""
    heads = [Head(NOW - (50 - 10 * at) * SECOND, 1_000 + 100 * at) for at in range(5)]
    found = judged([one(steady(), [*heads, Head(NOW, 1_250)])])
    assert (of(found.end), of(found.lag), of(found.produce_rate)) == (1_400, 1_280, 10.0)


def test_offsets_of_another_log_are_not_compared() -> None:
    """By their identities: the offset is below the end, and would have lag; commits to the log before are in no window."""
    heads = [Head(NOW - 2 * SECOND, 500), Head(NOW, 520)]
    before = judged([one(steady(end=NOW - 5 * SECOND), heads, anew=NOW - 4 * SECOND)])
    assert (of(before.status), of(before.lag), of(before.points), of(before.judged)) == (Status.BEYOND, UNKNOWN, 0, True)
    commits = [*steady(end=NOW - 5 * SECOND), *(Commit(NOW - at * SECOND, 10 - at, 510) for at in (2, 1, 0))]
    after = judged([one(commits, heads, anew=NOW - 4 * SECOND)])
    assert (of(after.status), of(after.lag), of(after.points), of(after.commit_rate)) == (Status.WARN, 510, 3, 1.0)


def test_heads_of_a_log_that_was_replaced_are_forgotten() -> None:
    """What is known is when that was told last; also of its start."""
    table = Heads.empty(2, SETTINGS)
    rows = ints([0, 0, 1])
    table.add(rows, ints([SECOND, 20 * SECOND, SECOND]), ints([5, 9, 5]), ints([1, 2, 1]), SETTINGS)
    table.begin_anew(ints([0]))
    assert (table.counts.tolist(), table.lows.tolist()) == ([0, 1], [UNKNOWN, 1])
    table.begin_anew(ints([0]))
    assert table.anew.tolist() == [20 * SECOND, UNKNOWN]
