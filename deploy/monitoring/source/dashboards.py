"""The dashboards: the fleet, one adapter, the Meta Service, and groups of consumers."""

from deploy.monitoring.source.panels import Dashboard, Panel, Query, Row, Variable

STATES = (
    (1, "recovering", "yellow"),
    (2, "serving", "green"),
    (3, "degraded", "orange"),
    (4, "failed", "red"),
    (5, "stopping", "blue"),
    (6, "starting", "blue"),
)
VERDICTS = (
    (0, "unknown", "text"),
    (1, "OK", "green"),
    (2, "WARN", "yellow"),
    (3, "REWIND", "orange"),
    (4, "STALL", "red"),
    (5, "STOP", "dark-red"),
    (6, "BEYOND", "purple"),
)
RATE = "$__rate_interval"
BYTES, SECONDS, RATIO, PER_SECOND = "bytes", "s", "percentunit", "ops"

LAST_COMMIT = "offset_adapter_group_last_commit_timestamp_seconds"
ADAPTERS = 'instance=~"$instance"'
STALLED = ', status=~"stall|stop|beyond"'


def _of(metric: str, more: str = "") -> str:
    return f"{metric}{{{ADAPTERS}{more}}}"


def _rate(metric: str, more: str = "") -> str:
    return f"rate({_of(metric, more)}[{RATE}])"


def _quantile(metric: str, by: str = "instance", q: float = 0.99) -> str:
    return f"histogram_quantile({q}, sum by ({by}, le) ({_rate(f'{metric}_bucket')}))"


INSTANCES = Variable("instance", "adapter", "offset_adapter_up_state", "instance")

