"""Bugs of a start: what is answered, and what counts as known, before the recovery has ended."""

from tests.mutants.mutant import Mutant

EARLY = "integration/test_early_commits.py::"

START_MUTANTS = (
    Mutant(
        "reads-during-the-recovery",
        "sidecar/api/state.py",
        "        return self._core_in(SERVES)\n",
        "        return self._core_in(TAKES_COMMITS)\n",
        "a consumer begins from an offset that the recovery then adopts over",
        (f"{EARLY}test_commits_are_taken_and_nothing_else_is_answered",),
    ),
    Mutant(
        "no-commits-during-the-recovery",
        "sidecar/api/state.py",
        "TAKES_COMMITS = SERVES | {State.RECOVERING}\n",
        "TAKES_COMMITS = SERVES\n",
        "a restart with a million keys refuses commits for 20 seconds",
        (f"{EARLY}test_commits_are_taken_and_nothing_else_is_answered",),
    ),
    Mutant(
        "healthy-before-the-recovery",
        "sidecar/process.py",
        "        await server.set_serving(serving=True, only=COMMITS)\n",
        "        await server.set_serving(serving=True)\n",
        "consumers are sent to an adapter that refuses their reads",
        (f"{EARLY}test_commits_are_taken_and_nothing_else_is_answered",),
    ),
    Mutant(
        "ready-before-the-recovery",
        "sidecar/api/state.py",
        "        return self.state in SERVES, ",
        "        return self.state in TAKES_COMMITS, ",
        "the startup probe lets the broker start before start positions can be read",
        (f"{EARLY}test_commits_are_taken_and_nothing_else_is_answered",),
    ),
    Mutant(
        "flushed-before-all-is-known",
        "sidecar/ledger/dirty.py",
        "        if not self._recovered.now or self._set_aside or",
        "        if self._set_aside or",
        "a kill during the recovery, and what the process before it left dirty is never flushed",
        (f"{EARLY}test_nothing_counts_as_flushed_before_the_recovery_has_ended",),
    ),
    Mutant(
        "covered-before-all-is-known",
        "sidecar/ledger/dirty.py",
        "        if self._recovered.now and not self:\n",
        "        if not self:\n",
        "the Meta Service is told that it has what a former process left dirty",
        (f"{EARLY}test_nothing_counts_as_flushed_before_the_recovery_has_ended",),
    ),
    Mutant(
        "nothing-flushes-during-the-recovery",
        "sidecar/process.py",
        '        core.tasks.start_soon(core.flusher.run, name="flusher")\n'
        "        await self._unless_stopped(lambda: self._take_commits(server))\n"
        "        await self._unless_stopped(lambda: self._recover(core))\n",
        "        await self._unless_stopped(lambda: self._take_commits(server))\n"
        "        await self._unless_stopped(lambda: self._recover(core))\n"
        '        core.tasks.start_soon(core.flusher.run, name="flusher")\n',
        "what is committed meanwhile reaches the Meta Service only behind a long recovery",
        (f"{EARLY}test_a_stream_is_taken_as_well",),
    ),
    Mutant(
        "stop-forgets-what-was-left",
        "sidecar/process.py",
        "        if not core.ledger.recovered.now:\n            await core.recovery.mark_unflushed()\n",
        "",
        "a stop during the recovery says that nothing is dirty, and leaves what a former process left",
        (f"{EARLY}test_a_stop_during_the_recovery_flushes_what_was_taken_and_what_was_left",),
    ),
    Mutant(
        "first-page-is-marked-alone",
        "sidecar/engine/recovery.py",
        "        while page := await self._store.page(self._batch_keys, after=after):\n            after = page[-1].key\n",
        "        if page := await self._store.page(self._batch_keys, after=after):\n            after = page[-1].key\n",
        "the same, of all keys but the first few thousand",
        ("unit/sidecar/engine/test_recovery.py::test_all_that_is_unflushed_is_marked_page_by_page",),
    ),
    Mutant(
        "rewind-by-what-is-here",
        "sidecar/engine/group_loader.py",
        "        if not self._recovered.once and commit.mode is CommitMode.OVERWRITE and self._meta.available:\n",
        "        if False:\n",
        "a rewind behind a restart is acknowledged, and undone by the recovery",
        (f"{EARLY}test_a_rewind_is_decided_by_what_stands_in_the_meta_service",),
    ),
    Mutant(
        "fast-rewind-by-what-is-here",
        "sidecar/ledger/ledger.py",
        "        return mode <= (OVERWRITE if self.recovered.once else INCREASE_ONLY)\n",
        "        return mode <= OVERWRITE\n",
        "the same, of a key that had a commit since the start",
        (f"{EARLY}test_a_rewind_is_decided_by_what_stands_in_the_meta_service",),
    ),
    Mutant(
        "rewind-without-epochs",
        "sidecar/engine/group_loader.py",
        "        if rewound and self._meta.available and not self._meta.knows_epochs:\n",
        "        if False:\n",
        "RobustMQ's Meta Service: a rewind behind a restart is acknowledged and lost",
        (f"{EARLY}test_a_server_without_epochs_gets_no_rewind_before_the_recovery",),
    ),
    Mutant(
        "older-copy-is-overtaken",
        "sidecar/engine/meta_watch.py",
        "        elif known and known.flushed_seq > self._store.unasked_seq:\n",
        "        elif known and known.flushed_seq > self._store.seq:\n",
        "a store that was put back from a backup is not noticed, because commits came before the question",
        (f"{EARLY}test_an_older_copy_is_noticed_though_commits_have_overtaken_it",),
    ),
    Mutant(
        "older-copy-is-forgotten-by-a-kill",
        "sidecar/ledger/store.py",
        "        if unasked is None or unasked.flushed_seq != self.flushed_seq:\n",
        "        if True:\n",
        "the same, where the adapter was killed before it could ask",
        (f"{EARLY}test_an_older_copy_is_noticed_though_commits_have_overtaken_it",),
    ),
    Mutant(
        "never-asked",
        "sidecar/engine/meta_watch.py",
        "                self._store.asked()\n",
        "",
        "the same store is taken for an older copy at the next start",
        ("unit/sidecar/engine/test_meta_watch.py::test_a_store_that_was_asked_about_is_no_older_copy_later",),
    ),
    Mutant(
        "written-through-over-what-was-not-compared",
        "sidecar/engine/policies.py",
        "uncompared=self._ledger.dirty.is_uncompared)",
        "uncompared=lambda _: False)",
        "RobustMQ's Meta Service: a commit behind a restart lowers what another broker saved meanwhile",
        ("unit/sidecar/engine/test_policies.py::test_a_written_through_commit_lowers_nothing_that_was_not_compared",),
    ),
    Mutant(
        "old-tombstones-are-pushed",
        "sidecar/engine/recovery.py",
        "                if await self._forget_tombstones(piece):\n",
        "                if False:\n",
        "an adapter that was away for longer than tombstones are kept deletes what was committed since",
        ("model/test_forgotten.py::test_a_tombstone_that_outlived_the_meta_services_hides_nothing",),
    ),
)
