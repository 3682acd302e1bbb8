"""The alerts. Each has a runbook of its name in docs/runbooks, and a test in tests/monitoring that fires and resolves it.

An alert outlives a scrape that failed because of `keep`; what may begin at a rolling restart (30 s without a process) has a
longer `after`. States of an adapter: 1 recovering, 2 serving, 3 degraded, 4 failed, 5 stopping, 6 starting. What is told once
for all processes of a Meta Service is told for each `namespace` of their targets: in Kubernetes that is an installation.
"""

from deploy.monitoring.source.model import Alert

ADAPTERS = (
    Alert(
        name="OffsetAdapterAway",
        severity="critical",
        expr='up{job="offset-adapter"} == 0',
        after="2m",
        keep="0s",
        summary="The adapter {{ $labels.instance }} does not answer",
        description="Prometheus cannot scrape {{ $labels.instance }}. If the process is down, its broker cannot commit offsets.",
        reason="A rolling restart takes the metrics away for some 30 s; two minutes are four times that.",
    ),
    Alert(
        name="OffsetAdapterDegraded",
        severity="warning",
        expr="offset_adapter_up_state == 3",
        after="5m",
        summary="The adapter {{ $labels.instance }} serves degraded",
        description="{{ $labels.instance }} takes commits, but refuses reads of the store: it could not compare its offsets with"
        " the Meta Service.",
        reason="An adapter that starts without the Meta Service is degraded after 10 s (recovery.timeout_ms). A restart of"
        " the Meta Service is over well within five minutes.",
    ),
    Alert(
        name="OffsetAdapterStoreFailed",
        severity="critical",
        expr="offset_adapter_up_state == 4",
        after="30s",
        summary="The local store of {{ $labels.instance }} has failed",
        description="{{ $labels.instance }} acknowledges nothing until its store is open again. /readyz and `status` say why.",
        reason="A store that failed is opened again within a second if the disk works; 30 s are two scrapes.",
    ),
    Alert(
        name="OffsetAdapterStuck",
        severity="warning",
        expr="(offset_adapter_up_state == 5) or (offset_adapter_up_state == 6)",
        after="10m",
        summary="The adapter {{ $labels.instance }} is starting or stopping for ten minutes",
        description="{{ $labels.instance }} is in state {{ $value }} (5 stopping, 6 starting).",
        reason="Opening a store reads all of it once: a few seconds for each million offsets. A stop ends after"
        " stop.grace_ms and stop.drain_timeout_ms.",
    ),
    Alert(
        name="OffsetAdapterRecoveryStuck",
        severity="critical",
        expr="""
            (offset_adapter_recovery_done == 0 and offset_adapter_meta_available == 1)
            and changes(offset_adapter_recovery_compared[<5m>]) == 0
        """,
        after="5m",
        summary="The recovery of {{ $labels.instance }} makes no progress",
        description="{{ $labels.instance }} compares its offsets with the Meta Service, which answers, and has not got on for"
        " five minutes. Offsets that a former process left may not have been sent so far.",
        reason="A comparison takes some 10 s for each million offsets and reports progress with each batch; five minutes"
        " without any are no slow network.",
    ),
    Alert(
        name="OffsetAdapterDirtyTooOld",
        severity="critical",
        expr="offset_adapter_oldest_dirty_age_seconds > <30 s>",
        after="1m",
        summary="Offsets of {{ $labels.instance }} have not reached the Meta Service for {{ $value | humanizeDuration }}",
        description="Commits are acknowledged and on the disk of {{ $labels.instance }}, and nowhere else: the oldest for {{"
        " $value | humanizeDuration }}. If that disk is lost, they are.",
        reason="A flush is sent every 100 ms. 30 s are an election in etcd (2 s), the longest pause between two attempts (2"
        " s) and a restart of the Meta Service together.",
    ),
    Alert(
        name="OffsetAdapterFlushFailing",
        severity="warning",
        expr="increase(offset_adapter_flush_failures_total[<2m>]) > 0 and offset_adapter_dirty_keys > 0",
        after="4m",
        summary="Flushes of {{ $labels.instance }} fail again and again",
        description="{{ $value | humanize }} flushes in two minutes could not be sent whole, and there are dirty keys. A part of"
        " the Meta Service does not answer.",
        reason="A restart of the Meta Service fails flushes for less than 30 s, which stay in a window of two minutes. After"
        " four minutes they go on failing.",
    ),
    Alert(
        name="OffsetAdapterRefusedKeys",
        severity="warning",
        expr="offset_adapter_refused_keys > 0",
        after="5m",
        summary="The Meta Service refuses offsets of {{ $labels.instance }}",
        description="{{ $value }} keys are refused, and stay dirty. The log of {{ $labels.instance }} names one (flush.refused).",
        reason="What is refused is sent again every 5 s (flush.refused_retry_ms); after five minutes it will not go away by"
        " itself.",
    ),
    Alert(
        name="OffsetAdapterStoreDamaged",
        severity="critical",
        expr="offset_adapter_store_lost_writes > 0",
        summary="Acknowledged commits are missing in the store of {{ $labels.instance }}",
        description="About {{ $value }} acknowledged writes were found missing on {{ $labels.instance }}. What the Meta Service"
        " had is back; what was dirty is lost. The alarm stays until the store is replaced.",
        reason="Any loss is one too many. It is recorded in the store, so that no restart hides it.",
    ),
    Alert(
        name="OffsetAdapterStoreReopened",
        severity="warning",
        expr="increase(offset_adapter_store_reopened_total[<1h>]) > 0",
        summary="The store of {{ $labels.instance }} failed and was opened again",
        description="A sync failed or the disk was full on {{ $labels.instance }}, within the last hour.",
        reason="On a healthy disk no sync ever fails. An hour, so that a person sees it.",
    ),
    Alert(
        name="OffsetAdapterUnsyncedTooLong",
        severity="critical",
        expr="offset_adapter_unsynced_age_seconds > <60 s>",
        after="1m",
        summary="The store of {{ $labels.instance }} has not been synced for {{ $value | humanizeDuration }}",
        description="A power cut of {{ $labels.instance }} would lose acknowledged commits of the last {{ $value |"
        " humanizeDuration }}. A sync hangs, or the disk is full.",
        reason="Syncs follow each other every 100 ms (flush.interval_ms). A disk that needs a minute for one is about to fail.",
    ),
    Alert(
        name="OffsetAdapterJournalDropsRows",
        severity="warning",
        expr="increase(offset_adapter_journal_dropped_rows_total[<10m>]) > 0",
        summary="The journal of {{ $labels.instance }} is incomplete",
        description="{{ $value | humanize }} rows were left out of the journal in ten minutes: its disk is too slow, or fails."
        " Offsets are not affected; reports and the lag of the Spark jobs are.",
        reason="No row is dropped while the disk keeps up; a hole in the journal stays.",
    ),
    Alert(
        name="OffsetAdapterClockSkew",
        severity="warning",
        expr="abs(offset_adapter_meta_clock_skew_seconds) > 30",
        after="2m",
        summary="The clock of {{ $labels.instance }} is {{ $value | humanizeDuration }} off",
        description="The clocks of {{ $labels.instance }} and of the Meta Service differ by {{ $value | humanizeDuration }}."
        " Nothing expires through this adapter, and commit times are wrong.",
        reason="Both processes warn and stop expiring at 30 s; NTP keeps machines within a second.",
    ),
    Alert(
        name="OffsetAdapterNotToldOfChanges",
        severity="warning",
        expr="time() - offset_adapter_changes_told_timestamp_seconds > 60 and offset_adapter_meta_available == 1",
        after="5m",
        summary="{{ $labels.instance }} does not learn of resets and deletes elsewhere",
        description="For {{ $value | humanizeDuration }} {{ $labels.instance }} has not known which groups others changed, though"
        " the Meta Service answers: it may show groups as they were.",
        reason="It asks every 2 s. A comparison of all local keys, after a gap, takes 100,000 keys a minute or so.",
    ),
    Alert(
        name="OffsetAdapterBridgeDisconnected",
        severity="critical",
        expr="offset_adapter_rocketmq_connected == 0 unless offset_adapter_rocketmq_slave == 1",
        after="2m",
        summary="The bridge of {{ $labels.instance }} does not follow its RocketMQ broker",
        description="Commits to the RocketMQ broker do not reach {{ $labels.instance }}.",
        reason="A broker restarts in less than a minute; the bridge connects again within seconds. Beside a slave it waits.",
    ),
    Alert(
        name="OffsetAdapterBrokerForgetsOffsets",
        severity="warning",
        expr="increase(offset_adapter_rocketmq_forgotten_total[<10m>]) > 0",
        summary="The RocketMQ broker of {{ $labels.instance }} has forgotten offsets that nobody deleted",
        description="{{ $value | humanize }} offsets were missing at the broker in ten minutes, although their groups and topics"
        " are there. They stay in the adapter, and are given back.",
        reason="A delete takes the group or the topic as well; a query of a console takes the offsets alone.",
    ),
    Alert(
        name="OffsetAdapterFrontDisconnected",
        severity="warning",
        expr="(offset_adapter_robustmq_unreachable_nodes > 0) or (offset_adapter_robustmq_untold_groups > 0)",
        after="2m",
        summary="The front of {{ $labels.instance }} does not reach RobustMQ",
        description="{{ $value }} nodes of RobustMQ's Meta Service cannot be reached from {{ $labels.instance }}, or its broker"
        " is not told of so many groups whose offsets others changed.",
        reason="A node or a broker restarts in less than a minute; both are tried again every few seconds.",
    ),
    Alert(
        name="OffsetAdapterRefusesConnections",
        severity="warning",
        expr="increase(offset_adapter_refused_connections_total[<5m>]) > 0",
        summary="{{ $labels.instance }} refuses connections",
        description="{{ $value | humanize }} connections were refused in five minutes: the files that are left are the store's.",
        reason="No connection is refused below the limit (offset_adapter_connections_limit).",
    ),
    Alert(
        name="OffsetsChangedByHand",
        severity="info",
        expr="sum by (job, instance, kind) (increase(offset_adapter_changes_total[<5m>])) > 0",
        keep="0s",
        summary="Somebody executed a {{ $labels.kind }} on {{ $labels.instance }}",
        description="Offsets were changed by a {{ $labels.kind }} within five minutes. The audit log says who, of which group.",
        reason="Resets, deletes, clones and imports are rare, and made by a person: whoever is on call should know of each.",
    ),
)

