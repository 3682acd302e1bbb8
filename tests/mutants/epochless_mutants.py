"""The bugs of saves to a Meta Service without epochs (RobustMQ). See mutants.py."""

from tests.mutants.mutant import Mutant

KEEPING = "integration/test_epochless_keeping.py::"
GROUP_SAVES = "integration/test_group_saves.py::"

EPOCHLESS_MUTANTS = (
    Mutant(
        "tombstones-are-kept-without-epochs",
        "meta/kinds.py",
        "        return record.live\n",
        "        return True\n",
        "a delete is sent to RobustMQ as a tombstone, which stands there as the offset 0",
        (
            "unit/meta/test_kinds.py::test_without_epochs_only_tombstones_are_not_kept",
            "integration/test_epochless_admin.py::test_a_delete_leaves_nothing_there_and_nothing_here",
        ),
    ),
    Mutant(
        "epochless-expects-nothing",
        "meta/epochless.py",
        "        pushes = [SaveEntry(key, record, expected[key].offset) for key, record in records.items()]\n",
        "        pushes = [SaveEntry(key, record) for key, record in records.items()]\n",
        "a plain save of 160 takes another writer's 300 back",
        ("integration/test_epochless.py::test_what_another_writer_stored_is_seen_and_merged",),
    ),
    Mutant(
        "epochless-knows-what-is-in-doubt",
        "meta/epochless.py",
        "        self.forget(entry.key for entry in sent)  # until it is answered: some of it may be applied\n",
        "",
        "a save whose answer was lost makes the next rewind look like another writer's",
        ("integration/test_epochless.py::test_a_rewind_after_a_flush_without_an_answer_stands",),
    ),
    Mutant(
        "epochless-loses-labels",
        "meta/epochless.py",
        "if held and held.topic else self._labels.of(key.shard)",
        "if held and not held.topic else self._labels.of(key.shard)",
        "RobustMQ's Kafka OffsetFetch does not find ('payments', 3) any more",
        (f"{KEEPING}test_labels_of_an_equal_offset_are_kept_though_the_local_record_has_none",),
    ),
    Mutant(
        "handover-trusts-the-acknowledgement",
        "sidecar/engine/handover.py",
        "        if self._renewal.needed:\n",
        "        if False:\n",
        "a group that the server deleted itself is removed here, too: gone on both sides",
        (f"{KEEPING}test_a_hand_over_saves_again_what_the_server_has_deleted_itself",),
    ),
    Mutant(
        "renewal-looks-at-one-offset",
        "sidecar/engine/renewal.py",
        "            await self._confirm_all(group)\n",
        "            pass\n",
        "of a group that the server deleted only one offset comes back",
        (f"{KEEPING}test_idle_groups_are_saved_again_and_what_is_gone_is_put_back",),
    ),
    Mutant(
        "flush-sends-all-groups-at-once",
        "meta/group_saves.py",
        "== first), self._window.size))\n",
        "== first), None))\n",
        "a save of many groups starts over for ever",
        (f"{GROUP_SAVES}test_saves_grow_while_they_are_answered_in_time",),
    ),
    Mutant(
        "save-without-an-answer-counts-as-stored",
        "meta/group_saves.py",
        "all(held.get(entry.key) == entry.record.offset for entry in self._waiting[name])]",
        "all(held.get(entry.key, 1) for entry in self._waiting[name])]",
        "what was never written is clean",
        (f"{GROUP_SAVES}test_groups_that_a_save_without_an_answer_had_stored_are_acknowledged_and_not_sent_again",),
    ),
    Mutant(
        "groups-behind-a-forward-count-as-written",
        "meta/group_saves.py",
        "        written = names[: names.index(name)]\n",
        "        written = [other for other in names if other != name]\n",
        "what another node has to write is compared in vain, or clean",
        (f"{GROUP_SAVES}test_groups_of_several_leaders_all_get_there_and_are_sorted_from_then_on",),
    ),
    Mutant(
        "flush-lets-nobody-go-first",
        "sidecar/engine/flusher.py",
        "                if yielding and unsent and self._urgent:\n",
        "                if False:\n",
        "a hand-over waits for ten thousand groups of others",
        ("unit/sidecar/engine/test_urgent_flushes.py::test_a_hand_over_does_not_wait_for_the_rest_of_a_flush",),
    ),
    Mutant(
        "interrupted-flush-counts-as-complete",
        "sidecar/ledger/dirty.py",
        "        if first:\n            self._began_at = 0\n",
        "",
        "what an interrupted flush did not send is not pushed after a kill",
        ("unit/sidecar/engine/test_urgent_flushes.py::test_a_flush_that_was_interrupted_has_not_flushed_everything",),
    ),
    Mutant(
        "fast-path-stores-no-labels",
        "model/codec.py",
        "    if topic or partition:\n        return encode_record(OffsetRecord(*fields), seq)\n",
        "",
        "labels that stand are in memory alone, and gone after a restart",
        ("unit/sidecar/ledger/test_plain_runs.py::test_a_record_is_what_a_commit_makes_of_it",),
    ),
    Mutant(
        "full-disk-forgets-nothing",
        "sidecar/engine/policies.py",
        "            self._saver.forget(by_key)\n",
        "",
        "behind a full disk a written-through commit of 5 is saved over the 7 that the server has",
        ("unit/sidecar/engine/test_policies.py::test_what_was_saved_and_not_stored_is_not_lowered",),
    ),
    Mutant(
        "epochless-forgets-what-it-saved-before-a-failure",
        "meta/epochless.py",
        "            if not any(outcome.status.acknowledged for outcome in self._outcomes.values()):\n                raise\n",
        "            raise\n",
        "a written-through offset that was stored beside a refused one is taken back by the next commit",
        ("unit/meta/test_epochless.py::test_a_commit_that_was_refused_for_another_shard_does_not_take_this_one_back",),
    ),
)
