"""The rules of lag: judging keys as numpy columns against plain Python, and what it costs to keep their commits and heads.

CPU seconds of this process, so that other load on the machine counts as little as it can. Every key has a shard of its own, and
every row is full: the worst case. The plain Python is the one that the tests hold the rules to; it only finds both statuses.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from rich.progress import Progress

from adapter.model.lag import Judgement, judge, summed
from adapter.model.lag_rows import US_OF_MS, Commits, Heads, Ints, LagSettings
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale
from tests import lag_reference as reference
from tests.lag_reference import Commit, Head, History, Rules

TITLE = "the rules of lag"
LEAST_RATIO = 10.0
KEYS = 100_000
PLAIN_KEYS = 2_000  # keys that plain Python judges in a round
ROUNDS = 5
GROUP = 100  # keys of a group
SETTINGS = LagSettings()
SECOND = 1_000 * US_OF_MS
DISTANCE = SETTINGS.head_distance_ms * US_OF_MS
NOW = 1_764_547_200 * SECOND
RULES = Rules(SETTINGS.minimum_points, SETTINGS.allowed_lag, SETTINGS.window_points * SECOND, SETTINGS.window_points)
JUDGE, PLAIN = "judge: everything", "plain Python: both statuses"


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:  # noqa: ARG001 - no files
    """Measure 100,000 keys: 10 commits of each and 60 heads of its shard."""
    keys = 2_000 if scale.short else KEYS
    rounds = 1 if scale.short else ROUNDS
    task = progress.add_task(f"rules of lag for {keys:,} keys", total=rounds)
    state = _State(keys)
    took: dict[str, list[float]] = {}
    for turn in range(1, rounds + 1):
        for name, (count, work) in state.works(turn).items():
            began = time.process_time()
            work()
            took.setdefault(name, []).append((time.process_time() - began) / count)
        progress.advance(task)
    each = {name: median(values) for name, values in took.items()}
    rows = [(name, seconds * 1e6, seconds * keys) for name, seconds in each.items()]
    result = Result("lag_rules", TITLE, [Table("CPU time", ["work", "us a key", f"s for {keys:,} keys"], rows)])
    ratio = each[PLAIN] / each[JUDGE]
    result.bars.append(Bar("judging a key, plain Python's CPU time / the module's", ratio, LEAST_RATIO, least=True))
    result.notes.append(
        f"{SETTINGS.window_points} commits of each key, {SETTINGS.head_points} heads of each shard, a shard for each key."
    )
    result.notes.append("Plain Python finds both statuses only; the module also lag in seconds, rates and trend.")
    return result


class _State:
    """Full rows of commits and heads, and the work on them."""

    def __init__(self, keys: int) -> None:
        self._rows = np.arange(keys)
        self._zeros = np.zeros(keys, np.int64)
        random = np.random.default_rng(19)
        self._commits, self._heads = Commits.empty(keys, SETTINGS), Heads.empty(keys, SETTINGS)
        offsets = self._zeros.copy()
        for at in range(SETTINGS.window_points):
            offsets += random.integers(0, 100, keys)
            self._commit(NOW - (SETTINGS.window_points - at) * SECOND, offsets, random.integers(0, 500, keys))
        highs = offsets - 60_000
        for at in range(SETTINGS.head_points):
            highs += random.integers(0, 2_050, keys)
            self._head(NOW - (SETTINGS.head_points - at) * DISTANCE, np.maximum(highs, 0))
        self._judged = self._judge()
        self._histories = [self._history(row) for row in range(min(PLAIN_KEYS, keys))]

    def works(self, turn: int) -> dict[str, tuple[int, Callable[[], object]]]:
        """What is measured, and for how many keys."""
        keys = len(self._rows)
        groups = self._rows // GROUP
        offsets = self._commits.top_offsets + turn
        at, far = NOW + turn * SECOND, NOW + turn * DISTANCE
        return {
            JUDGE: (keys, self._judge),
            PLAIN: (len(self._histories), self._plain),
            "sums of groups": (keys, lambda: summed(self._judged, self._commits, groups, int(groups[-1]) + 1)),
            "a commit of each key, in a new slot": (keys, lambda: self._commit(at, offsets, self._zeros)),
            "a commit of each key, in the newest slot": (keys, lambda: self._commit(at + 1, offsets, self._zeros)),
            "a head of each shard, in a new slot": (keys, lambda: self._head(far, offsets)),
            "a head of each shard, in the newest slot": (keys, lambda: self._head(far + 1, offsets)),
        }

    def _commit(self, at: int, offsets: Ints, lags: Ints) -> None:
        self._commits.add(self._rows, self._zeros + at, self._zeros, offsets, lags, SETTINGS)

    def _head(self, at: int, highs: Ints) -> None:
        self._heads.add(self._rows, self._zeros + at, highs, self._zeros, SETTINGS)

    def _judge(self) -> Judgement:
        return judge(self._commits, self._heads, self._rows, NOW, NOW, SETTINGS)

    def _plain(self) -> None:
        for one in self._histories:
            reference.status(one, RULES)
            reference.burrow(one, RULES)

    def _history(self, row: int) -> History:
        commits, heads = self._commits, self._heads
        points = zip(commits.times[row].tolist(), commits.offsets[row].tolist(), commits.lags[row].tolist(), strict=True)
        lines = zip(heads.times[row].tolist(), heads.highs[row].tolist(), strict=True)
        top = 0, int(commits.top_offsets[row])
        return History([Commit(*point) for point in points], [Head(*line) for line in lines], NOW, NOW, top, 0)
