"""The bugs. Each is one replacement of a text that occurs exactly once, and names the tests that see it without the model.

`why` is what a user would meet. The model test runs first; the named tests only when it saw nothing.
"""

from tests.mutants.backup_mutants import BACKUP_MUTANTS
from tests.mutants.bounds_mutants import BOUNDS_MUTANTS
from tests.mutants.cli_mutants import CLI_MUTANTS
from tests.mutants.console_access_mutants import CONSOLE_ACCESS_MUTANTS
from tests.mutants.console_mutants import CONSOLE_MUTANTS
from tests.mutants.epochless_mutants import EPOCHLESS_MUTANTS
from tests.mutants.etcd_mutants import ETCD_MUTANTS
from tests.mutants.fast_path_mutants import FAST_PATH_MUTANTS
from tests.mutants.fence_mutants import FENCE_MUTANTS
from tests.mutants.fleet_mutants import FLEET_MUTANTS
from tests.mutants.front_mutants import FRONT_MUTANTS
from tests.mutants.hold_mutants import HOLD_MUTANTS
from tests.mutants.http2_mutants import HTTP2_MUTANTS
from tests.mutants.journal_read_mutants import JOURNAL_READ_MUTANTS
from tests.mutants.lag_job_mutants import LAG_JOB_MUTANTS
from tests.mutants.lag_live_mutants import LAG_LIVE_MUTANTS
from tests.mutants.lag_rules_mutants import LAG_RULES_MUTANTS
from tests.mutants.meta_mutants import META_MUTANTS
from tests.mutants.monitoring_mutants import MONITORING_MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.page_mutants import PAGE_MUTANTS
from tests.mutants.release_mutants import RELEASE_MUTANTS
from tests.mutants.reload_mutants import RELOAD_MUTANTS
from tests.mutants.restart_mutants import RESTART_MUTANTS
from tests.mutants.rocketmq_mutants import ROCKETMQ_MUTANTS
from tests.mutants.start_mutants import START_MUTANTS
from tests.mutants.store_mutants import STORE_MUTANTS
from tests.mutants.telemetry_mutants import TELEMETRY_MUTANTS
from tests.mutants.told_mutants import TOLD_MUTANTS
from tests.mutants.version_mutants import VERSION_MUTANTS

