"""Mutants of what adapters are told of groups that others change."""

from tests.mutants.mutant import Mutant

CONTRACT = "contract/test_changed_groups.py"
ELSEWHERE = "unit/sidecar/engine/test_changed_elsewhere.py"

TOLD_MUTANTS = (
    Mutant(
        "told-before-it-is-loaded",
        "sidecar/engine/changed_elsewhere.py",
        "        await self._load_groups(found.groups)\n",
        "        self._places = found.places\n        await self._load_groups(found.groups)\n",
        "a reset elsewhere is never seen here if the Meta Service is away in that moment",
        (f"{ELSEWHERE}::test_a_change_whose_load_failed_is_told_again",),
    ),
    Mutant(
        "what-expired-elsewhere-is-loaded",
        "sidecar/engine/changed_elsewhere.py",
        "found != record and meet(found, record) == found",
        "found != record",
        "an expired group is sent back by each adapter that is told of it",
        (f"{ELSEWHERE}::test_a_group_that_expired_elsewhere_goes_here_too_if_it_is_old_here",),
    ),
    Mutant(
        "places-outlive-a-loss",
        "sidecar/engine/changed_elsewhere.py",
        "        if self._comparisons != self._meta.server_reports.comparisons:\n",
        "        if self._comparisons > self._meta.server_reports.comparisons:\n",
        "what a restored Meta Service was told below the place that this adapter knows is never seen",
        (f"{ELSEWHERE}::test_after_a_loss_of_the_meta_service_the_place_is_taken_anew",),
    ),
    Mutant(
        "the-start-takes-no-place",
        "sidecar/engine/meta_watch.py",
        "        await self._elsewhere.begin()\n",
        "",
        "each start compares all keys twice, or misses what is changed behind its comparison",
        (f"{ELSEWHERE}::test_a_change_between_the_start_and_the_first_question_is_told",),
    ),
    Mutant(
        "a-gap-is-no-comparison",
        "sidecar/engine/changed_elsewhere.py",
        "            self.comparing, self._after = True, None\n",
        "            self._after = None\n",
        "an adapter that was away for too long shows old offsets for days",
        (f"{ELSEWHERE}::test_where_it_is_not_known_any_more_what_was_changed_all_is_compared",),
    ),
    Mutant(
        "imports-are-not-told",
        "sidecar/engine/policies.py",
        "        if any(commit.by_operator for commit in commits):\n",
        "        if all(commit.by_operator is None for commit in commits):\n",
        "other adapters show the offsets from before an import",
        (f"{ELSEWHERE}::test_resets_deletes_clones_and_imports_of_an_adapter_are_told_to_others",),
    ),
    Mutant(
        "embedded-notes-tell-no-resets",
        "metaservice/rocksdb/change_notes.py",
        "    return not value[_LIVE] or value[_LOWER] == _HELD\n",
        "    return not value[_LIVE]\n",
        "a reset by an older adapter is not told",
        (f"{CONTRACT}::test_packed_saves_tell_as_others_do",),
    ),
    Mutant(
        "an-older-program-leaves-no-gap",
        "metaservice/rocksdb/store.py",
        "    if not last or last != former.id:\n",
        "    if not last:\n",
        "what was reset while the release before ran is not seen by adapters that stayed",
        (f"{CONTRACT}::test_what_an_older_program_changed_in_between_is_a_gap",),
    ),
    Mutant(
        "evicted-notes-leave-no-gap",
        "metaservice/rocksdb/change_notes.py",
        "            self.floor = max(self.floor, former)\n",
        "            self.floor = max(self.floor, 0)\n",
        "an adapter that was cut off misses the oldest of very many changes",
        (f"{CONTRACT}::test_the_embedded_store_drops_the_oldest_notes",),
    ),
    Mutant(
        "notes-of-etcd-are-not-announced",
        "metaservice/etcd/txn_batcher.py",
        "    for note in (*notes, keys.noted) if notes else ():\n",
        "    for note in notes:\n",
        "on etcd no adapter ever looks at the notes",
        (f"{CONTRACT}::test_a_delete_an_expiry_a_reset_and_what_is_saved_to_be_told_are[etcd]",),
    ),
    Mutant(
        "etcds-expiry-is-not-told",
        "metaservice/etcd/expiry.py",
        "            add_notes(request, [self._note(part[0].where)], self._keys)\n",
        "",
        "on etcd a group that expired stays at other adapters until their sweep",
        (f"{CONTRACT}::test_a_delete_an_expiry_a_reset_and_what_is_saved_to_be_told_are[etcd]",),
    ),
    Mutant(
        "dropped-notes-of-etcd-leave-no-gap",
        "metaservice/etcd/change_notes.py",
        "        if _revision(dropped) > since:\n",
        "        if _revision(dropped) > now.revision:\n",
        "an adapter that was cut off misses changes, since too many were noted",
        (f"{CONTRACT}::test_etcd_drops_all_notes_when_there_are_too_many",),
    ),
)
