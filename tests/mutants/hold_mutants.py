"""Bugs of holds (a reset stops commits without an epoch until it is taken up), of old tombstones, and of watchers."""

from tests.mutants.mutant import Mutant

HOLDS = "unit/sidecar/engine/test_holds.py::"
EXPIRY = "unit/sidecar/engine/test_expiry.py::"
FORGOTTEN = "model/test_forgotten.py::"
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
        "        if mode is ReadMode.STORE:\n            await until_settled",
        "        if mode is None:\n            await until_settled",
        "a consumer that has read where to begin is held off for minutes all the same",
        (f"{HOLDS}test_a_read_of_the_store_ends_the_hold",),
    ),
    Mutant(
        "any-read-takes-up",
        "sidecar/engine/reads.py",
        "        if mode is ReadMode.STORE:\n            await until_settled",
        "        if mode is not None:\n            await until_settled",
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
        "past-tombstone-is-taken-up",
        "sidecar/engine/reads.py",
        " and not self._tombstones.is_past(record)]",
        "]",
        "a tombstone that the Meta Service has forgotten comes back by a read, and hides what was committed since",
        (f"{FORGOTTEN}test_an_adapter_that_runs_takes_up_no_tombstone_that_was_forgotten",),
    ),
    Mutant(
        "load-buries-what-began-anew",
        "sidecar/engine/group_loader.py",
        "            if past := self._past(some):\n",
        "            if (past := self._past(some)) and not some:\n",
        "the same by any load: an acknowledged commit of another adapter is deleted",
        (f"{EXPIRY}test_a_load_forgets_a_tombstone_that_the_meta_service_has_forgotten",),
    ),
    Mutant(
        "sweep-takes-the-page-at-its-word",
        "sidecar/engine/expiry.py",
        "                still = [key for key, record in found if record and self._tombstones.is_past(record)]\n",
        "                still = [key for key, record in found if record]\n",
        "a commit that came over a dirty tombstone while the sweep waited for a flush is removed",
        (f"{EXPIRY}test_what_was_committed_over_a_tombstone_meanwhile_stays",),
    ),
    Mutant(
        "sweep-forgets-while-a-flush-has-it",
        "sidecar/engine/expiry.py",
        "async with self._flusher.paused():  # what a flush has taken is dirty again behind it\n",
        "if True:\n",
        "a tombstone that could not be sent for days is sent when the Meta Service is back, and hides what was committed since",
        (f"{FORGOTTEN}test_a_take_up_that_could_not_be_sent_for_long_is_not_sent_any_more",),
    ),
    Mutant(
        "tombstone-is-past-while-it-holds",
        "sidecar/engine/tombstones.py",
        "        age_ms = max(TOMBSTONE_MS, self._holds.hold_ms)\n",
        "        age_ms = TOMBSTONE_MS\n",
        "a delete that is held for an hour holds nothing after ten minutes where the Meta Service is away",
        (f"{EXPIRY}test_a_tombstone_stays_for_as_long_as_it_may_hold",),
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
    Mutant(
        "put-back-takes-every-hold-up",
        "model/records.py",
        "not other.live and other.position == (taken_up(record.epoch), record.offset)",
        "other.position >= record.position",
        "a reset that meets a later record, or the expiry of another one, is taken up by nobody",
        ("proof/test_laws.py::test_a_law_holds_for_all_values[only_its_own_expiry_takes_a_hold_up]",),
    ),
    Mutant(
        "expired-reset-does-not-come-back",
        "model/records.py",
        "    return record._replace(epoch=other.epoch) if of_its_expiry else record\n",
        "    return record\n",
        "a kill between an expiry and what takes it back loses a reset that nobody had taken up",
        (
            f"{EXPIRY}test_a_reset_that_nobody_took_up_comes_back_with_its_group",
            "durability/test_expiry.py::test_a_kill_between_an_expiry_and_what_takes_it_back_loses_no_reset",
        ),
    ),
    Mutant(
        "put-back-ends-a-hold",
        "sidecar/engine/expiry.py",
        "            await self._committer.submit(Reconcile([(stored.key, None) for stored in page if stored.record.live]))\n",
        "            live = [stored.key for stored in page if stored.record.live]\n"
        "            await self._committer.submit(Reconcile([(key, None) for key in live]))\n"
        "            from adapter.sidecar.engine.changes import TakeUp\n"
        "            await self._committer.submit(TakeUp(live))\n",
        "a reset of a group that is put back is taken up by nobody: a running consumer undoes it",
        (
            f"{EXPIRY}test_a_reset_of_a_group_that_is_put_back_stays_held",
            "model/test_replays.py::test_what_broke_once_holds",
        ),
    ),
)