MUTANTS = (
    Mutant(
        "merge-ignores-epoch",
        "model/records.py",
        "    return max(a, b)\n",
        "    return max(a, b, key=lambda found: found[1:])\n",
        "the larger offset wins over every rewind and reset",
        ("unit/model/test_records.py::test_records_are_ordered_by_epoch_offset_live_time_metadata",),
    ),
    Mutant(
        "reset-is-epoch-plus-one",
        "model/records.py",
        "    return ((epoch >> ERA_BITS) + 1) << ERA_BITS\n",
        "    return epoch + 1\n",
        "a rewind that was acknowledged while an adapter was cut off is as high as the reset, and undoes it",
        ("unit/model/test_epochs.py::test_a_reset_begins_the_next_era",),
    ),
    Mutant(
        "time-rule-dropped",
        "model/records.py",
        "epoch > FIRST_EPOCH and 0 < offered.committed_at_ms <= until_ms:",
        "epoch > FIRST_EPOCH and offered.committed_at_ms < 0:",
        "a commit that was made before a reset, by an adapter without the epoch, undoes it",
        ("unit/model/test_epochs.py::test_a_record_of_unknown_epoch_becomes_what_the_table_says",),
    ),
    Mutant(
        "commit-of-an-older-epoch-counts",
        "model/records.py",
        "    if offered.epoch and taken_up(offered.epoch) < epoch:\n        return standing\n",
        "",
        "a commit in flight undoes a reset (apache/rocketmq #4206)",
        ("unit/sidecar/engine/test_read_epochs.py::test_a_commit_of_the_epoch_before_a_reset_is_superseded",),
    ),
    Mutant(
        "no-commit-below-a-tombstone",
        "model/records.py",
        "        return standing.epoch + (not standing.live)\n",
        "        return standing.epoch\n",
        "a group that comes back after an expiry, with a lower offset, is acknowledged and not stored",
        ("unit/model/test_epochs.py::test_a_commit_ends_as_the_table_says",),
    ),
    Mutant(
        "expiry-raises-the-epoch",
        "model/records.py",
        "    return standing._replace(epoch=taken_up(standing.epoch), live=False",
        "    return standing._replace(epoch=standing.epoch + 1, live=False",
        "a commit that was acknowledged before the expiry, and is flushed behind it, is lost",
        ("unit/model/test_epochs.py::test_the_tombstone_of_an_expiry_raises_no_epoch",),
    ),
    Mutant(
        "unknown-epoch-forgotten",
        "sidecar/ledger/rules.py",
        "    if taken_up(offered.epoch) > taken_up(known):\n",
        "    if offered.epoch > known > 0:\n",
        "without the Meta Service the epoch that a consumer read is dropped, and its commit undoes a reset or is lost",
        ("unit/sidecar/engine/test_read_epochs.py::test_without_the_meta_service_an_unknown_epoch_is_unavailable",),
    ),
    Mutant(
        "rewind-in-an-unknown-epoch",
        "sidecar/ledger/rules.py",
        "    if standing.epoch == 0 and after.epoch > 0:\n",
        "    if standing.epoch < 0:\n",
        "the Meta Service undoes an acknowledged rewind",
        ("unit/sidecar/ledger/test_ledger.py::test_a_refused_change_leaves_the_others_of_its_batch_alone",),
    ),
    Mutant(
        "absent-is-in-the-first-epoch",
        "sidecar/ledger/group_state.py",
        "        return FIRST_EPOCH if self.knows_absent(key) else 0\n",
        "        return FIRST_EPOCH\n",
        "the first commit of a key that stands in a higher epoch elsewhere is acknowledged and lost",
        ("unit/sidecar/ledger/test_ledger.py::test_a_load_that_cannot_be_written_does_not_count",),
    ),
    Mutant(
        "loaded-before-the-write",
        "sidecar/ledger/ledger.py",
        "        standing = decision.decide(operation)\n",
        "        standing = decision.decide(operation)\n        self._mark(decision, None)\n",
        "after a write that failed a group counts as known, and its keys begin in the first epoch",
        ("unit/sidecar/ledger/test_ledger.py::test_a_load_that_cannot_be_written_does_not_count",),
    ),
    Mutant(
        "loaded-kept-after-a-forget",
        "sidecar/ledger/ledger.py",
        "            self.states.note_removal(decision.removed)\n",
        "            self.states.removals += 1\n",
        "a key that was handed over and comes back begins in the first epoch: acknowledged and lost",
        ("unit/sidecar/ledger/test_ledger.py::test_a_commit_behind_a_forget_of_its_batch_does_not_begin_in_the_first_epoch",),
    ),
    Mutant(
        "load-from-before-a-forget",
        "sidecar/ledger/decision.py",
        "        if self._states.removed_since(\n            chain(",
        "        if not self._states.removed_since(\n            chain(",
        "a load that was under way during a hand-over brings back what it has forgotten",
        ("unit/sidecar/ledger/test_ledger.py::test_a_load_that_was_fetched_before_a_forget_is_refused",),
    ),
    Mutant(
        "forget-of-dirty-keys",
        "sidecar/ledger/decision.py",
        "        if busy and not operation.gone:\n",
        "        if busy and operation.gone:\n",
        "a hand-over forgets a commit that the Meta Service has not got",
        ("unit/sidecar/ledger/test_ledger.py::test_forget_of_a_dirty_key_removes_nothing",),
    ),
    Mutant(
        "adopted-value-stays-dirty",
        "sidecar/ledger/decision.py",
        "                self._stage(key, after, clean=after == remote)\n",
        "                self._stage(key, after, clean=False)\n",
        "each adopted value is sent back: the Meta Service is called for nothing, and groups never count as quiet",
        ("unit/sidecar/ledger/test_ledger.py::test_of_local_and_remote_the_larger_stands_and_a_larger_local_one_is_dirty",),
    ),
    Mutant(
        "placed-value-counts-as-clean",
        "sidecar/ledger/decision.py",
        "                self._stage(key, after, clean=after == remote)\n",
        "                self._stage(key, after, clean=True)\n",
        "a local value that took its epoch from the Meta Service is never sent there",
        ("unit/sidecar/ledger/test_ledger.py::test_of_local_and_remote_the_larger_stands_and_a_larger_local_one_is_dirty",),
    ),
    Mutant(
        "removed-behind-the-load-is-absent",
        "sidecar/engine/reads.py",
        "            self._check_still_here(asked, forgets)\n",
        "",
        "a read beside the end of a hand-over says that there is no offset",
        ("unit/sidecar/engine/test_reads.py::test_what_is_removed_behind_the_load_of_a_read_is_not_absent",),
    ),
    Mutant(
        "reported-before-it-is-synced",
        "sidecar/ledger/dirty.py",
        "        return min(max(flushed_seq, carried), acknowledged_seq)\n",
        "        return max(flushed_seq, carried)\n",
        "a power cut during an fsync looks as if an older copy of the store had been put back",
        ("model/test_alarms.py",),
    ),
    Mutant(
        "flushed-past-what-became-dirty",
        "sidecar/ledger/dirty.py",
        " or self._marked != self._marked_before:\n",
        ":\n",
        "a stored key that became dirty during a flush counts as flushed after a kill",
        (
            "unit/sidecar/engine/test_flusher.py::test_the_flushed_watermark_does_not_pass_a_stored_key_that_became_dirty_during_the_flush",
        ),
    ),
    Mutant(
        "expired-by-a-stale-page",
        "sidecar/ledger/decision.py",
        "if operation.stood and [record for _, record, _ in removed] != list(operation.stood):",
        "if operation.stood and len(removed) != len(operation.stood):",
        "an expiry forgets the generation of a group that came back while its page was read",
        ("unit/sidecar/engine/test_expiry.py::test_a_commit_while_a_page_is_read_stays",),
    ),
    Mutant(
        "larger-local-value-counts-as-clean",
        "sidecar/ledger/decision.py",
        "                elif one[0] is not None and key not in self._dirty and key not in self.staged:\n",
        "                elif one[0] is not None and key in self._dirty and key not in self.staged:\n",
        "the recovery sees what the Meta Service has lost and does not push it",
        ("unit/sidecar/ledger/test_ledger.py::test_of_local_and_remote_the_larger_stands_and_a_larger_local_one_is_dirty",),
    ),
    Mutant(
        "acknowledged-before-the-write",
        "sidecar/ledger/ledger.py",
        "            written = self.store.write(decision.staged, decision.members, decision.forward, decision.rows)\n",
        '            __import__("asyncio").get_running_loop().call_later(\n                0.001, lambda: '
        "self._mark(decision, self.store.write(decision.staged, decision.members, decision.forward, decision.rows))"
        "\n            )\n",
        "a commit is answered, then written: a kill in between loses it",
        ("unit/sidecar/ledger/test_ledger.py::test_changes_are_applied_in_the_order_in_which_they_came",),
    ),
    Mutant(
        "always-does-not-sync",
        "sidecar/ledger/ledger.py",
        "        if self.store.must_sync:\n",
        "        if self.store.failure:\n",
        "a power cut loses acknowledged commits",
        ("unit/sidecar/ledger/test_ledger.py::test_always_answers_after_the_sync",),
    ),
    Mutant(
        "fence-only-with-offsets",
        "sidecar/ledger/ledger.py",
        "        if decision.staged or decision.members or decision.forward or decision.rows:\n",
        "        if decision.staged or decision.forward or decision.rows:\n",
        "a generation whose first commit changes no offset fences nobody",
        ("unit/sidecar/engine/test_fencing.py::test_a_generation_counts_also_when_its_commit_changes_nothing",),
    ),
    Mutant(
        "fence-not-stored",
        "sidecar/ledger/ledger.py",
        "self.store.write(decision.staged, decision.members, decision.forward, decision.rows)",
        "self.store.write(decision.staged, {}, decision.forward, decision.rows)",
        "after a restart, and even in the next batch, a zombie commits again",
        ("unit/sidecar/engine/test_fencing.py::test_a_generation_survives_a_kill",),
    ),
    Mutant(
        "fence-goes-with-a-hand-over",
        "sidecar/engine/handover.py",
        "Forget(keys)",
        "Forget(keys, list({key.group_key for key in keys}))",
        "after RemoveOffsets a zombie commits again",
        ("unit/sidecar/engine/test_fencing.py::test_a_removed_shard_leaves_the_generation",),
    ),
    Mutant(
        "slices-of-a-removal-forget-what-is-dirty",
        "sidecar/engine/handover.py",
        "Forget(keys)",
        "Forget(keys, gone=True)",
        "a hand-over forgets a commit that came in between two of its slices",
        ("unit/sidecar/engine/test_handover.py::test_commits_during_each_flush_of_a_removal_are_persisted_before_it",),
    ),
    Mutant(
        "write-through-slips-behind-the-fence",
        "sidecar/engine/policies.py",
        "            self._ledger.check_members(commit.members)\n",
        "",
        "written through, an older generation that waited for a save goes out with the newer one",
        ("unit/sidecar/engine/test_fencing.py::test_an_older_generation_cannot_slip_in_behind_a_newer_one_in_one_save",),
    ),
    Mutant(
        "an-expiry-takes-the-generation-of-a-commit-on-its-way",
        "sidecar/engine/policies.py",
        "        if forgotten:\n",
        "        if False:\n",
        "a member of an older generation commits to a group that expired during the commit of a newer one",
        ("unit/sidecar/engine/test_fencing.py::test_a_generation_stands_though_an_expiry_forgot_it_during_the_save",),
    ),
    Mutant(
        "an-older-generation-stays-behind-an-expiry",
        "sidecar/engine/policies.py",
        "        return seen is None or seen.generation < member.generation\n",
        "        return seen is None\n",
        "an older generation that commits between an expiry and the end of a newer one's commit stays the present one",
        ("unit/sidecar/engine/test_fencing.py::test_a_generation_stands_though_an_expiry_forgot_it_during_the_save",),
    ),
    Mutant(
        "in-flight-counts-as-clean",
        "sidecar/ledger/dirty.py",
        "        self._in_flight = taken\n",
        "",
        "dirty is cleared before the acknowledgement: a hand-over in between forgets what is not there yet",
        ("unit/sidecar/ledger/test_dirty.py::test_a_key_is_dirty_from_the_commit_to_its_acknowledgement",),
    ),
    Mutant(
        "put-back-overwrites-newer",
        "sidecar/ledger/dirty.py",
        "            older.update(newer)\n            self.groups[group] = older\n",
        "            newer.update(older)\n            self.groups[group] = newer\n",
        "after a failed flush the old value is sent again instead of the newer one, which counts as flushed",
        ("unit/sidecar/ledger/test_dirty.py::test_what_was_not_sent_goes_under_a_newer_commit_with_its_older_time",),
    ),
    Mutant(
        "put-back-of-many-overwrites-newer",
        "sidecar/ledger/dirty.py",
        "                newer.setdefault(shard, held)\n",
        "                newer[shard] = held\n",
        "after a failed flush beside many commits the old values are sent again, and the newer ones count as flushed",
        ("unit/sidecar/ledger/test_dirty.py::test_much_came_in_during_a_flush_of_little",),
    ),
    Mutant(
        "acknowledged-together-with-what-was-refused",
        "sidecar/engine/flusher.py",
        "        for runs in chunk.without(results.differing, AT_ONCE):\n",
        "        for runs in chunk.without((), AT_ONCE):\n",
        "what the Meta Service refused or did not answer counts as clean, because its neighbours do",
        ("unit/sidecar/engine/test_flush_faults.py::test_of_a_partly_refused_flush_only_the_refused_keys_stay_dirty",),
    ),
    Mutant(
        "begun-over-a-newer-commit",
        "sidecar/ledger/decision.py",
        "                if plain and now[shard][1] == seq:\n",
        "                if plain:\n",
        "the answer to a flush takes a commit back that came meanwhile",
        ("unit/sidecar/ledger/test_first_epochs.py::test_what_was_committed_meanwhile_is_not_replaced_by_what_was_sent",),
    ),
    Mutant(
        "begun-without-labels",
        "sidecar/ledger/decision.py",
        "                plain = live and not (epoch or metadata or topic or partition)\n",
        "                plain = live and not epoch\n",
        "metadata that was committed during an outage is gone here, and there at the next commit",
        ("unit/sidecar/ledger/test_first_epochs.py::test_first_epochs_do_what_a_reconcile_of_each_does",),
    ),
    Mutant(
        "answer-about-something-else-believed",
        "meta/packed.py",
        "    if not about or answered != len(chunk):\n",
        "    if not about:\n",
        "entries that an answer says nothing about count as saved",
        ("durability/test_flush_faults.py::test_a_save_answered_for_another_number_of_entries_leaves_everything_dirty",),
    ),
    Mutant(
        "chunk-loses-the-rest-of-a-group",
        "meta/packed.py",
        "                runs, start, count, size = [], at, 0, 0\n",
        "                runs, start, count, size = [], at + 1, 0, 0\n",
        "the first key of each chunk after the first is never sent",
        ("unit/meta/test_packed.py::test_chunks_hold_everything_once_within_all_bounds",),
    ),
    Mutant(
        "failed-flush-forgotten",
        "sidecar/ledger/dirty.py",
        "        self._put_back(unsent, first=first)\n",
        "",
        "what a failed save carried is taken for clean (apache/pulsar #14256)",
        ("unit/sidecar/ledger/test_dirty.py::test_what_was_not_sent_waits_again",),
    ),
    Mutant(
        "flushed-seq-too-early",
        "sidecar/engine/flusher.py",
        "        self._store.advance_flushed(self._dirty.covers())\n",
        "        self._store.advance_flushed(self._dirty.covers() and self._store.seq)\n",
        "what is committed during a flush counts as flushed after a crash",
        ("unit/sidecar/engine/test_flusher.py::test_a_commit_during_a_flush_is_above_the_flushed_watermark",),
    ),
    Mutant(
        "flushed-seq-before-the-recovery",
        "sidecar/ledger/dirty.py",
        "        if not self._recovered.now or self._set_aside or",
        "        if self._set_aside or",
        "what a former process left unflushed counts as flushed",
        ("unit/sidecar/engine/test_flusher.py::test_before_the_recovery_the_flushed_watermark_does_not_move",),
    ),
    Mutant(
        "flushed-seq-passes-the-refused",
        "sidecar/ledger/dirty.py",
        "        return min(self._began_at, self._lowest_refused - 1) if self._refused else self._began_at\n",
        "        return self._began_at\n",
        "what the Meta Service refused counts as flushed after a crash",
        ("unit/sidecar/engine/test_flusher.py::test_the_flushed_watermark_follows_what_was_acknowledged",),
    ),
    Mutant(
        "flushed-seq-passes-what-is-set-aside",
        "sidecar/ledger/dirty.py",
        "            return 0  # finding",
        "            return self._began_at  # finding",
        "what a part of the Meta Service did not answer counts as flushed after a crash",
        ("unit/sidecar/engine/test_partial_saves.py::test_the_flushed_watermark_does_not_pass_what_is_set_aside",),
    ),
    Mutant(
        "superseded-not-adopted",
        "sidecar/engine/flusher.py",
        "                    standing.append((key, result.standing))\n",
        "                    self._acknowledge(key, outcome)\n",
        "a reset that was made elsewhere is never seen here: reads answer the old offset, commits go on in the old epoch",
        ("unit/sidecar/engine/test_flusher.py::test_a_superseded_key_takes_over_what_stands",),
    ),
    Mutant(
        "acknowledged-before-the-adoption",
        "sidecar/engine/flusher.py",
        "            await self._ledger.submit(Reconcile(adopted))\n"
        "            for key, _ in adopted:\n"
        "                self._acknowledge(key, outcome)\n",
        "            for key, _ in adopted:\n"
        "                self._acknowledge(key, outcome)\n"
        "            await self._ledger.submit(Reconcile(adopted))\n",
        "a full disk at this moment leaves the old epoch here, and it counts as clean",
        ("unit/sidecar/engine/test_read_epochs.py::test_a_reset_that_cannot_be_adopted_now_is_adopted_by_the_next_flush",),
    ),
    Mutant(
        "reset-beside-a-flush",
        "sidecar/engine/flusher.py",
        "            async with self._lock:\n                yield\n",
        "            yield\n",
        "a flush of this adapter is in the network behind its own reset",
        ("unit/sidecar/engine/test_resets.py::test_a_reset_waits_for_the_flush_under_way",),
    ),
    Mutant(
        "reset-not-read-back",
        "sidecar/engine/reset_writer.py",
        "            await self.read_back(writes, at_least=at_least)\n",
        "",
        "a reset that lost against another one says success",
        ("unit/sidecar/engine/test_resets.py::test_success_is_not_said_when_somebody_else_moved_it",),
    ),
    Mutant(
        "recovery-skips-clean-keys",
        "sidecar/engine/comparison.py",
        "        return await self._store.rows(self._batch_keys, after), forgets\n",
        "        page = await self._store.rows(self._batch_keys, after)\n"
        "        return [row for row in page if int.from_bytes(row[1][:8], 'big') > self._store.flushed_seq], forgets\n",
        "what the Meta Service lost, or what moved there, is not found at a start",
        ("unit/sidecar/engine/test_recovery.py::test_the_larger_value_wins_on_both_sides",),
    ),
    Mutant(
        "recovery-brings-back-what-was-removed",
        "sidecar/engine/recovery.py",
        "            self._ledger.apply(Load((), entries, piece.forgets))\n",
        "            self._ledger.apply(Load((), entries, self._store.states.removals))\n",
        "a shard that is handed over during the recovery comes back with an old value",
        ("unit/sidecar/engine/test_recovery.py::test_what_is_removed_during_a_comparison_does_not_come_back",),
    ),
    Mutant(
        "newest-unflushed-key-skipped",
        "sidecar/ledger/store.py",
        "if above < decode_seq(value) <= upto:",
        "if above + 1 < decode_seq(value) <= upto:",
        "a stop before the recovery leaves a dirty key behind and exits with 0",
        ("unit/sidecar/engine/test_recovery.py::test_mark_unflushed_marks_what_is_above_the_watermark",),
    ),
    Mutant(
        "watermark-too-early",
        "sidecar/ledger/store.py",
        '        if self.wal_sync != "always":\n            self._advance_watermark(self.seq)\n\n    async',
        "        self._advance_watermark(self.seq)\n\n    async",
        "a power cut before the sync, which lost nothing that was acknowledged, raises the alarm for ever",
        ("unit/sidecar/ledger/test_store.py::test_with_always_the_watermark_follows_the_sync",),
    ),
    Mutant(
        "newer-epoch-not-loaded",
        "sidecar/engine/group_loader.py",
        "        return epoch > standing.epoch\n",
        "        return False\n",
        "after a reset elsewhere a consumer that has read it cannot commit here until something else brings the epoch",
        ("unit/sidecar/engine/test_read_epochs.py::test_a_newer_epoch_than_is_known_here_is_loaded_first",),
    ),
    *BOUNDS_MUTANTS,
    *CLI_MUTANTS,
    *CONSOLE_ACCESS_MUTANTS,
    *CONSOLE_MUTANTS,
    *FAST_PATH_MUTANTS,
    *FLEET_MUTANTS,
    *HOLD_MUTANTS,
    *HTTP2_MUTANTS,
    *LAG_RULES_MUTANTS,
    *JOURNAL_READ_MUTANTS,
    *LAG_JOB_MUTANTS,
    *LAG_LIVE_MUTANTS,
    *META_MUTANTS,
    *MONITORING_MUTANTS,
    *EPOCHLESS_MUTANTS,
    *STORE_MUTANTS,
    *TELEMETRY_MUTANTS,
    *TOLD_MUTANTS,
    *ETCD_MUTANTS,
    *FENCE_MUTANTS,
    *PAGE_MUTANTS,
    *RELEASE_MUTANTS,
    *RELOAD_MUTANTS,
    *FRONT_MUTANTS,
    *RESTART_MUTANTS,
    *ROCKETMQ_MUTANTS,
    *START_MUTANTS,
    *VERSION_MUTANTS,
    *BACKUP_MUTANTS,
)
