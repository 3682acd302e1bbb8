"""Mutants of the data sources: journals whose mount is lost, what filters leave out, streams into the Meta Service."""

from tests.mutants.mutant import Mutant

_SEGMENT = "unit/pipeline/test_journal_segment.py::"
_STREAM = "unit/pipeline/test_journal_stream.py::"
_CREDENTIALS = "unit/pipeline/test_journal_credentials.py::"
_PRUNING = "unit/pipeline/test_journal_pruning.py::"

JOURNAL_READ_MUTANTS = (
    Mutant(
        "a-task-says-that-a-segment-is-gone",
        "pipeline/journal/segment.py",
        "raise MissingSegmentError(_MISSING.format(path=segment.path, host=socket.gethostname())) from error",
        "raise UnreadableError(GONE) from error",
        "one worker without the mount makes all rows of a batch rejects, and the offset advances",
        (f"{_SEGMENT}test_a_segment_that_a_task_does_not_find_fails_the_task",),
    ),
    Mutant(
        "a-mount-that-is-away-is-a-bad-disk",
        "pipeline/journal/segment.py",
        "error.errno in _OF_FILE and _is_listed(files, path)",
        "error.errno in _OF_FILE",
        "an NFS server that is away makes rejects",
        (f"{_SEGMENT}test_a_storage_that_is_away_is_not_taken_for_a_bad_segment",),
    ),
    Mutant(
        "a-root-that-is-away-hides-nothing",
        "pipeline/journal/plan.py",
        "if hiding := listing.hiding(segment.broker):",
        "if hiding := dict[str, str]():",
        "a lost mount of the driver makes rejects of the batch that is run again",
        (f"{_STREAM}test_a_lost_mount_of_the_driver_loses_no_row",),
    ),
    Mutant(
        "another-broker-s-directory-hides-segments",
        "pipeline/journal/listing.py",
        "or found[1] == mine",
        "or True",
        "a stream stops for good when one broker's directory cannot be read, and a segment of another is gone",
        (f"{_STREAM}test_a_segment_is_gone_only_if_no_directory_may_hide_it",),
    ),
    Mutant(
        "credentials-in-the-column",
        "pipeline/journal/listing.py",
        "return str(Place(self.root) / self.relative)",
        "return (Place(self.root) / self.relative).url",
        "the secret of a bucket is in every row",
        (f"{_CREDENTIALS}test_tasks_read_the_segments_and_the_column_names_them_without_credentials",),
    ),
    Mutant(
        "a-day-ends-at-its-begin",
        "pipeline/journal/pruning.py",
        'return self._may_pass("at", begin, begin + _DAY - _TICK)',
        'return self._may_pass("at", begin, begin)',
        "a filter on a time of the day finds no rows of that day",
        (f"{_PRUNING}test_a_row_that_passes_is_never_left_out",),
    ),
    Mutant(
        "a-stream-s-rows-get-the-time-of-its-start",
        "pipeline/offsets/writer.py",
        "return _merged(self._options, iterator, None)",
        "return _merged(self._options, iterator, time.time_ns() // 1_000_000)",
        "a batch that is run again undoes a reset that was made since",
        ("pipeline/test_source_stream.py::test_a_stream_has_to_say_when_its_rows_were_committed",),
    ),
)