FLEET = Dashboard(
    uid="offset-fleet",
    title="Offset adapter: fleet",
    about="All adapters. What is wrong comes first.",
    variables=[INSTANCES],
    rows=[
        Row(
            "What is wrong",
            [
                Panel(
                    title="Alerts that fire",
                    kind="stat",
                    width=4,
                    height=5,
                    bad=1,
                    about="Critical alerts and warnings of deploy/monitoring/rules.yaml.",
                    queries=[
                        Query(
                            'count(ALERTS{alertname=~"Offset.+", alertstate="firing", severity!="info"}) or vector(0)', "alerts"
                        )
                    ],
                ),
                Panel(
                    title="Adapters that do not answer",
                    kind="stat",
                    width=4,
                    height=5,
                    bad=1,
                    about="Targets of the job offset-adapter that Prometheus cannot scrape.",
                    queries=[Query('count(up{job="offset-adapter"} == 0) or vector(0)', "away")],
                ),
                Panel(
                    title="Adapters that do not serve",
                    kind="stat",
                    width=4,
                    height=5,
                    bad=1,
                    about="Recovering, degraded, failed, starting or stopping.",
                    queries=[Query(f"count({_of('offset_adapter_up_state')} != 2) or vector(0)", "not serving")],
                ),
                Panel(
                    title="Oldest dirty offset",
                    kind="stat",
                    unit=SECONDS,
                    width=4,
                    height=5,
                    warn=5,
                    bad=30,
                    about="For how long an acknowledged offset has not reached the Meta Service.",
                    queries=[Query(f"max({_of('offset_adapter_oldest_dirty_age_seconds')})", "oldest")],
                ),
                Panel(
                    title="Groups stalled or stopped",
                    kind="stat",
                    width=4,
                    height=5,
                    warn=1,
                    about="Groups with messages to read that commit nothing new, by all adapters.",
                    queries=[Query(f"sum({_of('offset_adapter_lag_groups', STALLED)})", "groups")],
                ),
                Panel(
                    title="Worst lag",
                    kind="stat",
                    unit=SECONDS,
                    width=4,
                    height=5,
                    warn=60,
                    bad=300,
                    about="Of the group that is furthest behind, in seconds.",
                    queries=[Query("max(offset_adapter:group_lag_seconds:max)", "worst")],
                ),
                Panel(
                    title="Alerts",
                    kind="table",
                    width=12,
                    height=8,
                    about="Each has a runbook: docs/runbooks.",
                    queries=[Query('ALERTS{alertname=~"Offset.+", alertstate="firing"}', "firing")],
                    hidden=["Time", "__name__", "alertstate", "Value"],
                ),
                Panel(
                    title="Adapters",
                    kind="table",
                    width=12,
                    height=8,
                    about="One line for each adapter.",
                    queries=[
                        Query(f"max by (instance) ({_of('offset_adapter_up_state')})", "state"),
                        Query(f"max by (instance) ({_of('offset_adapter_dirty_keys')})", "dirty keys"),
                        Query(f"max by (instance) ({_of('offset_adapter_oldest_dirty_age_seconds')})", "oldest dirty"),
                        Query(f"max by (instance) ({_of('offset_adapter_unsynced_writes')})", "unsynced"),
                        Query('max by (instance) (offset:store_disk_free:ratio{job="offset-adapter"})', "disk free"),
                        Query(f"max by (instance) ({_of('offset_adapter_store_lost_writes')})", "lost writes"),
                    ],
                    states=STATES,
                    hidden=["Time"],
                    units=[("oldest dirty", SECONDS), ("disk free", RATIO)],
                ),
            ],
        ),
        Row(
            "Work",
            [
                Panel(
                    title="Commits",
                    unit=PER_SECOND,
                    about="Acknowledged offsets per second.",
                    queries=[Query(f"sum by (instance) ({_rate('offset_adapter_commits_total')})", "{{instance}}")],
                ),
                Panel(
                    title="Time of a commit (99 %)",
                    unit=SECONDS,
                    about="From a request to its answer.",
                    queries=[Query(_quantile("offset_adapter_commit_seconds"), "{{instance}}")],
                ),
                Panel(
                    title="Refused requests",
                    unit=PER_SECOND,
                    about="Refused commit requests per second, by gRPC status.",
                    queries=[Query(f"sum by (status) ({_rate('offset_adapter_commit_errors_total')})", "{{status}}")],
                ),
                Panel(
                    title="State",
                    kind="states",
                    width=16,
                    about="What each adapter did over time.",
                    queries=[Query(f"max by (instance) ({_of('offset_adapter_up_state')})", "{{instance}}")],
                    states=STATES,
                ),
                Panel(
                    title="Changes by hand",
                    about="Executed resets, deletes, clones and imports.",
                    queries=[Query(f"sum by (kind) (increase({_of('offset_adapter_changes_total')}[{RATE}]))", "{{kind}}")],
                ),
            ],
        ),
        Row(
            "On the way to the Meta Service",
            [
                Panel(
                    title="Dirty keys",
                    about="Keys that the Meta Service has not acknowledged.",
                    queries=[Query(f"sum by (instance) ({_of('offset_adapter_dirty_keys')})", "{{instance}}")],
                ),
                Panel(
                    title="Oldest dirty offset of each adapter",
                    unit=SECONDS,
                    bad=30,
                    about="An upper bound of its age.",
                    queries=[Query(f"max by (instance) ({_of('offset_adapter_oldest_dirty_age_seconds')})", "{{instance}}")],
                ),
                Panel(
                    title="Time of a flush (99 %)",
                    unit=SECONDS,
                    about="Of flushes that were answered.",
                    queries=[Query(_quantile("offset_adapter_flush_seconds"), "{{instance}}")],
                ),
            ],
        ),
        Row(
            "Disks",
            [
                Panel(
                    title="Free space",
                    unit=RATIO,
                    warn=0.10,
                    bad=0.03,
                    about="Of the file systems of the stores.",
                    queries=[Query("offset:store_disk_free:ratio", "{{instance}}")],
                ),
                Panel(
                    title="Unsynced for",
                    unit=SECONDS,
                    bad=60,
                    about="How long acknowledged writes wait for a sync; a power cut would lose them.",
                    queries=[Query(f"max by (instance) ({_of('offset_adapter_unsynced_age_seconds')})", "{{instance}}")],
                ),
                Panel(
                    title="Open files",
                    unit=RATIO,
                    warn=0.8,
                    bad=0.95,
                    about="Of the limit.",
                    queries=[Query("offset:open_files:ratio", "{{instance}}")],
                ),
            ],
        ),
    ],
)

