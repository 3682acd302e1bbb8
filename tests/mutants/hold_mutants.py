"""Bugs of holds (a reset stops commits without an epoch until it is taken up) and of watchers."""

from tests.mutants.mutant import Mutant

HOLDS = "unit/sidecar/engine/test_holds.py::"
WATCH = "integration/test_watch.py::"

HOLD_MUTANTS = (
    Mutant(
        "reset-is-not-held",
        "model/records.py",
        "    if holds and not offered.epoch and epoch > standing.epoch:\n        return standing\n",
        "",
        "a consumer that was running while its group was reset commits over the reset",
        (f"{HOLDS}test_a_commit_without_an_epoch_does_not_undo_what_an_operator_did",),
    ),
    Mutant(
        "fast-path-takes-what-is-held",
        "sidecar/engine/fast_path.py",
        " or not (epoch & LOWER_HALF or not epoch):",
        ":",
        "the same, for the commits that consumers send after each message",
        (f"{HOLDS}test_a_commit_without_an_epoch_does_not_undo_what_an_operator_did",),
    ),
    Mutant(
        "columns-take-what-is-held",
        "sidecar/engine/committer.py",
        " == epoch) and (epoch & LOWER_HALF or not epoch):",
        " == epoch):",
        "the same, for the commits of the Python client",
        (f"{HOLDS}test_a_commit_without_an_epoch_does_not_undo_what_an_operator_did",),
    ),
    Mutant(
        "unknown-epoch-passes-what-is-held",
        "model/records.py",
        "    until_ms = standing.committed_at_ms + HOLD_MS * is_held(standing.epoch)\n",
        "    until_ms = standing.committed_at_ms\n",
        "the same, of an adapter that met the key while its Meta Service was away",
        (f"{HOLDS}test_a_commit_of_unknown_epoch_does_not_pass_a_reset_that_is_held",),
    ),
    Mutant(
        "read-of-the-store-takes-nothing-up",
        "sidecar/engine/reads.py",
        "        if mode is not ReadMode.STORE:\n            return\n        for rows",
        "        if mode is not None:\n            return\n        for rows",
        "a consumer that has read where to begin is held off for minutes all the same",
        (f"{HOLDS}test_a_read_of_the_store_ends_the_hold",),
    ),
    Mutant(
        "any-read-takes-up",
        "sidecar/engine/reads.py",
        "        if mode is not ReadMode.STORE:\n            return\n        for rows",
        "        for rows",
        "a look by a monitor ends the hold, and a running consumer undoes the reset",
        (f"{HOLDS}test_other_reads_leave_the_hold",),
    ),
    Mutant(
        "taken-up-only-here",
        "sidecar/engine/committer.py",
        "                self._stage(key, before._replace(epoch=taken_up(before.epoch)), clean=False)",
        "                self._stage(key, before._replace(epoch=taken_up(before.epoch)), clean=True)",
        "what a reader has taken up is held again at the next broker, and is lost with this disk",
        (f"{HOLDS}test_a_read_of_the_store_ends_the_hold",),
    ),
    Mutant(
        "hold-never-ends",
        "sidecar/engine/commit_rules.py",
        "        return until_ms if self._now_ms() <= until_ms else 0\n",
        "        return until_ms\n",
        "a consumer that knows no epochs and never reads from the store can never commit again after a reset",
        (f"{HOLDS}test_a_hold_ends_after_its_time",),
    ),
    Mutant(
        "lower-commit-takes-up",
        "model/records.py",
        "    return standing if placed < stands and not offered.epoch else merge(placed, stands)\n",
        "    return merge(placed, stands)\n",
        "an import of old offsets ends the hold of a reset",
        (f"{HOLDS}test_an_import_is_the_operators_and_is_not_held_off",),
    ),
    Mutant(
        "rewind-has-no-epoch-in-its-reply",
        "sidecar/engine/commit_rules.py",
        "    return before is not None and after.epoch > before.epoch\n",
        "    return False\n",
        "a consumer does not learn the epoch of its rewind, and its next commit with the old one is superseded",
        (f"{WATCH}test_a_rewind_is_answered_with_its_new_epoch",),
    ),
    Mutant(
        "watchers-hear-nothing-of-adoptions",
        "sidecar/engine/committer.py",
        " if isinstance(change, Commit) else deciding.staged)",
        ")",
        "an idle broker learns of a reset only with its next commit",
        (f"{WATCH}test_a_watcher_is_told_of_what_a_flush_adopts",),
    ),
    Mutant(
        "watcher-that-falls-behind-is-not-told",
        "sidecar/engine/watching.py",
        "            self._keys.clear()\n            self._resync = True\n",
        "            self._keys.clear()\n",
        "a slow watcher misses a reset and never learns that it did",
        (f"{WATCH}test_a_watcher_that_falls_behind_has_to_list_again",),
    ),
    Mutant(
        "stop-waits-for-watchers",
        "sidecar/api/offset_service.py",
        "        if self._watches:\n            self._watches.end()\n",
        "",
        "a stop takes its whole grace time for every watcher",
        (f"{WATCH}test_a_stop_ends_a_watch",),
    ),
)
