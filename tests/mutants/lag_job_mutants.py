"""Mutants of the lag job's driver: batches, manifests, buckets, the lock."""

from tests.mutants.mutant import Mutant

_FILES = "pipeline/test_lag_files.py::"
_BATCH = "unit/pipeline/test_lag_batch.py::"
_LOCK = "pipeline/test_lag_lock.py::"

LAG_JOB_MUTANTS = (
    Mutant(
        "the-replaced-files-go-before-the-manifest",
        "pipeline/lag/publisher.py",
        "self._delete_unlisted(info.batch, info, again)",
        "self._delete_unlisted(info.batch, info)",
        "a reader of the manifest that stands finds its files gone",
        (f"{_FILES}test_a_complete_batch_that_is_made_again_stays_readable_until_it_is_replaced",),
    ),
    Mutant(
        "another-stream-s-batch-counts-as-done",
        "pipeline/lag/publisher.py",
        "return info if plan and info.plan == plan else None",
        "return info",
        "after the checkpoint was lost, segments are left out for good",
        (f"{_FILES}test_a_batch_that_was_made_complete_before_the_crash_is_done",),
    ),
    Mutant(
        "a-manifest-without-the-lock",
        "pipeline/lag/publisher.py",
        "        self._check()\n",
        "",
        "a driver that was taken over replaces what the new one wrote",
        (f"{_FILES}test_a_driver_that_has_lost_its_lock_writes_no_manifest",),
    ),
    Mutant(
        "only-the-newest-state-is-kept",
        "pipeline/lag/publisher.py",
        "self._complete[-NEWEST - 1 : -NEWEST]",
        "self._complete[-NEWEST:-1]",
        "a batch that is repeated has no state to begin from",
        (f"{_FILES}test_what_is_as_large_as_the_fleet_is_kept_for_two_batches_and_for_its_readers",),
    ),
    Mutant(
        "shards-go-while-they-are-read",
        "pipeline/lag/publisher.py",
        "self._superseded[0][0] <= self._clock()",
        "self._superseded[0][0] <= self._clock() + READERS_S",
        "a report that takes longer than two batches fails in the middle",
        (f"{_FILES}test_what_is_as_large_as_the_fleet_is_kept_for_two_batches_and_for_its_readers",),
    ),
    Mutant(
        "a-bucket-s-state-goes-to-all-its-children",
        "pipeline/lag/stages.py",
        "return part if len(work.state) == work.buckets else parts.split(part, work.buckets)[bucket]",
        "return part",
        "when buckets are split, keys are in two of them",
        (f"{_BATCH}test_batches_and_buckets_do_not_change_the_tables",),
    ),
    Mutant(
        "files-of-one-name",
        "pipeline/lag/stages.py",
        "{bucket:05}-{secrets.token_hex(8)}{suffix}",
        "{bucket:05}{suffix}",
        "a task that is repeated replaces what a manifest lists",
        (f"{_BATCH}test_a_batch_that_is_repeated_has_the_same_bytes_and_replaces_the_files",),
    ),
    Mutant(
        "buckets-are-believed",
        "pipeline/lag/batch.py",
        " or any(bucket.told != told for bucket in buckets)",
        "",
        "a bucket that has missed a task's rows is published",
        (f"{_BATCH}test_buckets_that_have_not_heard_of_the_same_rows_are_not_published",),
    ),
    Mutant(
        "a-lock-that-all-have",
        "pipeline/lag/lock.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        "two drivers write one directory",
        (f"{_LOCK}test_a_second_driver_is_refused_and_a_dead_one_does_not_block_the_next",),
    ),
    Mutant(
        "a-lease-is-taken-while-it-is-renewed",
        "pipeline/lag/lock.py",
        "if now and now != found:",
        "if now and now == found:",
        "two drivers write one object store, and a dead one's lease blocks it for ever",
        (f"{_LOCK}test_behind_a_url_a_lease_that_is_renewed_refuses_others",),
    ),
)
