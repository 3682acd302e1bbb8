"""Mutants of the built-in server's way of a commit: from a read of a connection to its answers."""

from tests.mutants.mutant import Mutant

RUNS = "unit/sidecar/engine/test_fast_path_runs.py"
TURN = "unit/sidecar/engine/test_group_commit.py"
ANSWERS = "unit/sidecar/engine/test_group_commit_answers.py"

HTTP2_MUTANTS = (
    Mutant(
        "group-commit-is-acknowledged-before-its-write",
        "sidecar/ledger/store.py",
        "        self._write(writing.batch)\n",
        "        __import__('asyncio').get_event_loop().call_soon(self._write, writing.batch)\n",
        "a kill in this moment loses acknowledged commits",
        (f"{TURN}::test_what_comes_in_one_iteration_is_answered_at_its_end_in_order",),
    ),
    Mutant(
        "answered-with-the-count-of-another",
        "sidecar/api/commits.py",
        "zip(runs, counts, strict=True)",
        "zip(runs, reversed(counts), strict=True)",
        "a commit that nobody looked at is acknowledged, because another one of its group commit was stored",
        (f"{ANSWERS}::test_one_read_of_good_and_bad_calls_answers_each_as_it_deserves",),
    ),
    Mutant(
        "refused-group-commit-is-acknowledged",
        "sidecar/api/commits.py",
        "            failure = error\n",
        "            counts = [len(run) for run, _ in runs]\n",
        "on a full disk every commit is acknowledged and none is stored",
        (f"{ANSWERS}::test_what_the_disk_refuses_is_refused_to_every_caller",),
    ),
    Mutant(
        "run-counts-one-more",
        "sidecar/ledger/ledger.py",
        "                return count\n",
        "                return count + 1\n",
        "the commit that ends a run is acknowledged and not stored",
        (f"{RUNS}::test_a_run_counts_up_to_what_the_fast_path_leaves",),
    ),
    Mutant(
        "stream-answers-the-whole-run",
        "sidecar/api/commit_stream.py",
        "self._add(Reply(id=run[count - 1].id, covers=count))",
        "self._add(Reply(id=run[-1].id, covers=len(run)))",
        "a rewind, or a bad commit, is acknowledged with the plain ones before it, and then answered again",
        (f"{ANSWERS}::test_a_stream_keeps_its_order_whatever_is_between",),
    ),
    Mutant(
        "decided-by-memory-alone",
        "sidecar/ledger/ledger.py",
        "        if (one := writing.plain.get(before[2])) is not None:\n",
        '        if (one := writing.plain.get(b"")) is not None:\n',
        "a shard that goes on twice in one write: a later, lower commit stands, and the next open reports a loss",
        (f"{RUNS}::test_a_shard_may_go_on_several_times_in_a_turn",),
    ),
    Mutant(
        "counters-are-used-again",
        "sidecar/ledger/store.py",
        "        self.seq, _, self._keys, self._digest = state\n",
        "        _, _, self._keys, self._digest = state\n",
        "the flushed watermark covers commits that were never sent: a kill leaves them here for ever",
        (f"{RUNS}::test_all_runs_of_a_group_commit_are_one_write",),
    ),
    Mutant(
        "written-without-a-watermark",
        "sidecar/ledger/store.py",
        "            self._advance_watermark(self.seq)\n\n    async",
        "            pass\n\n    async",
        "a store that lost acknowledged commits reports no loss",
        (f"{RUNS}::test_all_runs_of_a_group_commit_are_one_write",),
    ),
    Mutant(
        "group-commit-is-not-in-the-digest",
        "sidecar/ledger/write_batch.py",
        "        self._digest += seq - replaced\n        self.batch.put(encoded",
        "        self.batch.put(encoded",
        "a store that lost nothing raises the alarm at its next open",
        (f"{RUNS}::test_all_runs_of_a_group_commit_are_one_write",),
    ),
    Mutant(
        "answer-is-not-sent",
        "runtime/http2/call.py",
        "            self._peer.flush_soon()  # a write is usually scheduled already, but it may have run before this\n",
        "",
        "now and then a commit is stored and its consumer waits for ever",
        (f"{ANSWERS}::test_an_answer_is_sent_when_a_flush_was_due_before_it",),
    ),
    Mutant(
        "refused-call-is-done",
        "runtime/http2/call.py",
        "        self._stream.call = self._message = self._requests = self._offered = self._task = None\n",
        "        self._task = None\n",
        "a call that is refused for its form is done all the same",
        (f"{ANSWERS}::test_a_call_of_two_messages_is_not_done",),
    ),
    Mutant(
        "one-answer-breaks-the-others",
        "sidecar/api/commits.py",
        '        except Exception:\n            log.exception("group_commit.answer_failed")\n',
        "        finally:\n            pass\n",
        "commits of other connections are stored and never answered",
        (f"{TURN}::test_an_answer_that_breaks_leaves_those_behind_it",),
    ),
    Mutant(
        "who-reads-nothing-is-read-on",
        "runtime/http2/server.py",
        "        self.can_write.clear()\n        self._stop_reading()\n",
        "        self.can_write.clear()\n",
        "a peer that sends commits and reads no answers fills the memory",
        ("model/test_slow_peers.py::test_a_peer_that_reads_nothing_is_read_no_more_and_holds_nobody_up",),
    ),
)
