"""The bugs of backups, and of stores that were put back. See mutants.py."""

from tests.mutants.mutant import Mutant

_CHECKPOINT = "unit/runtime/durable/test_checkpoint.py::"
_DIRECTORY = "unit/cli/backup/test_directory.py::"
_KILLS = "durability/test_backup.py::"
_RESTORE_KILLED = _KILLS + "test_a_restore_that_is_killed_is_no_store_yet_and_can_be_repeated"
_META_BACK = _KILLS + "test_a_meta_service_that_was_put_back_gets_what_came_since_from_the_adapters"
_ADAPTER_BACK = _KILLS + "test_an_adapter_that_was_put_back_goes_back_in_nothing"

BACKUP_MUTANTS = (
    Mutant(
        "a-file-is-known-by-name-and-size",
        "runtime/durable/checkpoint.py",
        'if had and hashlib.file_digest(file, "sha256").digest() == had.sha256:',
        "if had:",
        "a restored store numbers its files again: a backup gets a table of another one",
        (_CHECKPOINT + "test_a_file_is_known_by_its_content",),
    ),
    Mutant(
        "a-backup-is-not-opened-before-it-gets-its-name",
        "cli/backup/directory.py",
        "        store_id, seq, rows = _check(store.kind, database, store.seq)\n",
        "        store_id, seq, rows = store.id, store.seq, 0\n",
        "half of a store is kept as a backup",
        (_DIRECTORY + "test_what_was_not_received_as_it_was_sent_is_no_backup",),
    ),
    Mutant(
        "a-checkpoint-is-made-for-nobody",
        "runtime/durable/checkpoint.py",
        "            if not waited_for:\n",
        "            if waited_for is None:\n",
        "behind a killed command the files of a backup stay, and the next one fails",
        (_CHECKPOINT + "test_one_whose_caller_has_gone_is_not_made",),
    ),
    Mutant(
        "what-is-left-of-a-killed-backup-stays",
        "runtime/durable/checkpoint.py",
        "        self._working = threading.Lock()\n        self._remove()\n",
        "        self._working = threading.Lock()\n",
        "a killed process leaves links to tables that RocksDB deletes: the disk fills",
        (_KILLS + "test_backups_under_load_are_whole_and_a_kill_in_the_middle_leaves_those_before",),
    ),
    Mutant(
        "a-half-restored-adapter-begins-empty",
        "sidecar/ledger/disk.py",
        "                refuse_unfinished(path)\n",
        "",
        "an adapter that is started after a killed restore makes an empty store in its place",
        (_RESTORE_KILLED,),
    ),
    Mutant(
        "a-half-restored-meta-service-begins-empty",
        "metaservice/rocksdb/store.py",
        "    refuse_unfinished(path)\n",
        "",
        "the same of a Meta Service, which all adapters then push to",
        (_RESTORE_KILLED,),
    ),
    Mutant(
        "the-watermark-of-a-restore-is-a-store",
        "runtime/durable/backups.py",
        "        if there and not (fresh.exists() and there == WATERMARK):\n",
        "        if there:\n",
        "a restore that was killed before its last step cannot be repeated",
        (_RESTORE_KILLED,),
    ),
    Mutant(
        "a-restored-meta-service-is-the-same-store",
        "metaservice/rocksdb/restore.py",
        "incarnation=before.incarnation + 1, ",
        "",
        "adapters have only the revision to go by, which others may have passed",
        (_META_BACK,),
    ),
    Mutant(
        "a-restored-meta-service-gives-revisions-again",
        "metaservice/rocksdb/restore.py",
        "        meta.put(LAST_REVISION,",
        "        b'' and meta.put(LAST_REVISION,",
        "a compare-and-set of before the restore meets another entry",
        (_META_BACK,),
    ),
    Mutant(
        "a-restored-adapter-has-lost-nothing",
        "sidecar/ledger/store.py",
        "        restored = Restored.decode(self._disk.get(RESTORED))\n",
        "        restored = None\n",
        "nobody is told, and write counters that were used come again",
        (_ADAPTER_BACK,),
    ),
)
