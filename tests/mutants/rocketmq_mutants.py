"""Mutants of the bridge to a RocketMQ broker."""

from tests.mutants.mutant import Mutant

BRIDGE = "integration/test_bridge.py"

ROCKETMQ_MUTANTS = (
    Mutant(
        "the-bridge-does-not-watch-the-store",
        "sidecar/bridge/store_changes.py",
        "            self.look_at(news.keys)\n",
        "",
        "a reset at the adapter reaches the broker late, by the look at the whole store, and commits meanwhile come first",
        (f"{BRIDGE}::test_a_reset_is_passed_on_without_a_look_at_the_whole_store",),
    ),
    Mutant(
        "an-offset-of-another-log-is-given",
        "sidecar/bridge/giving.py",
        "        if gift.stored.offset > bounds.high:\n",
        "        if gift.stored.offset < 0:\n",
        "a broker on an empty disk skips messages that nobody has read",
        (f"{BRIDGE}::test_an_offset_beyond_the_end_of_the_log_is_not_given",),
    ),
    Mutant(
        "a-restart-is-not-seen",
        "sidecar/bridge/bridge.py",
        "        same_life = known and self._marks.boot_ms == identity.boot_ms\n",
        "        same_life = known\n",
        "what a killed broker lost is lost here as well: it looks like a reset",
        (f"{BRIDGE}::test_a_broker_that_was_killed_gets_back_what_it_lost",),
    ),
    Mutant(
        "a-rewind-leaves-no-ceiling",
        "sidecar/bridge/bridge.py",
        "            if stored and stored.offset <= bounds.high:\n",
        "            if stored and stored.offset < 0:\n",
        "a reset at a broker that is killed before it wrote its file is undone",
        (f"{BRIDGE}::test_a_reset_at_the_broker_outlives_its_kill",),
    ),
    Mutant(
        "a-slave-is-followed",
        "rocketmq/broker.py",
        "        return self.role == SLAVE\n",
        "        return self.role == SLAVE.lower()\n",
        "old copies of a slave rewind what its master's sidecar has committed",
        (f"{BRIDGE}::test_a_slave_is_not_followed_until_it_is_the_master",),
    ),
    Mutant(
        "a-table-without-offsets-is-empty",
        "rocketmq/offset_table.py",
        "    if b'\"offsetTable\"' not in body:",
        "    if not body:",
        "one strange answer deletes all offsets",
        ("unit/rocketmq/test_offset_table.py::test_a_torn_table_changes_nothing",),
    ),
    Mutant(
        "any-length-is-read",
        "rocketmq/frames.py",
        "    if not LENGTH.size <= length <= MAX_FRAME_BYTES:\n",
        "    if not LENGTH.size <= length:\n",
        "whatever answers on the port fills the memory",
        ("unit/rocketmq/test_frames.py::test_a_length_that_no_broker_sends_is_refused_before_anything_is_read",),
    ),
    Mutant(
        "fields-are-signed-as-they-come",
        "rocketmq/signing.py",
        "for name in sorted(named)",
        "for name in named",
        "no broker with an ACL accepts a request",
        ("unit/rocketmq/test_signing.py::test_a_request_is_signed_as_rocketmq_signs_it",),
    ),
    Mutant(
        "an-export-counts-nothing",
        "formats/rocketmq_json.py",
        '{"counter": now_ms, "stateVersion"',
        '{"counter": 0, "stateVersion"',
        "a broker that is switched to RocksDB ignores our consumerOffset.json: all groups start as new",
        ("unit/formats/test_rocketmq.py::test_a_brokers_file_has_a_counter_that_no_broker_has_reached",),
    ),
    Mutant(
        "a-number-below-0-is-not-plain",
        "rocketmq/offset_table.py",
        """:\\{([0-9:,"-]*+)""",
        """:\\{([0-9:,"]*+)""",
        "one committed -1 sends each poll of a broker's whole table through the slow parser",
        ("unit/rocketmq/test_offset_table.py::test_a_committed_number_below_0_is_no_offset_and_needs_no_parser",),
    ),
)
