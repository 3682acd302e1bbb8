"""Random histories of shards, in which every rule of lag occurs, and as the tables that adapter/model/lag.py judges."""

from collections.abc import Sequence
from random import Random

import numpy as np

from adapter.model.lag_rows import UNKNOWN, Commits, Heads, LagSettings
from adapter.model.records import LONG_MAX
from tests.lag_reference import SECOND, Commit, Head, History

MS = 1_000
NOW = 1_764_547_200_700 * MS  # within a second: Burrow's own clock has whole ones
SETTLED = NOW - 3 * SECOND
_ERA = 1 << 32


def history(random: Random, window: int = 8) -> History:
    """The history of a steady, slow, stalled, rewinding or caught-up consumer; the head may stop; a reset may lie between."""
    points = random.choice((1, 2, 3, 3, 5, window, window, window))
    silence = random.choice((0, 1_000, 4_000, 9_000, 20_000, 90_000, 700_000))
    last = NOW // MS - silence - random.randrange(1_500)
    gap = random.choice((1_000, 2_000, 30_000))
    times = sorted({last - at * gap - random.randrange(gap) for at in range(points)})
    habit = random.choice(("steady", "slow", "stalled", "rewinding", "caught up", "any"))
    base = random.choice((0, 0, 0, 0, 10**9, LONG_MAX - 400))
    offset, behind, epoch = random.randrange(50), random.randrange(12), random.choice((0, 7, _ERA + 3))
    commits: list[Commit] = []
    for time in times:
        offset += {"stalled": 0, "rewinding": random.randrange(-6, 9), "any": random.randrange(-2, 4)}.get(
            habit, random.randrange(1, 9)
        )
        offset = max(0, offset)
        behind = {"slow": behind + random.randrange(-1, 4), "caught up": random.randrange(4)}.get(habit, random.randrange(1, 9))
        behind = max(0, behind)
        # A rewind is the next epoch, a reset or delete the next era.
        epoch += random.random() < 0.05
        epoch = (epoch // _ERA + 1) * _ERA if random.random() < 0.03 else epoch
        gone = random.random() < 0.02
        commits.append(Commit(time * MS, UNKNOWN if gone else base + offset, behind if random.random() < 0.9 else None, epoch))
    top = max((one.epoch, one.offset) for one in commits)
    top = (top[0] if random.random() < 0.98 else top[0] + _ERA, max(top[1], 0))
    heads = _heads(random, times, base + offset)
    low = random.choice((None, 0, max(0, base + offset - 20), base + offset + random.randrange(-3, 9)))
    watched = NOW - random.choice((1, 3_000, 30_000, 900_000)) * MS if random.random() < 0.5 else 0
    warned = random.random() < 0.3
    anew = random.choice(times) * MS if random.random() < 0.05 else -1
    heads = [head for head in heads if head.time > anew]
    return History(commits, heads, NOW, SETTLED, top, None if low is None else max(0, low), watched, warned, anew)


def tables(histories: Sequence[History], settings: LagSettings) -> tuple[Commits, Heads]:
    """The histories as rows; what is beyond a row's count is arbitrary."""
    commits, heads = Commits.empty(len(histories), settings), Heads.empty(len(histories), settings)
    for table in (commits.times, commits.epochs, commits.offsets, commits.lags, heads.times, heads.highs):
        table[:] = np.resize(np.array([5, LONG_MAX, 0, 1]), table.shape)
    for row, one in enumerate(histories):
        count = commits.counts[row] = len(one.commits)
        commits.times[row, :count] = [commit.time for commit in one.commits]
        commits.epochs[row, :count] = [commit.epoch for commit in one.commits]
        commits.offsets[row, :count] = [commit.offset for commit in one.commits]
        commits.lags[row, :count] = [UNKNOWN if commit.lag is None else commit.lag for commit in one.commits]
        commits.top_epochs[row], commits.top_offsets[row] = one.top
        commits.top_times[row] = max((commit.time for commit in one.commits), default=UNKNOWN)
        count = heads.counts[row] = len(one.heads)
        heads.times[row, :count] = [head.time for head in one.heads]
        heads.highs[row, :count] = [head.high for head in one.heads]
        heads.lows[row] = UNKNOWN if one.low is None else one.low
        heads.anew[row] = one.anew
    return commits, heads


def _heads(random: Random, times: list[int], offset: int) -> list[Head]:
    if random.random() < 0.05:
        return []
    count = random.randrange(1, 13)
    now = NOW // MS
    begin = random.choice((times[0] - 100_000, times[0], times[-1] - 1, times[-1] + 1))
    spread = sorted(random.sample(range(min(begin, now - 100), now), count))
    head = max(0, offset - random.randrange(12))
    heads = []
    anew = random.choice(spread) if random.random() < 0.2 else None
    for time in spread:
        if time == anew:
            head = head // random.choice((1, 2, 50))
        head = min(max(0, head + random.choice((0, 0, 0, 1, 3, 9, -1))), LONG_MAX)
        heads.append(Head(time * MS, head))
    return heads
