"""The bugs that checks found: what was wrong, the commit that fixed it, and the check that finds it again.

The most severe come first. The number of a bug is its place, from 1 on. After an addition draw the page again. `git log` has the
rest of each story.
"""

from enum import Enum
from typing import NamedTuple


class Severity(Enum):
    """What the bug did to a user."""

    LOSS = "offsets lost, taken back or skipped"
    REFUSED = "work refused for ever, or a store that does not open"
    HELD_UP = "a process that ends, hangs or is held up"
    OPEN = "something told or opened to whom it is not for"
    WRONG = "a wrong answer, display or report"


class Planted(NamedTuple):
    """Takes the decisive lines of a fix back: in this file this text, which is there once, becomes the other one."""

    file: str
    text: str
    wrong: str


class Bug(NamedTuple):
    """`fix`: the commit. `test`: pytest's name of the check at `after` (empty: `fix`); empty if only `command` finds it.

    On the commit before `fix` with the tests of `after`, `test` fails; on `after` it passes. Where the check needs an interface
    that came with the fix, or later, the bug is `planted` at `after`, where it fails. A `command` stands where the check is none
    of pytest's. `found_by`: where the history says so.
    """

    text: str
    fix: str
    test: str = ""
    after: str = ""
    command: str = ""
    found_by: str = ""
    planted: Planted | None = None


LATER = "237f465"  # a commit with checks of bugs whose fixes are in files that have other names by now
LATEST = "f157ff29"  # one whose checks fail when a fix is taken back there, although they pass on the commit before the fix
UNIT, INTEGRATION, DURABILITY = "tests/unit", "tests/integration", "tests/durability"