ADAPTER = Dashboard(
    uid="offset-adapter",
    title="Offset adapter: one adapter",
    about="All that an adapter tells.",
    variables=[Variable("instance", "adapter", "offset_adapter_up_state", "instance", several=False)],
    rows=[
        Row(
            "Now",
            [
                Panel(
                    title="State now",
                    kind="stat",
                    width=4,
                    height=4,
                    states=STATES,
                    about="What it does.",
                    queries=[Query(_of("offset_adapter_up_state"), "state")],
                ),
                Panel(
                    title="Meta Service",
                    kind="stat",
                    width=4,
                    height=4,
                    states=((0, "away", "red"), (1, "answers", "green")),
                    about="Whether the last call was answered.",
                    queries=[Query(_of("offset_adapter_meta_available"), "meta")],
                ),
                Panel(
                    title="Lost writes",
                    kind="stat",
                    width=4,
                    height=4,
                    bad=1,
                    about="Acknowledged writes that were found missing.",
                    queries=[Query(_of("offset_adapter_store_lost_writes"), "lost")],
                ),
                Panel(
                    title="Since the last flush",
                    kind="stat",
                    unit=SECONDS,
                    width=4,
                    height=4,
                    about="Nothing is flushed while nothing is dirty.",
                    queries=[Query(f"time() - ({_of('offset_adapter_last_flush_timestamp_seconds')} > 0)", "ago")],
                ),
                Panel(
                    title="Recovery",
                    kind="stat",
                    unit=RATIO,
                    width=4,
                    height=4,
                    about="How far the comparison with the Meta Service is.",
                    queries=[
                        Query(
                            f"({_of('offset_adapter_recovery_compared')} / ({_of('offset_adapter_recovery_of')} > 0))"
                            f" or ({_of('offset_adapter_recovery_of')} == 0) + 1",
                            "compared",
                        )
                    ],
                ),
                Panel(
                    title="Clock",
                    kind="stat",
                    unit=SECONDS,
                    width=4,
                    height=4,
                    about="By how much it is ahead of the Meta Service's.",
                    queries=[Query(_of("offset_adapter_meta_clock_skew_seconds"), "ahead")],
                ),
            ],
        ),
        Row(
            "Commits",
            [
                Panel(
                    title="Commits and superseded",
                    unit=PER_SECOND,
                    about="Acknowledged offsets; those below a larger value that stood.",
                    queries=[
                        Query(_rate("offset_adapter_commits_total"), "commits"),
                        Query(_rate("offset_adapter_superseded_total"), "superseded"),
                    ],
                ),
                Panel(
                    title="Time of a commit",
                    unit=SECONDS,
                    about="From a request to its answer.",
                    queries=[
                        Query(_quantile("offset_adapter_commit_seconds", q=0.5), "50 %"),
                        Query(_quantile("offset_adapter_commit_seconds"), "99 %"),
                    ],
                ),
                Panel(
                    title="Refused requests",
                    unit=PER_SECOND,
                    about="By gRPC status.",
                    queries=[Query(f"sum by (status) ({_rate('offset_adapter_commit_errors_total')})", "{{status}}")],
                ),
            ],
        ),
        Row(
            "Flushes",
            [
                Panel(
                    title="Dirty and refused keys",
                    about="What the Meta Service has not acknowledged, and what it refused.",
                    queries=[
                        Query(_of("offset_adapter_dirty_keys"), "dirty"),
                        Query(_of("offset_adapter_refused_keys"), "refused"),
                    ],
                ),
                Panel(
                    title="Age of the oldest dirty offset",
                    unit=SECONDS,
                    bad=30,
                    about="An upper bound.",
                    queries=[Query(_of("offset_adapter_oldest_dirty_age_seconds"), "oldest")],
                ),
                Panel(
                    title="Flushes and failures",
                    unit=PER_SECOND,
                    about="Flushes that were answered, and those that could not be sent whole.",
                    queries=[
                        Query(_rate("offset_adapter_flush_seconds_count"), "answered"),
                        Query(_rate("offset_adapter_flush_failures_total"), "failed"),
                    ],
                ),
                Panel(
                    title="Time of a flush and of a save call (99 %)",
                    unit=SECONDS,
                    about="A flush has one save call or more.",
                    queries=[
                        Query(_quantile("offset_adapter_flush_seconds"), "flush"),
                        Query(_quantile("offset_adapter_save_call_seconds"), "save call"),
                    ],
                ),
                Panel(
                    title="Save calls",
                    unit=PER_SECOND,
                    about="To the Meta Service, by cause.",
                    queries=[Query(f"sum by (cause) ({_rate('offset_adapter_save_calls_total')})", "{{cause}}")],
                ),
                Panel(
                    title="Saved offsets",
                    unit=PER_SECOND,
                    about="By what the Meta Service made of them.",
                    queries=[Query(f"sum by (status) ({_rate('offset_adapter_save_results_total')})", "{{status}}")],
                ),
            ],
        ),
        Row(
            "Store",
            [
                Panel(
                    title="Disk",
                    unit=BYTES,
                    about="The file system of the store.",
                    queries=[
                        Query(_of("offset_adapter_store_disk_free_bytes"), "free"),
                        Query(_of("offset_adapter_store_disk_size_bytes"), "size"),
                    ],
                ),
                Panel(
                    title="Unsynced",
                    about="Acknowledged writes that a power cut would lose, and for how many seconds they wait.",
                    queries=[
                        Query(_of("offset_adapter_unsynced_writes"), "writes"),
                        Query(_of("offset_adapter_unsynced_age_seconds"), "seconds"),
                    ],
                ),
                Panel(
                    title="RocksDB",
                    unit=BYTES,
                    about="Its files, memory, and what waits for a compaction.",
                    queries=[
                        Query(_of("offset_adapter_rocksdb_sst_bytes"), "files"),
                        Query(_of("offset_adapter_rocksdb_memtable_bytes"), "memtables"),
                        Query(_of("offset_adapter_rocksdb_block_cache_bytes"), "block cache"),
                        Query(_of("offset_adapter_rocksdb_pending_compaction_bytes"), "to compact"),
                    ],
                ),
                Panel(
                    title="Records",
                    about="About how many offsets are stored.",
                    queries=[Query(_of("offset_adapter_rocksdb_estimated_keys"), "records")],
                ),
                Panel(
                    title="Recovery: compared keys",
                    about="Of about how many; the results are those of the last recovery.",
                    queries=[
                        Query(_of("offset_adapter_recovery_compared"), "compared"),
                        Query(_of("offset_adapter_recovery_of"), "of"),
                        Query(f"sum by (result) ({_of('offset_adapter_recovery_keys')})", "{{result}}"),
                    ],
                ),
                Panel(
                    title="Expired groups",
                    about="Groups that were taken away because nobody committed to them.",
                    queries=[Query(f"increase({_of('offset_adapter_expired_groups_total')}[{RATE}])", "groups")],
                ),
            ],
        ),
        Row(
            "Process",
            [
                Panel(
                    title="Files and watchers",
                    about="Open files, their limit, the limit of connections, and open calls of WatchOffsets.",
                    queries=[
                        Query(_of("offset_adapter_open_files"), "open files"),
                        Query(_of("offset_adapter_open_files_limit"), "limit"),
                        Query(_of("offset_adapter_connections_limit"), "limit of connections"),
                        Query(_of("offset_adapter_watchers"), "watchers"),
                    ],
                ),
                Panel(
                    title="Journal",
                    unit=PER_SECOND,
                    about="Rows written and dropped, if the journal is on.",
                    queries=[
                        Query(_rate("offset_adapter_journal_rows_total"), "written"),
                        Query(_rate("offset_adapter_journal_dropped_rows_total"), "dropped"),
                    ],
                ),
                Panel(
                    title="RocketMQ bridge",
                    about="Offsets on which adapter and broker agree, if the bridge is on.",
                    queries=[
                        Query(_of("offset_adapter_rocketmq_offsets"), "offsets"),
                        Query(_of("offset_adapter_rocketmq_connected"), "connected"),
                        Query(_of("offset_adapter_rocketmq_asked_queues"), "light queues asked for"),
                        Query(f"increase({_of('offset_adapter_rocketmq_forgotten_total')}[{RATE}])", "forgotten by the broker"),
                    ],
                ),
                Panel(
                    title="Live lag: shards",
                    about="Shards whose lag is kept, and those that were forgotten for lack of room.",
                    queries=[
                        Query(_of("offset_adapter_lag_shards"), "kept"),
                        Query(f"increase({_of('offset_adapter_lag_forgotten_shards_total')}[{RATE}])", "forgotten"),
                    ],
                ),
                Panel(
                    title="Live lag: time of an evaluation (99 %)",
                    unit=SECONDS,
                    about="It runs about once a second.",
                    queries=[Query(_quantile("offset_adapter_lag_evaluation_seconds"), "evaluation")],
                ),
                Panel(
                    title="Configuration",
                    about="1: the file differs from what is in force; settings that wait for a restart; 1: files refused.",
                    queries=[
                        Query(_of("offset_adapter_config_file_differs"), "file differs"),
                        Query(_of("offset_adapter_config_needs_restart"), "wait for a restart"),
                        Query(_of("offset_adapter_config_files_refused"), "files refused"),
                    ],
                ),
            ],
        ),
    ],
)

