"""Mutants of what an OpenTelemetry collector is told."""

from tests.mutants.mutant import Mutant

_SPANS = "unit/sidecar/engine/test_flush_spans.py::"
_LINKS = "integration/test_flush_links.py::"

TELEMETRY_MUTANTS = (
    Mutant(
        "links-of-a-failed-flush-are-lost",
        "sidecar/engine/flush_spans.py",
        "    return shard in batch.get(group, ()) or dirty",
        "    return dirty",
        "the trace of a commit ends at a failed flush, and does not lead to the one that saved it",
        (f"{_SPANS}test_a_failed_flush_keeps_its_links_for_the_next_one",),
    ),
    Mutant(
        "links-of-a-refused-key-are-lost",
        "sidecar/engine/flush_spans.py",
        " or dirty.is_refused(OffsetKey(*group, shard))",
        "",
        "the trace of a commit ends where the Meta Service refused it",
        (f"{_SPANS}test_a_refused_key_keeps_its_link_and_an_acknowledged_one_does_not",),
    ),
    Mutant(
        "linked-to-any-flush",
        "sidecar/engine/flush_spans.py",
        "            if shard in batch.get(group, ()):\n",
        "            if shard:\n",
        "a flush of one group, ahead of the others, has the links of all",
        (f"{_SPANS}test_an_urgent_flush_of_a_group_takes_the_links_of_that_group",),
    ),
    Mutant(
        "links-are-not-bounded",
        "sidecar/engine/flush_spans.py",
        "        if len(self._new) >= LINKS_MAX:\n",
        "        if len(self._new) < 0:\n",
        "sampled commits fill the memory while the Meta Service is away",
        (f"{_SPANS}test_links_are_bounded_and_those_beyond_are_counted",),
    ),
    Mutant(
        "kept-links-are-not-bounded",
        "sidecar/engine/flush_spans.py",
        "            if len(self._kept) < LINKS_MAX:\n",
        "            if len(self._kept) >= 0:\n",
        "links of failed flushes fill the memory",
        (f"{_SPANS}test_links_of_groups_that_are_set_aside_are_bounded",),
    ),
    Mutant(
        "stale-links-stay",
        "sidecar/engine/flush_spans.py",
        "            elif OffsetKey(*group, shard) in dirty:\n",
        "            elif shard:\n",
        "links of keys that were handed over take the room of all later ones",
        (f"{_SPANS}test_links_of_keys_that_went_another_way_are_forgotten",),
    ),
    Mutant(
        "unsampled-is-sampled",
        "runtime/telemetry/spans.py",
        "-[0-9a-f][13579bdf]",
        "-[0-9a-f][0-9a-f]",
        "every commit of a traced caller is linked, though nobody records it",
        ("unit/runtime/telemetry/test_spans.py::test_no_other_caller_is_found",),
    ),
    Mutant(
        "offered-commits-are-not-told",
        "runtime/serving/http2/call.py",
        "call=_ToldCall if take.done else Call)",
        "call=Call)",
        "most commits over the built-in server get no link",
        (f"{_LINKS}test_a_sampled_commit_is_linked_to_the_next_flush",),
    ),
    Mutant(
        "a-stream-has-no-context",
        "sidecar/api/offset_service.py",
        "CommitStream(self._commits_of(context))",
        "CommitStream(self.commits)",
        "commits of a stream get no link",
        (f"{_LINKS}test_a_stream_has_one_context",),
    ),
)