LOSS = (
    Bug(
        "The journal's source took a lost mount for segments that are gone, and went on past their rows",
        "a3f9fab",
        f"{UNIT}/pipeline/test_journal_stream.py::test_a_lost_mount_of_the_driver_loses_no_row",
        LATER,
        planted=Planted(
            "adapter/pipeline/journal/plan.py", "if hiding := listing.hiding(segment.broker):", "if hiding := dict[str, str]():"
        ),
    ),
    Bug(
        "A Meta Service that had lost offsets went unnoticed when the answer to an adapter's report of its store got lost",
        "fe06cfa",
        f"{UNIT}/test_meta_watch.py::test_a_report_whose_answer_got_lost_does_not_hide_the_loss",
    ),
    Bug(
        "An adapter that was stopped for longer than tombstones are kept pushed its own, and buried what was committed since",
        "6a3413c",
        f"{UNIT}/sidecar/engine/test_recovery.py::test_an_old_tombstone_that_the_meta_service_has_forgotten_hides_nothing",
        found_by="the model",
    ),
    Bug(
        "On a machine that was suspended for as long, a read took such a tombstone up, and any load sent it over what began anew",
        "b046e3e",
        "tests/model/test_forgotten.py::test_a_tombstone_of_an_adapter_that_runs_hides_nothing",
        found_by="the model",
    ),
    Bug(
        "RobustMQ: behind a full disk a written-through commit was saved over the larger one that had not been stored here",
        "b5abba9",
        f"{UNIT}/sidecar/engine/test_policies.py::test_what_was_saved_and_not_stored_is_not_lowered",
        after="9ca7631",
        found_by="the model",
    ),
    Bug(
        "An older copy of the Meta Service's store that was put back went unnoticed once others had written to it",
        "eea184b",
        f"{DURABILITY}/test_meta_restored.py::test_a_copy_that_others_have_written_to_since_is_noticed",
    ),
    Bug(
        "A store that was moved to the path of one that had just gone was damaged when that one was closed",
        "a67fad5",
        f"{UNIT}/runtime/test_rocks.py::test_another_store_at_the_path_is_left_as_it_is",
        LATER,
        planted=Planted("adapter/runtime/rocks.py", 'db = Rdict(f"{_DESCRIPTORS}/{directory}", ', "db = Rdict(str(path), "),
    ),
    Bug(
        "After a repair the Meta Service gave revisions of metadata a second time: a compare-and-set of the past succeeded",
        "af65b13",
        f"{UNIT}/test_meta_store.py::test_no_revision_of_the_metadata_is_given_twice_after_a_loss",
    ),
    Bug(
        "`meta repair` without enough file descriptors left out tables that it could not open",
        "2cab7bf",
        f"{UNIT}/test_meta_store.py::test_a_repair_without_file_descriptors_leaves_nothing_out",
    ),
    Bug(
        "An answer of the Meta Service that did not fit the save marked offsets as saved",
        "a27a66f",
        f"{DURABILITY}/test_flush_faults.py::test_an_answer_that_cannot_be_about_the_save_leaves_everything_dirty",
    ),
    Bug(
        "What was only read before a failover was remembered as what a server without epochs has: its next save overwrote others",
        "83d504d",
        f"{UNIT}/meta/test_epochless.py::test_what_was_only_read_is_not_remembered_as_what_stands",
    ),
    Bug(
        "A shard that was handed over during a recovery's comparison came back with an old value",
        "72e6fe8",
        f"{UNIT}/sidecar/engine/test_recovery.py::test_what_is_removed_during_a_comparison_does_not_come_back",
        LATER,
        planted=Planted(
            "adapter/sidecar/engine/recovery.py",
            "Load((), entries, piece.forgets)",
            "Load((), entries, self._committer.loaded.forgets)",
        ),
    ),
    Bug(
        "Behind a failed sync a later one was taken as proof that everything before it is on the disk",
        "b44e1d2",
        f"{UNIT}/sidecar/storage/test_store.py::test_a_sync_behind_a_failed_one_proves_nothing",
        LATER,
        planted=Planted(
            "adapter/sidecar/storage/store.py",
            "        self._check_syncs()  # one that succeeds behind one that failed proves nothing\n",
            "",
        ),
    ),
    Bug(
        "A retry of refused offsets replaced newer values that were in flight",
        "5063da3",
        f"{UNIT}/test_flush_faults.py::test_a_retry_of_what_was_refused_does_not_replace_a_newer_value_in_flight",
        "03256be",
    ),
    Bug(
        "A rewind before the end of the recovery reached a server without epochs, over what others had committed",
        "84b8705",
        f"{INTEGRATION}/test_early_commits.py::test_a_server_without_epochs_gets_no_rewind_before_the_recovery",
    ),
    Bug(
        "A broker that lost its groups with its offsets got the groups back without offsets",
        "459199c",
        f"{INTEGRATION}/test_bridge.py::test_a_broker_that_lost_its_groups_gets_them_with_their_offsets",
    ),
    Bug(
        "A broker that was asked in its first second after a kill did not get back what it had lost",
        "2529004",
        f"{INTEGRATION}/test_bridge.py::test_a_broker_in_its_first_second_gets_it_back_as_well",
        LATER,
        planted=Planted("adapter/rocketmq/broker.py", "if error.code == SYSTEM_ERROR:", "if error.code == -SYSTEM_ERROR:"),
    ),
    Bug(
        "Beside a RocketMQ broker of V2 the bridge took offsets of light topics backwards with each restart of broker or sidecar",
        "4449dd60",
        f"{INTEGRATION}/test_bridge.py::test_a_light_queue_that_the_table_does_not_tell_is_not_taken_back",
        found_by="real brokers",
        planted=Planted(
            "adapter/sidecar/bridge/untold.py", "return self._is_v2 and topic.startswith(LMQ)", "return self._is_v2 and not topic"
        ),
    ),
    Bug(
        "An offset that a consumer committed while the bridge was about to give an older one to the broker was overwritten by it",
        "4449dd60",
        f"{INTEGRATION}/test_bridge.py::test_an_offset_that_a_consumer_commits_before_it_is_given_is_not_lowered",
        found_by="a review",
        planted=Planted("adapter/sidecar/bridge/giving.py", "if gift.act is Act.GIVE and await", "if gift.act is None and await"),
    ),
    Bug(
        "A query that made a RocketMQ broker forget a group's offsets deleted them in the adapter and the Meta Service as well",
        "2d783da5",
        f"{INTEGRATION}/test_bridge.py::test_what_a_query_makes_the_broker_forget_is_kept_and_given_back",
        found_by="real brokers",
        planted=Planted(
            "adapter/sidecar/bridge/deletes.py",
            "(ripe.deleted if looks.ordered else ripe.forgotten).append(key)",
            "ripe.deleted.append(key)",
        ),
    ),
    Bug(
        "So did the plugin; and that of a broker that had just become a slave deleted what its copy lacked",
        "6adc0278",
        command="mvn -q -f integrations/rocketmq/pom.xml test -Dtest=MirrorTest",
        found_by="real brokers, and a review",
    ),
    Bug(
        "The plugin took an offset of another log when a consumer asked for one: on an empty disk messages were skipped",
        "3d66e60",
        command="mvn -q -f integrations/rocketmq/pom.xml test -Dtest=MirrorTest",
        found_by="`make demo-rocketmq`",
    ),
    Bug(
        "A group that expired while a written-through commit was on its way forgot its generation: an older one could commit",
        "1b4ada8",
        f"{UNIT}/sidecar/engine/test_fencing.py::test_a_generation_stands_though_an_expiry_forgot_it_during_the_save",
        found_by="the model",
    ),
    Bug(
        "A read that began while a hand-over of its group ended at the same adapter was told that there is no offset",
        "e702f903",
        f"{UNIT}/sidecar/engine/test_reads.py::test_what_is_removed_behind_the_load_of_a_read_is_not_absent",
        found_by="the model",
    ),
    Bug(
        "A commit that was flushed while a page of its expired group was read took the group's generation with it",
        "0d2f2f92",
        f"{UNIT}/sidecar/engine/test_expiry.py::test_a_commit_that_is_flushed_while_a_page_is_read_stays",
        found_by="an audit",
    ),
    Bug(
        "A stored key that became dirty during a flush counted as flushed: a stop after a kill left it out",
        "0d2f2f92",
        f"{UNIT}/sidecar/engine/test_flusher.py"
        "::test_the_flushed_watermark_does_not_pass_a_stored_key_that_became_dirty_during_the_flush",
        found_by="an audit",
    ),
    Bug(
        "A commit that was written through while the sweep read a page of its expired group was forgotten here, with the "
        "generation",
        "747ea832",
        f"{UNIT}/sidecar/engine/test_expiry.py::test_a_written_through_commit_while_a_page_is_read_stays",
        found_by="the model",
    ),
    Bug(
        "Bridge: a reset that the broker refused when they met was forgotten, and the next commit undid it",
        "78f1eb83",
        f"{INTEGRATION}/test_bridge.py::test_a_reset_that_is_refused_at_the_meeting_is_offered_again",
        found_by="a review",
    ),
    Bug(
        "etcd: an expiry that a rebalance interrupted left tombstones over a part of the group",
        "8ca1a129",
        f"{UNIT}/metaservice/etcd/test_rebalancing.py::test_an_expiry_that_a_rebalance_interrupts_is_taken_back_where_the_offsets_are_now",
        found_by="a review",
    ),
    Bug(
        "A reset that nobody had taken up was lost when a commit interrupted the expiry of its group",
        "aa6b3794",
        f"{UNIT}/sidecar/engine/test_expiry.py::test_a_reset_that_nobody_took_up_comes_back_with_its_group",
        found_by="a review",
    ),
    Bug(
        "Bridge: idle groups expired where a reload had made the retention shorter",
        "550d4654",
        f"{INTEGRATION}/test_bridge.py::test_an_idle_group_does_not_expire_behind_a_reload",
        found_by="a review",
    ),
    Bug(
        "Bridge: one group that is written through kept others out of the store",
        "72051ed5",
        f"{INTEGRATION}/test_bridge.py::test_a_group_that_is_written_through_keeps_no_other_from_the_store",
        found_by="a review",
    ),
    Bug(
        "A reset or clone that met the expiry of its group was taken up by nobody: a running consumer's commit undid it",
        "d0b98e4a",
        f"{UNIT}/sidecar/engine/test_expiry.py::test_a_reset_of_a_group_that_is_put_back_stays_held",
        found_by="the model",
    ),
    Bug(
        "A kill between an expiry and what takes it back lost a reset that nobody had taken up",
        "d0b98e4a",
        f"{DURABILITY}/test_expiry.py::test_a_kill_between_an_expiry_and_what_takes_it_back_loses_no_reset",
        "59ecde13",
        found_by="a review",
    ),
    Bug(
        "A commit that waited for its group undid a reset that was made, and taken up by a reader, while it waited",
        "013077ce",
        f"{UNIT}/sidecar/engine/test_holds.py::test_a_commit_that_waited_does_not_undo_what_was_done_and_taken_up_meanwhile",
        found_by="the model",
    ),
    Bug(
        "After a loss, a comparison that began again left keys out behind a new group: what was larger here was not sent",
        "fef719d9",
        f"{UNIT}/sidecar/engine/test_comparison.py::"
        "test_a_group_that_comes_meanwhile_hides_no_key_from_a_comparison_that_begins_again",
        found_by="the model",
    ),
    Bug(
        "RobustMQ: an offset that was stored beside a refused one, written through, was taken back by the next commit",
        "d0b98e4a",
        f"{UNIT}/meta/test_epochless.py::test_a_commit_that_was_refused_for_another_shard_does_not_take_this_one_back",
        found_by="the model",
    ),
    Bug(
        "A consumerOffset.json that was exported had no counter: a broker with RocksDB ignored it, and all groups started as new",
        "86af43aa",
        f"{UNIT}/formats/test_rocketmq.py::test_a_brokers_file_has_a_counter_that_no_broker_has_reached",
        found_by="a real peer",
    ),
    Bug(
        "A broker with a single store took an export over in place of newer offsets: 99 became 15",
        "7eb60822",
        "tests/acceptance/test_export.py::test_an_export_does_not_go_back_behind_the_store_beside_it",
        found_by="a real peer",
        planted=Planted("adapter/cli/export_run.py", "        _check_beside(to, sorter)\n", ""),
    ),
    Bug(
        "The example began beyond the end of its stream, and would have skipped what was written until there",
        "83f4bf0f",
        "tests/acceptance/test_example.py::test_a_position_beyond_the_end_of_the_stream_ends_the_consumer",
        found_by="a real peer",
        planted=Planted("examples/consumer.py", "    if start > last + 1:\n", "    if start > last + 10**9:\n"),
    ),
)