META = Dashboard(
    uid="offset-meta",
    title="Offset adapter: Meta Service",
    about="The processes of the Meta Service, and the Raft groups behind them.",
    variables=[Variable("instance", "process", "offset_meta_open_files", "instance")],
    rows=[
        Row(
            "Raft groups",
            [
                Panel(
                    title="Leader",
                    kind="states",
                    states=((0, "none", "red"), (1, "known", "green")),
                    about="Whether a process knows the leader of each Raft group.",
                    queries=[
                        Query("max by (namespace, raft_group) (offset_meta_raft_group_leader)", "{{namespace}} {{raft_group}}")
                    ],
                ),
                Panel(
                    title="Quota used",
                    unit=RATIO,
                    warn=0.8,
                    bad=0.95,
                    about="At 100 % etcd refuses writes.",
                    queries=[Query("offset_meta:raft_group_quota_used:ratio", "{{namespace}} {{raft_group}}")],
                ),
                Panel(
                    title="Members that do not answer",
                    bad=1,
                    about="To any process.",
                    queries=[
                        Query(
                            "min by (namespace, raft_group) (offset_meta_raft_group_members_unreachable)",
                            "{{namespace}} {{raft_group}}",
                        )
                    ],
                ),
                Panel(
                    title="Size of the databases",
                    unit=BYTES,
                    about="Of the member where it is largest.",
                    queries=[
                        Query("max by (namespace, raft_group) (offset_meta_raft_group_bytes)", "{{namespace}} {{raft_group}}")
                    ],
                ),
                Panel(
                    title="Placement of leaders",
                    about="1 while no leader of offsets is on the metadata leader's node; moves by result (placement.balance).",
                    queries=[
                        Query("max by (namespace) (offset_meta_leaders_apart)", "{{namespace}} apart"),
                        Query(f"sum by (result) (increase(offset_meta_leader_moves_total[{RATE}]))", "{{result}}"),
                    ],
                ),
                Panel(
                    title="Layout",
                    about="Its version, 1 while offsets are moved, and entries that wait for a transaction.",
                    queries=[
                        Query("max by (namespace) (offset_meta_etcd_layout_version)", "{{namespace}} version"),
                        Query("max by (namespace) (offset_meta_etcd_moving)", "{{namespace}} moving"),
                        Query(f"sum by (instance) ({_of('offset_meta_etcd_waiting_entries')})", "waiting {{instance}}"),
                    ],
                ),
            ],
        ),
        Row(
            "Calls",
            [
                Panel(
                    title="Calls",
                    unit=PER_SECOND,
                    about="By RPC.",
                    queries=[Query(f"sum by (rpc) ({_rate('offset_meta_calls_total')})", "{{rpc}}")],
                ),
                Panel(
                    title="Time of a save (99 %)",
                    unit=SECONDS,
                    about="Sync included.",
                    queries=[Query(_quantile("offset_meta_save_seconds"), "{{instance}}")],
                ),
                Panel(
                    title="Saved offsets",
                    unit=PER_SECOND,
                    about="By result.",
                    queries=[Query(f"sum by (status) ({_rate('offset_meta_save_results_total')})", "{{status}}")],
                ),
                Panel(
                    title="Refused calls",
                    unit=PER_SECOND,
                    bad=0.001,
                    about="Because too much was under way.",
                    queries=[Query(f"sum by (limit) ({_rate('offset_meta_refused_calls_total')})", "{{limit}}")],
                ),
                Panel(
                    title="Under way",
                    about="Offsets of saves, and metadata calls.",
                    queries=[Query(f"sum by (instance, limit) ({_of('offset_meta_under_way')})", "{{instance}} {{limit}}")],
                ),
                Panel(
                    title="Time of a metadata call (99 %)",
                    unit=SECONDS,
                    about="By RPC.",
                    queries=[Query(_quantile("offset_meta_metadata_seconds", by="rpc"), "{{rpc}}")],
                ),
            ],
        ),
        Row(
            "Processes",
            [
                Panel(
                    title="Free space",
                    unit=RATIO,
                    warn=0.10,
                    bad=0.03,
                    about='Of the file systems of the stores, with engine = "rocksdb".',
                    queries=[
                        Query(
                            f"{_of('offset_meta_store_disk_free_bytes')} / {_of('offset_meta_store_disk_size_bytes')}",
                            "{{instance}}",
                        )
                    ],
                ),
                Panel(
                    title="Open files",
                    unit=RATIO,
                    warn=0.8,
                    bad=0.95,
                    about="Of the limit.",
                    queries=[Query(f"{_of('offset_meta_open_files')} / {_of('offset_meta_open_files_limit')}", "{{instance}}")],
                ),
                Panel(
                    title="Losses",
                    bad=1,
                    about="Acknowledged writes that a repair found missing.",
                    queries=[
                        Query(_of("offset_meta_lost_writes"), "{{instance}}"),
                        Query(
                            f"sum by (instance) ({_of('offset_meta_etcd_losses')})",
                            "{{instance}}: Raft groups came back with less",
                        ),
                    ],
                ),
                Panel(
                    title="Tombstones dropped",
                    about="Deleted offsets that were old enough to be forgotten.",
                    queries=[Query(f"increase({_of('offset_meta_tombstones_dropped_total')}[{RATE}])", "{{instance}}")],
                ),
                Panel(
                    title="Saves of adapters whose clock is off",
                    unit=PER_SECOND,
                    about="By more than 30 s.",
                    queries=[Query(_rate("offset_meta_skewed_saves_total"), "{{instance}}")],
                ),
            ],
        ),
    ],
)