PROCESSES = (
    Alert(
        name="OffsetStoreDiskNearlyFull",
        severity="warning",
        expr="offset:store_disk_free:ratio < 0.10",
        after="5m",
        summary="The disk of the store of {{ $labels.instance }} has {{ $value | humanizePercentage }} left",
        description="The file system of the store of {{ $labels.instance }} ({{ $labels.job }}) has {{ $value |"
        " humanizePercentage }} free. When it is full, commits are refused.",
        reason="A tenth leaves time to act, and room for RocksDB's compaction and for the replay at an open.",
    ),
    Alert(
        name="OffsetStoreDiskFull",
        severity="critical",
        expr="offset:store_disk_free:ratio < 0.03",
        after="30s",
        summary="The disk of the store of {{ $labels.instance }} is full: {{ $value | humanizePercentage }} left",
        description="The file system of the store of {{ $labels.instance }} ({{ $labels.job }}) has {{ $value |"
        " humanizePercentage }} free. Commits are, or will soon be, refused with RESOURCE_EXHAUSTED.",
        reason="Below that a compaction, or the replay at an open, may find no room.",
    ),
    Alert(
        name="OffsetStoreDiskFillsSoon",
        severity="warning",
        expr="""
            ((predict_linear(offset_adapter_store_disk_free_bytes[<6h>], <86400 s>) < 0)
              or (predict_linear(offset_meta_store_disk_free_bytes[<6h>], <86400 s>) < 0))
            and offset:store_disk_free:ratio < 0.40
        """,
        after="30m",
        summary="The disk of the store of {{ $labels.instance }} will be full within a day",
        description="As it filled in the last six hours, the file system of the store of {{ $labels.instance }} ({{ $labels.job"
        " }}) will be full within a day.",
        reason="A day is enough for a person to act in working hours. Above 40 % free, a burst is no trend.",
    ),
    Alert(
        name="OffsetFilesNearLimit",
        severity="warning",
        expr="offset:open_files:ratio > 0.80",
        after="5m",
        summary="{{ $labels.instance }} has {{ $value | humanizePercentage }} of its file descriptors open",
        description="{{ $labels.instance }} ({{ $labels.job }}) uses {{ $value | humanizePercentage }} of its open files"
        " (nofile). Beyond the part that is reserved for the store, connections are refused.",
        reason="A quarter of the limit is reserved for the store; at 80 % connections begin to be refused.",
    ),
    Alert(
        name="OffsetConfigDiffers",
        severity="warning",
        expr="""
            (offset_adapter_config_file_differs == 1) or (offset_meta_config_file_differs == 1)
            or (offset_adapter_config_needs_restart > 0) or (offset_meta_config_needs_restart > 0)
        """,
        after="15m",
        summary="{{ $labels.instance }} does not run with what is in its configuration file",
        description="The file of {{ $labels.instance }} ({{ $labels.job }}) has other content than what is in force, or settings"
        " that wait for a restart.",
        reason="A rollout changes the file and reloads within minutes; after a quarter of an hour somebody forgot one of the"
        " two.",
    ),
    Alert(
        name="OffsetConfigReloadRefused",
        severity="warning",
        expr="""
            (offset_adapter_config_last_reload_success == 0) or (offset_meta_config_last_reload_success == 0)
            or (offset_adapter_config_files_refused == 1) or (offset_meta_config_files_refused == 1)
        """,
        after="1m",
        summary="{{ $labels.instance }} refused its new configuration or certificate",
        description="{{ $labels.instance }} ({{ $labels.job }}) continues with the former settings. After a restart it would not"
        " come up, or a certificate will run out.",
        reason="A reload is refused as a whole and at once; a minute is for whoever is editing the file.",
    ),
)