REFUSED = (
    Bug(
        "A flipped bit in a table with nothing but bookkeeping stopped the Meta Service, and a repair found nothing to repair",
        "a2e4b9d",
        f"{UNIT}/metaservice/rocksdb/test_store.py::test_every_bit_of_the_tables_counts",
    ),
    Bug(
        "A rewind from the largest epoch was acknowledged and refused for ever after",
        "90ed958",
        f"{UNIT}/sidecar/engine/test_epoch_bound.py"
        "::test_a_rewind_that_the_meta_service_would_refuse_is_refused_before_it_is_acknowledged",
        LATER,
        planted=Planted(
            "adapter/sidecar/engine/commit_rules.py",
            "if after.epoch > max(EPOCH_MAX, standing.epoch):",
            "if after.epoch > 2 * max(EPOCH_MAX, standing.epoch):",
        ),
    ),
    Bug(
        "A sync that found no space was taken for a broken disk: the adapter stopped instead of waiting for space",
        "bbf8bfa",
        f"{UNIT}/sidecar/storage/test_store.py::test_a_sync_that_finds_no_space_means_a_full_disk_until_the_store_is_opened_again",
    ),
    Bug(
        "Named shards of a group that takes too long as a whole were never loaded: each asked for the whole group again",
        "9b2ebed",
        f"{UNIT}/test_reads.py::test_a_group_is_not_loaded_before_its_last_page",
    ),
    Bug(
        "The write-ahead log of the Meta Service's store was never removed: the bookkeeping kept it",
        "31c3dfd",
        f"{UNIT}/test_meta_store.py::test_the_log_goes_when_its_rows_are_in_a_table",
    ),
    Bug(
        "An adapter that waited for its vanished store ended itself at whatever else was in its place",
        "cfdbc29",
        f"{DURABILITY}/test_store_gone.py::test_the_same_directory_is_served_again_when_it_is_back_and_no_other",
        after=LATEST,
        planted=Planted(
            "adapter/sidecar/process.py",
            "        on = AdapterError if failed.missing else TransientError\n",
            "        on = TransientError\n",
        ),
    ),
    Bug(
        "After a few slow answers a save carried so few offsets that a flush never caught up",
        "d8bde0f",
        f"{UNIT}/meta/test_save_window.py::test_it_never_shrinks_below_its_minimum",
        planted=Planted(
            "adapter/meta/save_window.py", "self._least, self._most = least, most", "self._least, self._most = 1, most"
        ),
    ),
    Bug(
        "A Meta Service that was idle when a move of offsets ended let nothing expire, and dropped no tombstone, any more",
        "24ece2b",
        f"{DURABILITY}/test_rebalance.py::test_nothing_expires_and_no_tombstone_goes_while_offsets_move",
        after=LATEST,
        planted=Planted(
            "adapter/metaservice/etcd/engine.py",
            "if not layout.settled and (await self.fences.reload(layout)).settled:",
            "if False:",
        ),
    ),
    Bug(
        "Where one of several endpoints of the Meta Service let nobody in, nothing was saved",
        "417b694a",
        f"{INTEGRATION}/test_meta_client_faults.py::test_another_endpoint_is_tried_where_one_lets_nobody_in",
        found_by="a review",
    ),
    Bug(
        "Behind damage that a compaction had met, each write was refused for ever by a process that was ready",
        "2a8f5a05",
        f"{UNIT}/sidecar/storage/test_store.py::test_a_write_that_meets_damage_fails_the_store",
        found_by="a review",
    ),
    Bug(
        "An endpoint that serves no offsets was taken for a server without epochs: nothing was saved any more",
        "93a47796",
        f"{INTEGRATION}/test_meta_client_faults.py::test_another_endpoint_is_tried_where_one_has_no_offsets",
        found_by="a review",
    ),
    Bug(
        "etcd: saves that are decided on long metadata were refused again and again as too large",
        "3ad49072",
        f"{UNIT}/metaservice/etcd/test_txn_batcher.py::test_what_stands_may_be_much_longer_than_what_is_decided_on_it",
        found_by="a review",
    ),
    Bug(
        "etcd: with thousands of operations in a transaction large groups never expired",
        "5beace85",
        f"{UNIT}/metaservice/etcd/test_expiry.py::test_a_group_expires_whose_names_are_long_where_etcd_allows_very_many_operations",
        found_by="a review",
    ),
    Bug(
        "RobustMQ: after 32 addresses of leaders no further one was followed",
        "7f25efb0",
        f"{UNIT}/meta/test_endpoints.py::test_leaders_are_followed_however_often_their_addresses_change",
        found_by="a review",
        planted=Planted("adapter/meta/endpoints.py", "oldest = next(iter(self.opened))", "return False"),
    ),
    Bug(
        "RobustMQ: saves stayed with a node that let nobody in",
        "724b7ddc",
        f"{INTEGRATION}/test_group_saves.py::test_groups_are_saved_at_another_node_where_one_lets_nobody_in",
        found_by="a review",
    ),
    Bug(
        "An export of more offsets than are sent in 30 s could not be done",
        "8590cabb",
        f"{UNIT}/cli/test_groups_show.py::test_an_export_may_take_long_as_long_as_something_comes",
        found_by="a review",
    ),
    Bug(
        "An OffsetStore with more than 5,000 changed queues could persist none",
        "522b0dc3",
        f"{UNIT}/client/offset_store/test_remote.py::test_more_queues_than_a_request_may_have_go_in_several",
        found_by="a review",
    ),
    Bug(
        "A learner of etcd 3.6 among the endpoints ended the Meta Service at its start, though a voter was well",
        "112dd497",
        f"{UNIT}/metaservice/etcd/test_errors.py::test_what_only_this_member_refuses_is_asked_of_the_next",
        found_by="a real peer",
    ),
)
HELD_UP = (
    Bug(
        "A Meta Service process without saves and reads did not learn of a rebalance, and answered no save while the Raft group "
        "that had the offsets before was silent",
        "d912cb86",
        f"{UNIT}/metaservice/etcd/test_broker_stores.py",
        found_by="the model",
        planted=Planted(
            "adapter/metaservice/etcd/broker_stores.py",
            "request = etcd_pb.TxnRequest(compare=[guard] if guard else [])",
            "request = etcd_pb.TxnRequest()",
        ),
    ),
    Bug(
        "An offset that another writer had stored at RobustMQ's Meta Service under a name of over 255 bytes ended the adapter at "
        "the first commit or read of its group, and again after each start",
        "99419a35",
        f"{INTEGRATION}/test_epochless.py::test_offsets_under_names_that_no_adapter_takes_are_left_alone",
        found_by="fuzzing of replies",
    ),
    Bug(
        "The Meta Service died with SIGSEGV when its sync failed: the store was closed under a read",
        "3fdb9f7",
        f"{INTEGRATION}/test_ends.py::test_a_meta_store_that_fails_is_closed_whole",
    ),
    Bug(
        "A client that was gone at a stop ended the process before it had drained",
        "e4fa531",
        f"{INTEGRATION}/http2/test_leaving.py::test_a_client_that_is_gone_holds_up_no_stop",
        found_by="a run of CI",
    ),
    Bug(
        "A storm of connections that reset their calls held up new ones for a minute and more",
        "2dd34b4",
        f"{INTEGRATION}/test_front_hostile.py::test_a_storm_of_resets_by_new_connections_holds_up_no_newcomer",
    ),
    Bug(
        "One small request that names a large group many times took minutes and gigabytes",
        "24aeda5",
        "tests/contract/test_group_pages.py::test_a_request_that_names_too_much_is_refused",
        planted=Planted(
            "adapter/metaservice/group_reads.py", "    if count > MAX_NAMED:\n", "    if count > 1_000 * MAX_NAMED:\n"
        ),
    ),
    Bug(
        "Idle connections took the file descriptors that the store needs",
        "63deac7",
        f"{INTEGRATION}/test_descriptors.py::test_idle_connections_leave_the_stores_their_files",
    ),
    Bug(
        "A group that is too large for a change was loaded before it was refused",
        "0fd4fdd",
        f"{UNIT}/test_large.py::test_a_group_that_is_too_large_for_a_change_is_not_brought_here",
    ),
    Bug(
        "A pattern over names, both chosen by callers, held the event loop for 0.4 s",
        "4cc142c",
        f"{UNIT}/sidecar/lag/test_filters.py::test_the_worst_pattern_over_the_worst_names_lets_other_work_run",
    ),
    Bug(
        "Suggestions for a mistyped shard held up all commits while they were computed",
        "ae78796",
        f"{UNIT}/sidecar/engine/test_reset_names.py::test_suggestions_do_not_hold_up_commits",
        LATER,
        planted=Planted("adapter/sidecar/engine/reset_plans.py", "if absent < NAMED else", "if absent >= 0 else"),
    ),
    Bug(
        "A hand-over waited for the end of a flush of minutes",
        "377f522",
        f"{UNIT}/sidecar/engine/test_urgent_flushes.py::test_a_hand_over_does_not_wait_for_the_rest_of_a_flush",
    ),
    Bug(
        "A stop was held up by streams that came back",
        "e6606b1",
        f"{DURABILITY}/test_crash.py::test_a_stop_under_load_brings_everything_to_the_meta_service",
    ),
    Bug(
        "A client that connected right after a restart inherited the reconnect pause of another client",
        "36afc10",
        f"{INTEGRATION}/test_client_reconnect.py::test_a_new_client_does_not_wait_for_the_reconnect_of_an_old_one",
        after=LATEST,
        planted=Planted(
            "adapter/runtime/channels.py", '("grpc.use_local_subchannel_pool", 1)', '("grpc.use_local_subchannel_pool", 0)'
        ),
    ),
    Bug(
        "A server ended connections for too many pings",
        "57312b8",
        f"{INTEGRATION}/test_pings.py::test_pings_are_answered_and_end_no_connection",
    ),
    Bug(
        "A page of the console that could not be made ended the others",
        "2c5d01e",
        f"{UNIT}/console/test_live.py::test_a_page_that_cannot_be_made_is_said_to_be_old",
    ),
    Bug(
        "A lag job behind a URL took its own lease, half written by a renewal, for another's, and stopped",
        "97b8ed9",
        "tests/pipeline/test_lag_lock.py::test_behind_a_url_a_lease_that_is_half_written_is_read_again",
        found_by="`make mutants`",
    ),
    Bug(
        "A commit of many new groups asked for one after the other, for longer than its consumer waits",
        "a234bdb4",
        f"{UNIT}/sidecar/engine/test_reads.py::test_a_commit_of_many_new_groups_asks_for_them_together",
        found_by="a review",
    ),
    Bug(
        "A process that was ending removed the Unix socket of the next one",
        "a234bdb4",
        f"{INTEGRATION}/test_listen.py::test_the_socket_of_the_next_process_is_left_alone",
        found_by="a review",
    ),
    Bug(
        "A store that failed while a thread read it ended the process",
        "a234bdb4",
        f"{INTEGRATION}/test_early_commits.py::test_a_failed_store_is_opened_again_when_its_last_reads_have_ended",
        found_by="a review",
    ),
    Bug(
        "A log that RocksDB removed while the room on a full disk was counted ended the process",
        "a234bdb4",
        f"{UNIT}/sidecar/storage/test_store.py::test_a_file_that_is_removed_while_the_room_is_counted_is_no_error",
        found_by="a review",
    ),
    Bug(
        "Groups that had come and gone filled the memory",
        "a234bdb4",
        f"{UNIT}/sidecar/storage/test_record_cache.py::test_nothing_is_kept_of_a_group_whose_records_are_gone",
        found_by="a review",
    ),
    Bug(
        "Groups that readers had named filled the memory",
        "a234bdb4",
        f"{UNIT}/sidecar/engine/test_reads.py::test_groups_that_readers_name_do_not_fill_the_memory",
        planted=Planted(
            "adapter/sidecar/engine/commit_rules.py", "if len(self.groups) + len(groups) > MAX_LOADED:", "if not MAX_LOADED:"
        ),
        found_by="a review",
    ),
    Bug(
        "What was no message of an adapter ended the console, and a Meta Service with a scaler",
        "ce583457",
        f"{UNIT}/fleet/test_fleet.py::test_what_is_no_message_of_an_adapter_is_told_and_ends_nothing",
        found_by="a review",
    ),
    Bug(
        "The console ended when an adapter was forgotten while one of its groups was compared",
        "8feee503",
        f"{UNIT}/fleet/test_fleet.py::test_an_adapter_may_be_forgotten_while_a_group_of_it_is_compared",
        found_by="a review",
    ),
    Bug(
        "A reload of a file with a number of thousands of digits ended the process",
        "2fac892f",
        f"{UNIT}/runtime/test_config.py",
        found_by="a review",
    ),
    Bug(
        "A look at the certificates without a free file descriptor ended the process",
        "b7c92bcb",
        f"{UNIT}/runtime/test_certificates.py::test_without_file_descriptors_they_cannot_be_checked",
        found_by="a review",
    ),
    Bug(
        "A host that no name in DNS can be ended the adapter",
        "da2a1059",
        f"{INTEGRATION}/test_rocketmq_connection.py::test_a_name_that_dns_cannot_have_is_an_error_of_the_connection",
        found_by="a review",
    ),
    Bug(
        "A start removed another process's Unix socket, or hung where that process did",
        "075a57f4",
        f"{INTEGRATION}/test_listen.py::test_a_socket_that_cannot_be_connected_to_is_left_alone",
        found_by="a review",
    ),
    Bug(
        "Calls that were reset behind answers that nobody read stayed in memory",
        "3bb96c0a",
        f"{INTEGRATION}/http2/test_slow_clients.py::test_calls_that_are_given_up_before_they_begin_leave_nothing",
        found_by="a review",
    ),
    Bug(
        "Headers of a byte each held up the others for 0.4 s with each 64 KiB",
        "4e691d4c",
        f"{INTEGRATION}/http2/test_hostile_clients.py",
        found_by="a review",
    ),
    Bug(
        "A CommitBroadcast of millions of shards was copied before it was refused",
        "db743833",
        f"{UNIT}/sidecar/engine/test_broadcast.py::test_too_many_shards_are_refused_before_they_are_copied",
        found_by="a review",
    ),
    Bug(
        "A key of 60 MiB in a merge held up a Meta Service for half a minute",
        "64eb417c",
        f"{UNIT}/metaservice/test_bulk_checks.py::test_an_entry_of_megabytes_is_rejected_before_it_is_looked_at",
        found_by="a review",
    ),
    Bug(
        "grpcio's server kept the calls of vanished clients for hours",
        "ca36fdf0",
        f"{INTEGRATION}/test_pings.py::test_a_client_that_vanished_is_noticed_by_grpcios_server_as_well",
        found_by="a review",
    ),
    Bug(
        "grpcio's server took any number of calls at a time from one connection",
        "207cd6ec",
        f"{INTEGRATION}/http2/test_both_servers.py::test_a_connection_may_have_so_many_calls_at_a_time",
        found_by="a review",
    ),
    Bug(
        "A storm of new connections held up those behind their first kilobyte for as long as it lasted",
        "4618584a",
        f"{UNIT}/runtime/http2/test_admission.py::test_a_storm_of_new_connections_does_not_stop_those_behind_their_first_bytes",
        found_by="a review",
    ),
    Bug(
        "The delete or expiry of a group of 200,000 shards held up all calls for 2 s",
        "5fa08f15",
        f"{UNIT}/metaservice/rocksdb/test_bulk_turns.py::test_tombstones_are_written_in_slices",
        found_by="a review",
    ),
    Bug(
        "While the sweep of tombstones went over the store, calls were held up",
        "0255ac49",
        f"{UNIT}/metaservice/rocksdb/test_bulk_turns.py::test_what_reads_much_lets_calls_be_delivered_between_the_slices",
        found_by="a review",
    ),
    Bug(
        "The end of many commits that waited for room held up their consumer for 14 s",
        "c9347eea",
        f"{UNIT}/client/test_batching_bounds.py::test_the_end_of_many_waits_for_room_is_work_in_proportion",
        found_by="a review",
    ),
    Bug(
        "Bridge: polls waited for the Meta Service to delete each group that was deleted at the broker",
        "a18ca302",
        f"{INTEGRATION}/test_bridge.py::test_no_poll_waits_for_the_meta_service_to_delete_a_group",
        found_by="a review",
    ),
    Bug(
        "Bridge: no poll came while many offsets were given to the broker",
        "e36415de",
        f"{INTEGRATION}/test_bridge.py::test_polls_go_on_while_many_offsets_are_given",
        found_by="a review",
        planted=Planted("adapter/sidecar/bridge/bridge.py", "gifts[:GIVE_AT_ONCE])", "gifts)"),
    ),
)
OPEN = (
    Bug(
        "The console sent an administrator's token to another machine in plaintext",
        "f3e623c",
        f"{INTEGRATION}/test_console_changes.py::test_a_token_goes_to_no_other_machine_in_plaintext",
        planted=Planted("adapter/client/client.py", "if token and tls is None and not _is_local(address):", "if False:"),
    ),
    Bug(
        "Stores, sockets and files were readable for others under a wide umask",
        "8df30bd",
        "tests/acceptance/test_modes.py::test_what_is_created_is_for_its_owner_alone",
    ),
    Bug(
        "An import followed symbolic links inside a store that it was given",
        "8df30bd",
        f"{UNIT}/formats/test_rocksdb_damage.py::test_a_link_in_a_store_is_refused_by_its_name",
        LATER,
        planted=Planted("adapter/formats/rocksdb_copy.py", "if entry.is_symlink() and ", "if False and "),
    ),
    Bug(
        "Credentials in a journal's URL were shown in the column segment, in logs and in errors",
        "a3f9fab",
        f"{UNIT}/pipeline/test_journal_credentials.py",
        LATER,
        planted=Planted(
            "adapter/pipeline/journal/listing.py",
            "return str(Place(self.root) / self.relative)",
            "return (Place(self.root) / self.relative).url",
        ),
    ),
    Bug(
        "Headers of any size were kept for a request to the console, if its packets were small",
        "9c52e65",
        f"{INTEGRATION}/test_console.py::test_a_request_with_a_head_that_is_too_large_is_refused",
    ),
)
WRONG = (
    Bug(
        "A reset at a RocketMQ broker of V2 made a group that nobody has, named like the topic",
        "062b52ca",
        f"{INTEGRATION}/test_bridge.py::test_the_phantom_of_a_reset_at_v2_is_not_taken_in",
        found_by="real brokers",
    ),
    Bug(
        "The import of config/rdb took such groups in as well",
        "39bd0fc9",
        f"{UNIT}/formats/test_rocketmq_rocksdb.py::test_the_phantom_of_a_reset_at_v2_is_no_offset",
        found_by="a review",
        planted=Planted(
            "adapter/formats/rocketmq_rocksdb.py", "if isinstance(entry, Queues) and is_phantom(", "if not entry and is_phantom("
        ),
    ),
    Bug(
        "A power cut during an fsync of what was flushed already was told as a loss, for good, where nothing was lost",
        "0d2f2f92",
        "tests/model/test_alarms.py::test_a_power_cut_during_the_fsync_of_what_is_flushed_already_is_no_loss",
        found_by="an audit",
    ),
    Bug(
        "With `wal_sync = always` the watermark was written before the sync: a power cut raised a false alarm of loss",
        "452bbb9",
        f"{UNIT}/test_cache.py::test_with_always_the_watermark_follows_the_sync",
    ),
    Bug(
        "A CSV line of blanks beyond the limit was left out silently",
        "83ed80b",
        f"{UNIT}/test_formats_csv.py",
        found_by="fuzzing with atheris",
    ),
    Bug(
        "A JSON number that is cut behind its e was told with the wrong place, and what followed depended on the chunks",
        "83ed80b",
        f"{UNIT}/test_rocketmq_json.py",
        found_by="fuzzing with atheris",
    ),
    Bug(
        "A reset of a mistyped shard created it",
        "065c5c1",
        f"{UNIT}/sidecar/engine/test_reset_names.py::test_a_shard_without_an_offset_refuses_the_whole_reset",
        LATER,
        planted=Planted(
            "adapter/sidecar/engine/reset_plans.py", "absent = [] if reset.create else [", "absent = [] if reset else ["
        ),
    ),
    Bug(
        "A page of the console hung with an adapter that does not answer: grpc.aio's cancellation was taken for the page's own",
        "26999f1",
        command="make console, and SIGSTOP to an adapter",
    ),
    Bug(
        "A rebalance beside another one took its copies for foreign offsets, and advised to delete what may be the only ones",
        "dd726cb",
        f"{UNIT}/metaservice/etcd/test_rebalancing.py::"
        "test_a_rebalance_that_is_overtaken_takes_the_others_copies_for_no_foreign_offsets",
        found_by="exploration",
    ),
    Bug(
        "One broker whose clock was 5 to 60 minutes ahead made the groups of all others look stopped to the lag job",
        "e18ef58f",
        f"{UNIT}/pipeline/test_lag_tables.py::test_a_broker_whose_clock_is_ahead_makes_no_other_group_look_stopped",
    ),
    Bug(
        "A packed record that was cut off before its topic or metadata was read as one without them",
        "5586676b",
        f"{UNIT}/model/test_arrow.py",
        found_by="fuzzing of replies",
    ),
    Bug(
        "ReadBroadcast of a group with a long name was answered as an error of the server",
        "9584205c",
        f"{UNIT}/sidecar/engine/test_broadcast.py::test_a_read_refuses_a_group_whose_lowest_offsets_have_no_name",
        found_by="fuzzing of all calls",
    ),
    Bug(
        "A page token of ListGroups that was never given out was answered as an error of the server",
        "769e67a9",
        f"{UNIT}/sidecar/test_large_requests.py::test_a_token_of_a_half_group_that_was_never_given_out_is_refused",
        found_by="fuzzing of all calls",
    ),
    Bug(
        "A trigger of KEDA with a number of thousands of digits was answered as an error of the server",
        "10ad9404",
        f"{UNIT}/fleet/test_scaling.py",
        found_by="fuzzing of all calls",
    ),
    Bug(
        "After a rebalance, the silence of a Raft group that had been left was told as a loss of the Meta Service",
        "fa4a3537",
        f"{UNIT}/metaservice/etcd/test_broker_stores.py",
        found_by="the model",
    ),
    Bug(
        "A rebalance left the reports of adapters' stores behind: a loss was told that was none, and beside a silent or removed "
        "Raft group a store that was put back went unnoticed",
        "f538d967",
        f"{UNIT}/metaservice/etcd/test_rebalancing.py::test_the_report_of_a_store_moves_although_its_adapter_is_down",
        found_by="the model",
    ),
    Bug(
        "A rebalance that was overtaken by another one repeated its change for a minute",
        "d85c3db4",
        f"{UNIT}/metaservice/etcd/test_rebalancing.py::test_a_rebalance_whose_change_comes_too_late_goes_on_at_once",
        found_by="the model",
    ),
    Bug(
        "Of several errors a large commit was told another one than a small commit",
        "6aa4ff4",
        f"{UNIT}/sidecar/test_large_requests.py::test_a_commit_is_the_same_in_slices",
        found_by="fuzzing by mutations",
    ),
    Bug(
        "Of two first starts on one store the second advised a repair",
        "e50506c3",
        f"{UNIT}/sidecar/storage/test_store.py::test_of_two_first_opens_at_once_one_is_told_that_the_store_is_in_use",
        "d3234ca3",
        found_by="a review",
    ),
    Bug(
        "A snapshot into a directory that was not there yet became a file, which the next one replaced",
        "36a642c4",
        f"{UNIT}/cli/test_snapshot.py",
        found_by="a review",
    ),
    Bug(
        "Live lag: groups that stand still were left out once all was forgotten",
        "63b48e3b",
        f"{UNIT}/sidecar/lag/test_live.py::test_a_group_that_stands_still_outlives_more_removals_than_are_noted",
        found_by="a review",
    ),
    Bug(
        "A change that Ctrl-C ended did not say what was done",
        "c997ea67",
        f"{UNIT}/cli/test_offsets.py::test_what_was_done_before_ctrl_c_is_told",
        found_by="a review",
    ),
    Bug(
        "The journal wrote the same rows again where no segment could be deleted",
        "a63cabc4",
        f"{UNIT}/sidecar/journal/test_segments.py::test_where_no_segment_can_be_deleted_nothing_is_written_twice",
        found_by="a review",
    ),
    Bug(
        "Console: adapters of a dns: entry behind TLS could not be asked",
        "91698db2",
        f"{INTEGRATION}/test_console.py::test_an_adapter_that_dns_knows_is_asked_by_its_name",
        found_by="a review",
        planted=Planted("adapter/console/admin_calls.py", "if name and self._section.tls else", "if False else"),
    ),
    Bug(
        "A token of the fleet that was replaced was not read again",
        "40099b8b",
        f"{UNIT}/fleet/test_fleet.py::test_a_token_that_was_replaced_is_read_again",
        found_by="a review",
    ),
    Bug(
        "A secret of RocketMQ's ACL that was replaced was not read again",
        "e2547184",
        f"{INTEGRATION}/test_bridge.py::test_a_secret_that_was_replaced_is_read_again",
        found_by="a review",
    ),
    Bug(
        "`reload` told eight of the problems of a bad file, the last one cut off",
        "6a98b282",
        f"{UNIT}/runtime/test_statuses.py::test_of_many_lines_those_are_told_for_which_there_is_room",
        found_by="a review",
        planted=Planted("adapter/runtime/statuses.py", "if kept and left else text", "if False else text"),
    ),
    Bug(
        "`groups describe` of several groups ended at one that is too large",
        "3caa8a0d",
        "tests/acceptance/test_offsets_pieces.py::test_one_group_that_is_too_large_hides_no_other",
        found_by="a review",
    ),
    Bug(
        "A commit that was given up in the moment of its write was logged as an error of the adapter",
        "987775a0",
        f"{INTEGRATION}/test_flush_links.py::test_a_sampled_commit_that_its_client_gives_up_at_once_is_no_error",
        found_by="a review",
    ),
    Bug(
        "A watch of the blocking client ended with RuntimeError when its client was closed",
        "a26af73d",
        f"{UNIT}/client/test_blocking.py::test_a_watch_ends_with_its_client",
        found_by="a review",
    ),
)
BY_SEVERITY = {
    Severity.LOSS: LOSS,
    Severity.REFUSED: REFUSED,
    Severity.HELD_UP: HELD_UP,
    Severity.OPEN: OPEN,
    Severity.WRONG: WRONG,
}
BUGS = tuple((severity, bug) for severity, bugs in BY_SEVERITY.items() for bug in bugs)
