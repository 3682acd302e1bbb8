"""Mutants of what is bounded: the sizes of requests, the files of a configuration, the connections of the console."""

from tests.mutants.mutant import Mutant

_SIZES = "unit/runtime/test_request_sizes.py::"
_SOURCE = "unit/sidecar/lag/test_scaler_source.py::"
_READING = "unit/runtime/test_reading.py::"
_RELOADING = "unit/runtime/test_reloading.py::"
_SCALING = "unit/fleet/test_scaling.py::"

BOUNDS_MUTANTS = (
    Mutant(
        "methods-without-lists-take-4-mib",
        "runtime/request_sizes.py",
        "        return self.most if path in self.large else SMALL\n",
        "        return self.most\n",
        "a call without a token makes two million objects of a request before anybody looks at it",
        (f"{_SIZES}test_a_method_without_lists_takes_64_kib",),
    ),
    Mutant(
        "fields-of-large-requests-are-not-counted",
        "runtime/request_sizes.py",
        "        left -= 1\n",
        "        left -= 0\n",
        "4 MiB of empty groups hold the event loop for half a second and take 240 MiB",
        (f"{_SIZES}test_fields_of_a_large_request_are_counted_before_it_is_parsed",),
    ),
    Mutant(
        "names-within-groups-are-not-counted",
        "runtime/request_sizes.py",
        "                left = _count(data, at, min(at + size, end), shape[tag], left)\n",
        "                pass\n",
        "a single group with two million empty names holds up all commits",
        (f"{_SIZES}test_names_in_groups_are_counted",),
    ),
    Mutant(
        "longer-tags-pass-the-count",
        "runtime/request_sizes.py",
        "            tag, at = _number(data, at - 1)\n",
        "            return left\n",
        "the same request with its numbers written longer is not counted",
        (f"{_SIZES}test_fields_of_a_large_request_are_counted_before_it_is_parsed",),
    ),
    Mutant(
        "scaler-splits-topics-before-it-counts-them",
        "fleet/scaling.py",
        '    few = value.count(",") < TOPICS_MAX  # before anything is made of them\n',
        "    few = True\n",
        "a trigger makes any number of topics",
        (f"{_SCALING}test_metadata_that_cannot_be_right_name_the_key_and_what_it_may_be",),
    ),
    Mutant(
        "scaler-knows-topics-by-their-label-alone",
        "fleet/scaling.py",
        "    return topics_of(shard.lag.shard, shard.lag.topic)\n",
        "    return {shard.lag.topic}\n",
        "a trigger for the topic of shard orders/0 has no metric, and keeps its consumers for ever",
        (f"{_SCALING}test_a_topic_counts_by_the_name_of_its_shard",),
    ),
    Mutant(
        "scaler-notes-what-it-saw-behind-the-pause",
        "sidecar/lag/scaler_source.py",
        "            await anyio.sleep(self._pause_s)\n",
        "            await anyio.sleep(self._pause_s)\n            seen = self._seen(key)\n",
        "what changes within a second of a look is told 30 seconds later",
        (f"{_SOURCE}test_a_change_after_the_look_wakes_although_it_came_in_the_pause",),
    ),
    Mutant(
        "a-file-that-is-cut-off-is-taken",
        "runtime/reloading.py",
        "            if not allow_defaults:\n",
        "            if False:\n",
        "an empty file at SIGHUP turns the admin token off, and sends offsets to the default endpoint",
        (f"{_RELOADING}test_a_file_that_seems_to_be_cut_off_is_refused",),
    ),
    Mutant(
        "fewer-tables-of-a-list-are-taken",
        "runtime/config.py",
        '            found[f"{prefix}{name}"] = len(value) if tables else 1\n',
        '            found[f"{prefix}{name}"] = 1\n',
        "a file that is cut off among its policies acknowledges commits that were to be written through",
        (f"{_RELOADING}test_a_file_that_seems_to_be_cut_off_is_refused",),
    ),
    Mutant(
        "a-last-line-without-its-end-is-taken",
        "runtime/config.py",
        "            if self.ends_in_newline and not later.ends_in_newline:",
        "            if False:",
        "a number that has lost its last digits is in force",
        (f"{_RELOADING}test_a_file_that_seems_to_be_cut_off_is_refused",),
    ),
    Mutant(
        "any-kind-of-file-is-read",
        "runtime/reading.py",
        "        if not stat.S_ISREG(found.st_mode):\n",
        "        if False:\n",
        "a device without an end fills the memory",
        (f"{_READING}test_only_regular_files_are_read",),
    ),
    Mutant(
        "reads-that-hang-pile-up",
        "runtime/reading.py",
        "        if self._last and not self._last.done():\n",
        "        if False:\n",
        "a mount that hangs costs a thread every 5 seconds",
        (f"{_READING}test_who_waits_for_a_read_that_hangs_is_told",),
    ),
    Mutant(
        "a-read-that-hangs-keeps-the-process",
        "runtime/reading.py",
        "daemon=True",
        "daemon=False",
        "SIGTERM does not end a process whose mount hangs",
        (f"{_READING}test_a_read_that_hangs_does_not_keep_a_process_from_its_end",),
    ),
)