META = (
    Alert(
        name="OffsetMetaAway",
        severity="warning",
        expr='up{job="offset-meta"} == 0',
        after="2m",
        keep="0s",
        summary="The Meta Service process {{ $labels.instance }} does not answer",
        description="Prometheus cannot scrape {{ $labels.instance }}. Others go on serving, if there are any.",
        reason="A rolling restart takes the metrics away for some 30 s; two minutes are four times that.",
    ),
    Alert(
        name="OffsetMetaUnreachable",
        severity="critical",
        expr="offset_adapter_meta_available == 0",
        after="1m",
        summary="The adapter {{ $labels.instance }} cannot reach the Meta Service",
        description="The last call of {{ $labels.instance }} to the Meta Service had no answer. Commits go on; what is dirty"
        " grows, and after a restart of the adapter reads are refused.",
        reason="Adapters fail over to another process within a second, and an election takes two.",
    ),
    Alert(
        name="OffsetMetaCameBackWithLess",
        severity="critical",
        expr="increase(offset_adapter_meta_losses[<1h>]) > 0",
        summary="The Meta Service came back with less than it had acknowledged",
        description="{{ $labels.instance }} noticed that the Meta Service was restored, replaced or repaired. Every adapter"
        " pushes again what it holds.",
        reason="It never happens without a person or a lost disk. An hour, so that a person sees it.",
    ),
    Alert(
        name="OffsetMetaStoreDamaged",
        severity="critical",
        expr="offset_meta_lost_writes > 0",
        summary="The store of the Meta Service {{ $labels.instance }} was repaired with a loss",
        description="About {{ $value }} acknowledged writes were missing when {{ $labels.instance }} was repaired. Adapters push"
        " again what they hold. The alarm stays until the store is replaced.",
        reason="Any loss is one too many. It is recorded in the store, so that no restart hides it.",
    ),
    Alert(
        name="OffsetMetaNoLeader",
        severity="critical",
        expr="max by (job, namespace, raft_group) (offset_meta_raft_group_leader) == 0",
        after="30s",
        summary="The Raft group {{ $labels.raft_group }} has no leader",
        description="No Meta Service process knows a leader of the Raft group {{ $labels.raft_group }}: it takes no writes."
        " Adapters keep what is dirty.",
        reason="An election takes two seconds. A group without a leader for 30 s has lost its majority.",
    ),
    Alert(
        name="OffsetMetaMembersUnreachable",
        severity="warning",
        expr="min by (job, namespace, raft_group) (offset_meta_raft_group_members_unreachable) > 0",
        after="5m",
        summary="{{ $value }} members of the Raft group {{ $labels.raft_group }} do not answer",
        description="No Meta Service process reaches {{ $value }} members of {{ $labels.raft_group }}. One more may cost the"
        " majority.",
        reason="A member is back within a minute after a restart, and a few minutes later with a large snapshot.",
    ),
    Alert(
        name="OffsetMetaQuotaNearlyUsed",
        severity="warning",
        expr="offset_meta:raft_group_quota_used:ratio > 0.80",
        after="10m",
        summary="The Raft group {{ $labels.raft_group }} has used {{ $value | humanizePercentage }} of its quota",
        description="At 100 % etcd refuses every write of {{ $labels.raft_group }} until a person acts.",
        reason="A compaction runs every few minutes and does not shrink the file; at 80 % it is time to defragment, or to"
        " add a group.",
    ),
    Alert(
        name="OffsetMetaQuotaUsedUp",
        severity="critical",
        expr="max by (job, namespace, raft_group) (offset_meta_raft_group_full) == 1",
        after="15s",
        summary="The Raft group {{ $labels.raft_group }} refuses writes: its quota is used up",
        description="etcd has raised NOSPACE. Offsets of {{ $labels.raft_group }} stay dirty on the adapters until a person"
        " disarms it.",
        reason="etcd raises this alarm once and for all; two looks of 5 s exclude one that came too late.",
    ),
    Alert(
        name="OffsetMetaLeadersTogether",
        severity="warning",
        expr="max by (job, namespace) (offset_meta_leaders_apart) == 0",
        after="2m",
        summary="Leaders of the Raft groups are on one node with the metadata leader",
        description="If that node dies, offsets and metadata wait for an election together. `meta placement show` says why.",
        reason="The balancer moves a leader within 10 s after a node died; two minutes are more than its cool-down.",
    ),
    Alert(
        name="OffsetMetaOverloaded",
        severity="warning",
        expr="sum by (job, instance, limit) (increase(offset_meta_refused_calls_total[<5m>])) > 0",
        after="5m",
        summary="{{ $labels.instance }} refuses calls: too much is under way ({{ $labels.limit }})",
        description="{{ $value | humanize }} calls were refused in five minutes. Callers come back later; offsets arrive late.",
        reason="A start of all brokers at once may refuse some calls for a minute. Ten minutes of it are a lack of capacity.",
    ),
    Alert(
        name="OffsetMetaRebalanceAbandoned",
        severity="warning",
        expr="max by (job, namespace) (offset_meta_etcd_moving) == 1",
        after="1h",
        summary="Offsets are being moved between Raft groups for an hour",
        description="A `meta rebalance` was started and has not ended. Everything works, more slowly; the layout is not settled.",
        reason="A rebalance of ten million offsets takes minutes.",
    ),
)

