"""The bugs of the Meta Service. See mutants.py."""

from tests.mutants.mutant import Mutant

META_MUTANTS = (
    Mutant(
        "meta-expires-what-is-in-use",
        "metaservice/rocksdb_engine.py",
        "            if newest_ms >= before_ms:\n",
        "            if newest_ms >= now_ms:\n",
        "a group that commits through another broker expires (linkedin/kafka #488)",
        ("contract/test_expire.py::test_one_young_commit_keeps_the_whole_group",),
    ),
    Mutant(
        "meta-drops-young-tombstones",
        "metaservice/rocksdb_engine.py",
        "    return not record.live and record.committed_at_ms < before_ms\n",
        "    return not record.live\n",
        "a deleted group returns with the next late flush (redpanda #4900)",
        ("contract/test_expire.py::test_old_tombstones_are_forgotten_and_young_ones_and_live_offsets_are_not",),
    ),
    Mutant(
        "meta-delete-without-a-tombstone",
        "metaservice/rocksdb_engine.py",
        "            buried = {key: deleted(record, now_ms) for key, record in standing if not is_deleted(record)}\n",
        "            buried = {key: deleted(record, now_ms) for key, record in standing if record.live}\n",
        "a delete of an expired group leaves a tombstone that a late flush passes",
        ("contract/test_expire.py::test_a_delete_of_an_expired_group_holds_back_what_the_expiry_would_have_let_through",),
    ),
    Mutant(
        "meta-forgets-the-entry-before",
        "metaservice/rocksdb_engine.py",
        "            standing = staged.get(key) or (None if value is None else decode_record(value))\n",
        "            standing = None if value is None else decode_record(value)\n",
        "a save that carries a key twice goes backwards",
        ("contract/test_save_rules.py::test_the_entries_of_a_request_count_one_after_the_other",),
    ),
    Mutant(
        "meta-acknowledges-before-the-sync",
        "metaservice/rocksdb_engine.py",
        "        await self._syncs.submit(None)\n        return outcomes\n",
        "        return outcomes\n",
        "a power cut of the Meta Service loses what every adapter takes for clean",
        ("unit/test_meta_sync.py::test_a_change_is_answered_after_its_sync",),
    ),
)
