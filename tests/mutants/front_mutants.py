"""Mutants of the front before a RobustMQ broker: what it acknowledges, what it repeats, and what the broker is told."""

from tests.mutants.mutant import Mutant

FRONT = "integration/test_robustmq_front.py"
RELAY = "integration/http2/test_relay.py"

FRONT_MUTANTS = (
    Mutant(
        "front-acknowledges-what-is-not-committed",
        "sidecar/front/own_calls.py",
        "                reply = await self._commits.commit(request)\n",
        "                reply = offsets_pb.CommitOffsetsReply()\n",
        "the broker forgets what it has sent, and nobody has it",
        (f"{FRONT}::test_offsets_are_answered_here_as_robustmq_answers_them",),
    ),
    Mutant(
        "front-reads-here-alone",
        "sidecar/front/own_calls.py",
        "            await core.reader.begin(wanted, ReadMode.STORE)\n",
        "            await core.reader.begin(wanted, ReadMode.MEMORY)\n",
        "a consumer begins behind what stands at RobustMQ",
        (f"{FRONT}::test_a_read_has_the_larger_of_both",),
    ),
    Mutant(
        "front-ignores-a-condition",
        "sidecar/front/own_calls.py",
        "        return {key: _offset_of(found[key]) == expected for key, expected in wanted.items()}\n",
        "        return dict.fromkeys(wanted, True)\n",
        "a save that expects another offset overwrites it",
        (f"{FRONT}::test_a_condition_is_checked_against_what_stands",),
    ),
    Mutant(
        "front-names-a-leader",
        "sidecar/front/own_calls.py",
        "        text = text.replace(words, others_)\n",
        "        text = text.replace(words, words)\n",
        "the broker remembers RobustMQ's leader, and goes past the front",
        (f"{FRONT}::test_a_refusal_never_names_a_leader",),
    ),
    Mutant(
        "broker-is-not-told-of-resets",
        "sidecar/front/notices.py",
        "                self.add(group)\n\n    def add(",
        "                pass\n\n    def add(",
        "the broker answers with the offset from before the reset",
        (f"{FRONT}::test_a_reset_reaches_the_broker",),
    ),
    Mutant(
        "relay-repeats-what-may-have-begun",
        "runtime/serving/http2/relay.py",
        "        if code == Code.REFUSED_STREAM and self._kept is not None and not self._answering:\n",
        "        if self._kept is not None and not self._answering:\n",
        "a call is done twice, at two nodes",
        (f"{RELAY}::test_what_a_node_may_have_begun_is_not_repeated_at_another",),
    ),
    Mutant(
        "relay-reads-on-for-a-slow-client",
        "runtime/serving/http2/relay.py",
        "up and self._owed_down and not stream.out and self._peer.can_write.is_set():\n",
        "up and self._owed_down:\n",
        "a client that does not read fills the adapter's memory with a node's answer",
        (f"{RELAY}::test_a_reader_that_stops_stops_the_node",),
    ),
)