GROUPS = (
    Alert(
        name="OffsetGroupStalled",
        severity="warning",
        expr="(max by (namespace, group) (offset_adapter_group_lag_status) >= 4) < 6",
        after="10m",
        summary="The group {{ $labels.group }} is stalled",
        description="{{ $labels.namespace }}/{{ $labels.group }} has messages to read and commits nothing new (4 STALL: the same"
        " offset again and again, 5 STOP: nothing at all); now {{ $value }}.",
        reason="A deployment of consumers stops a group for a few minutes; ten are not a deployment.",
    ),
    Alert(
        name="OffsetGroupBeyondEnd",
        severity="critical",
        expr="max by (namespace, group) (offset_adapter_group_lag_status) == 6",
        after="1m",
        summary="An offset of the group {{ $labels.group }} is beyond the end of its log",
        description="All that {{ $labels.namespace }}/{{ $labels.group }} commits to such a shard is below its offset and changes"
        " nothing: after a restart of its consumers it is lost. The log was made anew, or has lost its end.",
        reason="It does not pass by itself until the new log is as long as the old one was. A minute, so that an end that was"
        " told late is none.",
    ),
    Alert(
        name="OffsetGroupCommitsSuperseded",
        severity="warning",
        expr="sum by (namespace, group) (rate(offset_adapter_group_superseded_total[<5m>])) > 0.1",
        after="10m",
        summary="Commits of the group {{ $labels.group }} change nothing",
        description="{{ $value | humanize }} offsets a second that {{ $labels.namespace }}/{{ $labels.group }} commits are below"
        " what stands, or are held after a reset.",
        reason="Two consumers of one shard during a rebalance, or a reset, supersede some commits for seconds; not one in ten"
        " seconds for ten minutes.",
    ),
    Alert(
        name="OffsetGroupLagOverObjective",
        severity="warning",
        expr="""
            offset_adapter:group_lag_seconds:max
            > on (namespace, group) offset_adapter:group_lag_objective_seconds
        """,
        after="5m",
        summary="The group {{ $labels.group }} is {{ $value | humanizeDuration }} behind",
        description="{{ $labels.namespace }}/{{ $labels.group }} reads what was written {{ $value | humanizeDuration }} ago,"
        " which is more than its objective (offset_adapter:group_lag_objective_seconds).",
        reason="The objective is yours: 300 s unless objectives.yaml says otherwise. Five minutes, so that a burst is none.",
    ),
    Alert(
        name="OffsetLagShardsForgotten",
        severity="info",
        expr="increase(offset_adapter_lag_forgotten_shards_total[<15m>]) > 0",
        summary="{{ $labels.instance }} has more shards than it keeps the lag of",
        description="The lag of {{ $value | humanize }} shards was forgotten in a quarter of an hour: those that moved longest"
        " ago. Their groups may be missing in alerts.",
        reason="Nothing is forgotten while [lag] shards is large enough.",
    ),
)

