"""Mutants of the live lag: what it sees, what it keeps, and what it tells."""

from tests.mutants.mutant import Mutant

_LIVE = "unit/sidecar/lag/test_live.py::"
_TABLE = "unit/sidecar/lag/test_table.py::"
_WATCHING = "unit/sidecar/lag/test_watching.py::"
_METRICS = "unit/sidecar/lag/test_metrics.py::"

LAG_LIVE_MUTANTS = (
    Mutant(
        "lag-does-not-see-what-left-the-cache",
        "sidecar/storage/record_cache.py",
        "            if self.evicted and gone:\n",
        "            if self.evicted and not gone:\n",
        "with more groups than the record cache holds, some are shown as stopped while they commit",
        (f"{_LIVE}test_what_left_the_record_cache_before_a_look_is_seen",),
    ),
    Mutant(
        "lag-keeps-removed-keys",
        "sidecar/storage/store.py",
        "                if self._follower:\n",
        "                if not self._follower:\n",
        "groups that expired or were handed over stay in the lag, as stopped",
        (f"{_LIVE}test_a_key_that_is_removed_while_the_store_is_read_stays_away",),
    ),
    Mutant(
        "lag-of-a-look-is-lost",
        "sidecar/storage/record_cache.py",
        "        self._groups.move_to_end(_MARK)\n",
        "        self._groups.move_to_end(_MARK, last=False)\n",
        "each look reads the whole cache",
        ("unit/sidecar/storage/test_record_cache.py::test_a_look_has_the_groups_that_were_used_since_the_last_one",),
    ),
    Mutant(
        "lag-forgets-the-newest",
        "sidecar/lag/table.py",
        "        self._drop(rows[self._seqs[rows] <= limit].tolist())\n",
        "        self._drop(rows[np.argsort(-self._seqs[rows])][: int((self._seqs[rows] <= limit).sum())].tolist())\n",
        "beyond lag.shards, the groups that commit now leave, and idle ones stay",
        (f"{_LIVE}test_the_shards_that_moved_last_are_kept",),
    ),
    Mutant(
        "lag-of-a-tombstone",
        "sidecar/lag/table.py",
        "            if row >= 0 and UNKNOWN < self._seqs[row] <= held[1]:\n                self._drop([row])\n",
        "            if row >= 0 and self._seqs[row] > held[1]:\n                self._drop([row])\n",
        "a deleted group stays in the lag",
        (f"{_LIVE}test_a_deleted_key_leaves_and_comes_back_anew",),
    ),
    Mutant(
        "lag-of-removed-and-committed-again",
        "sidecar/lag/table.py",
        "if (row := self._rows.get(key)) is not None and self._seqs[row] <= seq])",
        "if (row := self._rows.get(key)) is not None and self._seqs[row] > seq])",
        "a group that was handed over stays",
        (f"{_LIVE}test_a_removed_key_leaves_and_one_that_came_back_stays",),
    ),
    Mutant(
        "lag-window-of-the-row-before",
        "sidecar/lag/table.py",
        "        self._commits.clear(np.fromiter(map(self._rows.__getitem__, keys), np.int64, len(keys)))\n",
        "",
        "a new shard has the commits of the one that had its row before",
        (f"{_LIVE}test_a_shard_has_nothing_of_the_one_that_left_before_it",),
    ),
    Mutant(
        "lag-of-fill-counts-as-a-commit-now",
        "sidecar/lag/table.py",
        "                lags = np.full(len(rows), UNKNOWN)\n",
        "                lags = np.zeros(len(rows), np.int64)\n",
        "after a restart a group that is far behind had no lag once, and is OK for ten commits",
        (f"{_TABLE}test_the_lag_at_an_old_commit_is_unknown",),
    ),
    Mutant(
        "lag-of-idle-rows-is-not-judged",
        "sidecar/lag/table.py",
        "            changed[np.arange(self._cursor, self._cursor + part) % count] = True\n",
        "",
        "with many shards, a group that falls silent is never STOP",
        (f"{_TABLE}test_many_idle_rows_are_judged_in_turn",),
    ),
    Mutant(
        "lag-watch-tells-a-removed-group-late",
        "sidecar/lag/watching.py",
        "            if 0 < sent[one.group] < one.version:\n",
        "            if sent[one.group] > one.version:\n",
        "a group that left stays on the page",
        (f"{_WATCHING}test_a_group_that_leaves_is_told",),
    ),
    Mutant(
        "lag-watch-misses-removals",
        "sidecar/lag/watching.py",
        "        if self._removed < view.removals - len(view.removed):\n            self._resync = True\n",
        "",
        "a slow page shows groups for ever that left while it did not read",
        (f"{_WATCHING}test_a_watcher_begins_anew_when_more_groups_left_than_are_remembered",),
    ),
    Mutant(
        "lag-watchers-are-not-bounded",
        "sidecar/lag/watching.py",
        "        if self.callers >= MAX_WATCHERS:\n",
        "        if self.callers > MAX_WATCHERS + 1:\n",
        "watchers that nobody ends fill the memory",
        (f"{_WATCHING}test_watchers_are_bounded_and_end",),
    ),
    Mutant(
        "lag-metrics-are-not-bounded",
        "sidecar/lag/metrics.py",
        "        worst = view.order(lag_pb.WORST)[: self._most]\n",
        "        worst = view.order(lag_pb.WORST)\n",
        "a broker with 100,000 groups has 400,000 series",
        (f"{_METRICS}test_the_worst_groups_and_named_ones_have_their_own_and_the_rest_is_summed",),
    ),
    Mutant(
        "lag-unknown-is-0-in-metrics",
        "sidecar/lag/metrics.py",
        '        if message.HasField("lag"):\n',
        "        if message.group:\n",
        "a group without bounds looks as if it had read all",
        (f"{_METRICS}test_what_is_unknown_has_no_sample",),
    ),
    Mutant(
        "lag-error-of-the-broker-is-lost",
        "sidecar/lag/bounds.py",
        "                    error = str(failure)\n",
        '                    error = ""\n',
        "lag stands still while the broker does not answer, and nothing says why",
        ("unit/sidecar/lag/test_bounds.py::test_an_error_is_kept_until_the_broker_answers_again",),
    ),
)
