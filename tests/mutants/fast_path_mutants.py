"""Mutants of the way that most commits take."""

from tests.mutants.mutant import Mutant

FAST_PATH_MUTANTS = (
    Mutant(
        "forward-is-not-dirty",
        "committer.py",
        "            for group, held in writing.forward.items():\n                self._dirty.add(group, held, now)\n",
        "",
        "most commits are never sent to the Meta Service, but by a recovery",
        ("unit/test_columns.py::test_a_column_does_what_an_entry_does",),
    ),
    Mutant(
        "forward-over-a-tombstone",
        "committer.py",
        "                if newer and live and (",
        "                if newer and (",
        "a commit below an expired offset is not stored, or stored in the old epoch",
        ("unit/test_columns.py::test_a_tombstone_is_not_gone_over_on_the_short_way",),
    ),
    Mutant(
        "forward-in-any-epoch",
        "committer.py",
        " and (not knows or knows == epoch):\n",
        ":\n",
        "a commit in flight undoes a reset, on the way that most commits take",
        ("unit/test_columns.py::test_a_column_does_what_an_entry_does",),
    ),
    Mutant(
        "forward-begins-anywhere",
        "committer.py",
        "            elif loaded and knows <= FIRST_EPOCH:\n",
        "            elif knows <= FIRST_EPOCH:\n",
        "the first commit of a key that stands in a higher epoch elsewhere is acknowledged and lost",
        ("unit/test_columns.py::test_a_column_does_what_an_entry_does",),
    ),
    Mutant(
        "forward-is-not-counted",
        "writing.py",
        "        self._keys += new\n",
        "",
        "a store that lost nothing raises the alarm at its next open",
        ("unit/test_columns.py::test_several_groups_go_forward_in_one_batch",),
    ),
    Mutant(
        "in-memory-before-the-write",
        "cache.py",
        "        self._write(writing.batch)\n        self.seq,",
        "        self._remember(changes, writing)\n        self._write(writing.batch)\n        self.seq,",
        "a commit that was refused for a full disk stands for the next one, which is acknowledged without a write",
        ("unit/test_cache.py::test_a_refused_write_leaves_nothing_in_memory",),
    ),
    Mutant(
        "removed-stays-in-memory",
        "cache.py",
        "                self._hot.discard(key)\n",
        "                pass\n",
        "a shard that was handed over is read here as it was",
        ("unit/test_hot.py::test_the_cache_answers_from_memory_what_is_in_the_store",),
    ),
    Mutant(
        "one-reply-across-a-refusal",
        "server.py",
        "        if _is_plain(answer) and _is_plain(last):\n",
        "        if _is_plain(answer) and isinstance(last, Reply):\n",
        "a refused commit of a stream is acknowledged with the one behind it",
        ("unit/test_stream_replies.py::test_what_is_not_plain_has_a_reply_of_its_own",),
    ),
)