_GROUP = 'namespace=~"$namespace", group=~"$group"'

GROUPS = Dashboard(
    uid="offset-groups",
    title="Offset adapter: groups",
    about="Lag of groups: of the worst ones, and of those that [lag] metric_groups names; the others are summed.",
    variables=[
        INSTANCES,
        Variable("namespace", "namespace", "offset_adapter_group_lag_status", "namespace"),
        Variable("group", "group", "offset_adapter_group_lag_status", "group"),
    ],
    rows=[
        Row(
            "All groups",
            [
                Panel(
                    title="Groups by status",
                    about="By all adapters; a group of several brokers counts on each of them.",
                    queries=[Query(f"sum by (status) ({_of('offset_adapter_lag_groups')})", "{{status}}")],
                ),
                Panel(
                    title="Lag of the groups that are furthest behind",
                    unit=SECONDS,
                    about="Ten groups, in seconds.",
                    queries=[Query("topk(10, offset_adapter:group_lag_seconds:max)", "{{namespace}}/{{group}}")],
                ),
                Panel(
                    title="Lag of all others",
                    about="In messages: groups without metrics of their own.",
                    queries=[Query(f"sum by (instance) ({_of('offset_adapter_other_groups_lag_messages')})", "{{instance}}")],
                ),
                Panel(
                    title="Groups",
                    kind="table",
                    width=24,
                    height=9,
                    about="The worst ones. STALL commits the same offset again and again, STOP nothing at all; BEYOND is no more"
                    " in its log.",
                    queries=[
                        Query(f"max by (namespace, group) (offset_adapter_group_lag_status{{{_GROUP}}})", "status"),
                        Query(f"offset_adapter:group_lag_seconds:max{{{_GROUP}}}", "lag"),
                        Query(f"offset_adapter:group_lag_messages:sum{{{_GROUP}}}", "messages"),
                        Query(f"offset_adapter:group_lag_objective_seconds{{{_GROUP}}}", "objective"),
                        Query(f"time() - max by (namespace, group) ({LAST_COMMIT}{{{_GROUP}}})", "last commit"),
                    ],
                    states=VERDICTS,
                    hidden=["Time", "__name__"],
                    units=[("lag", SECONDS), ("objective", SECONDS), ("last commit", SECONDS)],
                ),
            ],
        ),
        Row(
            "The chosen groups",
            [
                Panel(
                    title="Lag in seconds",
                    unit=SECONDS,
                    width=12,
                    about="And its objective.",
                    queries=[
                        Query(f"offset_adapter:group_lag_seconds:max{{{_GROUP}}}", "{{group}}"),
                        Query(f"offset_adapter:group_lag_objective_seconds{{{_GROUP}}}", "{{group}}: objective"),
                    ],
                ),
                Panel(
                    title="Lag in messages",
                    width=12,
                    about="What can still be read: what the log has deleted does not count.",
                    queries=[Query(f"offset_adapter:group_lag_messages:sum{{{_GROUP}}}", "{{group}}")],
                ),
                Panel(
                    title="Verdict",
                    kind="states",
                    width=24,
                    states=VERDICTS,
                    about="OK, WARN, REWIND, STALL, STOP, as Burrow calls them, and BEYOND.",
                    queries=[Query(f"max by (namespace, group) (offset_adapter_group_lag_status{{{_GROUP}}})", "{{group}}")],
                ),
            ],
        ),
    ],
)

DASHBOARDS = (FLEET, ADAPTER, META, GROUPS)