PIPELINE = (
    Alert(
        name="OffsetLagJobAway",
        severity="warning",
        expr='up{job="offset-lag-job"} == 0',
        after="5m",
        keep="0s",
        summary="The Spark job lag on {{ $labels.instance }} does not answer",
        description="Prometheus cannot scrape {{ $labels.instance }}. If the job has ended, its tables are as old as its end.",
        reason="A restart of the job takes the metrics away for as long as Spark starts, some 20 s; in a busy cluster a minute or"
        " two.",
    ),
    Alert(
        name="OffsetLagJobBehind",
        severity="warning",
        expr="time() - offset_lag_job_settled_timestamp_seconds > <600 s>",
        after="5m",
        summary="The lag tables are {{ $value | humanizeDuration }} behind",
        description="The Spark job lag has read the journals of all live brokers up to {{ $value | humanizeDuration }} ago: the"
        " tables, the report and what is computed from them are that old.",
        reason="A segment is finished after a minute (journal.segment_max_age_ms) and a batch begins every 10 s"
        " (lag.trigger_ms); ten minutes leave time to copy segments, and for a large batch.",
    ),
)

GROUPS_OF_ALERTS = {
    "offset-adapter": ADAPTERS,
    "offset-processes": PROCESSES,
    "offset-meta": META,
    "offset-groups": GROUPS,
    "offset-pipeline": PIPELINE,
}
ALERTS = (*ADAPTERS, *PROCESSES, *META, *GROUPS, *PIPELINE)
