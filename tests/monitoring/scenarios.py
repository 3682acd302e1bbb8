"""For each alert: series that are good, then bad for long enough, then good again, and what the alert says meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from deploy.monitoring.source.alerts import ALERTS
from deploy.monitoring.source.model import Alert

BY_NAME: Mapping[str, Alert] = {alert.name: alert for alert in ALERTS}
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

ADAPTER = {"job": "offset-adapter", "instance": "broker-1:9521"}
META = {"job": "offset-meta", "instance": "meta-1:9531"}
RAFT = META | {"raft_group": "offsets-1"}
LAG_JOB = {"job": "offset-lag-job", "instance": "driver:9541"}
GROUP = ADAPTER | {"namespace": "default", "group": "billing"}

GOOD_S, GOOD_AGAIN_S = 600, 900


def seconds(text: str) -> int:
    """A duration of a rule in seconds."""
    return int(text[:-1]) * SECONDS[text[-1]]


@dataclass(frozen=True)
class Gauge:
    """A series that has one value while all is well, and another one meanwhile."""

    name: str
    labels: Mapping[str, str]
    good: float
    bad: float

    def values(self, good: int, bad: int, again: int, interval_s: int) -> list[str]:  # noqa: ARG002 - as of Counting
        """The samples of the three phases."""
        return [f"{self.good:g}"] * good + [f"{self.bad:g}"] * bad + [f"{self.good:g}"] * again


@dataclass(frozen=True)
class Counting:
    """A series that grows by so much per second while all is well, and by so much meanwhile."""

    name: str
    labels: Mapping[str, str]
    good: float
    bad: float
    start: float = 0

    def values(self, good: int, bad: int, again: int, interval_s: int) -> list[str]:
        """The samples of the three phases."""
        value, found = self.start, []
        for rate in [self.good] * good + [self.bad] * bad + [self.good] * again:
            value += rate * interval_s
            found.append(f"{value:.10g}")
        return found


@dataclass(frozen=True)
class Timestamp:
    """A series that has a time: so many seconds ago while all is well, and so many meanwhile."""

    name: str
    labels: Mapping[str, str]
    good: float
    bad: float

    def values(self, good: int, bad: int, again: int, interval_s: int) -> list[str]:
        """The samples of the three phases; promtool begins at the Unix time 0."""
        ages = [self.good] * good + [self.bad] * bad + [self.good] * again
        return [f"{number * interval_s - age:.10g}" for number, age in enumerate(ages)]


Series: TypeAlias = Gauge | Counting | Timestamp


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """`value` is how the alert writes its value; `labels` are its own. `bad_s`: for how long, beyond `after`, all is bad."""

    alert: str
    series: Sequence[Series]
    labels: Mapping[str, str]
    value: str = ""
    window: str = "0s"  # of the expression, which sees what was bad for so much longer
    bad_s: int = 300
    interval_s: int = 15
    late_s: int = 60  # the expression holds so much later than the bad phase begins
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def rule(self) -> Alert:
        """The alert."""
        return BY_NAME[self.alert]

    @property
    def phases_s(self) -> tuple[int, int, int]:
        """How long the phases are."""
        return GOOD_S, seconds(self.rule.after) + self.late_s + self.bad_s, GOOD_AGAIN_S + 2 * seconds(self.window)

    @property
    def fires_s(self) -> int:
        """When it fires at the latest."""
        return GOOD_S + seconds(self.rule.after) + self.late_s

    @property
    def resolved_s(self) -> int:
        """When it is resolved at the latest."""
        good, bad, _ = self.phases_s
        return good + bad + seconds(self.rule.keep) + seconds(self.window) + 2 * self.interval_s

    def input(self, gap_s: int | None = None) -> list[dict[str, str]]:
        """The series as promtool reads them; with a gap of 30 s at this time, as of a process that is restarted."""
        good, bad, again = (length // self.interval_s for length in self.phases_s)
        return [
            written(series, series.values(good, bad, again, self.interval_s), self.interval_s, gap_s) for series in self.series
        ]

    def fired(self) -> dict[str, Any]:
        """The alert as promtool expects it."""
        rule = self.rule
        told = {"summary": rule.summary, "description": rule.description, "reason": rule.reason}
        return {
            "exp_labels": {**self.labels, "severity": rule.severity},
            "exp_annotations": {name: self._filled(text) for name, text in told.items()}
            | {"runbook_url": f"docs/runbooks/{rule.name}.md"},
        }

    def _filled(self, text: str) -> str:
        for name, value in self.labels.items():
            text = text.replace(f"{{{{ $labels.{name} }}}}", value)
        for how in ("", " | humanize", " | humanizeDuration", " | humanizePercentage"):
            text = text.replace(f"{{{{ $value{how} }}}}", self.value)
        assert "{{" not in text
        return text


def written(series: Series, values: Sequence[str], interval_s: int, gap_s: int | None) -> dict[str, str]:
    """A series in promtool's notation. In a gap there is a mark that it is stale; `up` is 0 there."""
    labels = ",".join(f'{name}="{value}"' for name, value in series.labels.items())
    found = list(values)
    if gap_s is not None:
        at, lost = gap_s // interval_s, max(30 // interval_s, 1)
        found[at : at + lost] = ["0"] * lost if series.name == "up" else ["stale", *["_"] * (lost - 1)]
    return {"series": f"{series.name}{{{labels}}}", "values": " ".join(found)}


SCENARIOS = (
    Scenario(alert="OffsetAdapterAway", series=[Gauge("up", ADAPTER, 1, 0)], labels=ADAPTER),
    Scenario(alert="OffsetAdapterDegraded", series=[Gauge("offset_adapter_up_state", ADAPTER, 2, 3)], labels=ADAPTER),
    Scenario(alert="OffsetAdapterStoreFailed", series=[Gauge("offset_adapter_up_state", ADAPTER, 2, 4)], labels=ADAPTER),
    Scenario(alert="OffsetAdapterStuck", series=[Gauge("offset_adapter_up_state", ADAPTER, 2, 6)], labels=ADAPTER, value="6"),
    Scenario(
        alert="OffsetAdapterRecoveryStuck",
        series=[
            Gauge("offset_adapter_recovery_done", ADAPTER, 1, 0),
            Gauge("offset_adapter_recovery_compared", ADAPTER, 1000, 400),
            Gauge("offset_adapter_meta_available", ADAPTER, 1, 1),
        ],
        labels=ADAPTER,
        late_s=330,
    ),
    Scenario(
        alert="OffsetAdapterDirtyTooOld",
        series=[Gauge("offset_adapter_oldest_dirty_age_seconds", ADAPTER, 0.1, 45)],
        labels=ADAPTER,
        value="45s",
    ),
    Scenario(
        alert="OffsetAdapterFlushFailing",
        series=[
            Counting("offset_adapter_flush_failures_total", ADAPTER, 0, 0.5),
            Gauge("offset_adapter_dirty_keys", ADAPTER, 12, 120),
        ],
        labels=ADAPTER,
        value="60",
        window="2m",
        late_s=135,
    ),
    Scenario(
        alert="OffsetAdapterRefusedKeys",
        series=[Gauge("offset_adapter_refused_keys", ADAPTER, 0, 3)],
        labels=ADAPTER,
        value="3",
    ),
    Scenario(
        alert="OffsetAdapterStoreDamaged",
        series=[Gauge("offset_adapter_store_lost_writes", ADAPTER, 0, 7)],
        labels=ADAPTER,
        value="7",
    ),
    Scenario(
        alert="OffsetAdapterStoreReopened",
        series=[Counting("offset_adapter_store_reopened_total", ADAPTER, 0, 1 / 60)],
        labels=ADAPTER,
        window="1h",
        late_s=120,
    ),
    Scenario(
        alert="OffsetAdapterUnsyncedTooLong",
        series=[Gauge("offset_adapter_unsynced_age_seconds", ADAPTER, 0, 75)],
        labels=ADAPTER,
        value="1m 15s",
    ),
    Scenario(
        alert="OffsetAdapterJournalDropsRows",
        series=[Counting("offset_adapter_journal_dropped_rows_total", ADAPTER, 0, 1)],
        labels=ADAPTER,
        value="600",
        window="10m",
        late_s=615,
    ),
    Scenario(
        alert="OffsetAdapterClockSkew",
        series=[Gauge("offset_adapter_meta_clock_skew_seconds", ADAPTER, 0.2, -90)],
        labels=ADAPTER,
        value="1m 30s",
    ),
    Scenario(
        alert="OffsetAdapterNotToldOfChanges",
        series=[
            Timestamp("offset_adapter_changes_told_timestamp_seconds", ADAPTER, 2, 600),
            Gauge("offset_adapter_meta_available", ADAPTER, 1, 1),
        ],
        labels=ADAPTER,
        value="10m 0s",
    ),
    Scenario(
        alert="OffsetAdapterBridgeDisconnected",
        series=[Gauge("offset_adapter_rocketmq_connected", ADAPTER, 1, 0), Gauge("offset_adapter_rocketmq_slave", ADAPTER, 0, 0)],
        labels=ADAPTER,
    ),
    Scenario(
        alert="OffsetAdapterBrokerForgetsOffsets",
        series=[Counting("offset_adapter_rocketmq_forgotten_total", ADAPTER, 0, 1)],
        labels=ADAPTER,
        value="600",
        window="10m",
        late_s=615,
    ),
    Scenario(
        alert="OffsetAdapterFrontDisconnected",
        series=[
            Gauge("offset_adapter_robustmq_unreachable_nodes", ADAPTER, 0, 0),
            Gauge("offset_adapter_robustmq_untold_groups", ADAPTER, 0, 3),
        ],
        labels=ADAPTER,
        value="3",
    ),
    Scenario(
        alert="OffsetAdapterRefusesConnections",
        series=[Counting("offset_adapter_refused_connections_total", ADAPTER, 0, 2)],
        labels=ADAPTER,
        value="600",
        window="5m",
        late_s=315,
    ),
    Scenario(
        alert="OffsetsChangedByHand",
        series=[Counting("offset_adapter_changes_total", ADAPTER | {"kind": "reset"}, 0, 1 / 15)],
        labels=ADAPTER | {"kind": "reset"},
        window="5m",
    ),
    Scenario(
        alert="OffsetStoreDiskNearlyFull",
        series=[
            Gauge("offset_adapter_store_disk_free_bytes", ADAPTER, 5e11, 7e10),
            Gauge("offset_adapter_store_disk_size_bytes", ADAPTER, 1e12, 1e12),
        ],
        labels=ADAPTER,
        value="7%",
    ),
    Scenario(
        alert="OffsetStoreDiskFull",
        series=[
            Gauge("offset_meta_store_disk_free_bytes", META, 5e11, 1e10),
            Gauge("offset_meta_store_disk_size_bytes", META, 1e12, 1e12),
        ],
        labels=META,
        value="1%",
    ),
    Scenario(
        alert="OffsetStoreDiskFillsSoon",
        series=[
            Counting("offset_adapter_store_disk_free_bytes", ADAPTER, 0, -8e6, start=3.9e11),
            Gauge("offset_adapter_store_disk_size_bytes", ADAPTER, 1e12, 1e12),
        ],
        labels=ADAPTER,
        window="6h",
        interval_s=60,
        late_s=3_600,
        bad_s=7_200,
    ),
    Scenario(
        alert="OffsetFilesNearLimit",
        series=[
            Gauge("offset_adapter_open_files", ADAPTER, 100, 900),
            Gauge("offset_adapter_open_files_limit", ADAPTER, 1000, 1000),
        ],
        labels=ADAPTER,
        value="90%",
    ),
    Scenario(alert="OffsetConfigDiffers", series=[Gauge("offset_meta_config_file_differs", META, 0, 1)], labels=META),
    Scenario(
        alert="OffsetConfigReloadRefused",
        series=[Gauge("offset_adapter_config_last_reload_success", ADAPTER, 1, 0)],
        labels=ADAPTER,
    ),
    Scenario(alert="OffsetMetaAway", series=[Gauge("up", META, 1, 0)], labels=META),
    Scenario(alert="OffsetMetaUnreachable", series=[Gauge("offset_adapter_meta_available", ADAPTER, 1, 0)], labels=ADAPTER),
    Scenario(
        alert="OffsetMetaCameBackWithLess",
        series=[Counting("offset_adapter_meta_losses", ADAPTER, 0, 1 / 60)],
        labels=ADAPTER,
        window="1h",
        late_s=120,
    ),
    Scenario(alert="OffsetMetaStoreDamaged", series=[Gauge("offset_meta_lost_writes", META, 0, 3)], labels=META, value="3"),
    Scenario(
        alert="OffsetMetaNoLeader",
        series=[Gauge("offset_meta_raft_group_leader", RAFT, 1, 0)],
        labels={"job": "offset-meta", "raft_group": "offsets-1"},
    ),
    Scenario(
        alert="OffsetMetaMembersUnreachable",
        series=[Gauge("offset_meta_raft_group_members_unreachable", RAFT, 0, 1)],
        labels={"job": "offset-meta", "raft_group": "offsets-1"},
        value="1",
    ),
    Scenario(
        alert="OffsetMetaQuotaNearlyUsed",
        series=[
            Gauge("offset_meta_raft_group_bytes", RAFT, 1e9, 9e9),
            Gauge("offset_meta_raft_group_quota_bytes", RAFT, 1e10, 1e10),
        ],
        labels={"job": "offset-meta", "raft_group": "offsets-1"},
        value="90%",
    ),
    Scenario(
        alert="OffsetMetaQuotaUsedUp",
        series=[Gauge("offset_meta_raft_group_full", RAFT, 0, 1)],
        labels={"job": "offset-meta", "raft_group": "offsets-1"},
    ),
    Scenario(
        alert="OffsetMetaLeadersTogether", series=[Gauge("offset_meta_leaders_apart", META, 1, 0)], labels={"job": "offset-meta"}
    ),
    Scenario(
        alert="OffsetMetaOverloaded",
        series=[Counting("offset_meta_refused_calls_total", META | {"limit": "offsets"}, 0, 1)],
        labels=META | {"limit": "offsets"},
        value="300",
        window="5m",
        late_s=315,
    ),
    Scenario(
        alert="OffsetMetaRebalanceAbandoned", series=[Gauge("offset_meta_etcd_moving", META, 0, 1)], labels={"job": "offset-meta"}
    ),
    Scenario(
        alert="OffsetGroupStalled",
        series=[Gauge("offset_adapter_group_lag_status", GROUP, 1, 5)],
        labels={"namespace": "default", "group": "billing"},
        value="5",
    ),
    Scenario(
        alert="OffsetGroupBeyondEnd",
        series=[Gauge("offset_adapter_group_lag_status", GROUP, 1, 6)],
        labels={"namespace": "default", "group": "billing"},
    ),
    Scenario(
        alert="OffsetGroupCommitsSuperseded",
        series=[Counting("offset_adapter_group_superseded_total", GROUP, 0, 1)],
        labels={"namespace": "default", "group": "billing"},
        value="1",
        window="5m",
    ),
    Scenario(
        alert="OffsetGroupLagOverObjective",
        series=[Gauge("offset_adapter_group_lag_seconds", GROUP, 2, 420)],
        labels={"namespace": "default", "group": "billing"},
        value="7m 0s",
    ),
    Scenario(
        alert="OffsetLagShardsForgotten",
        series=[Counting("offset_adapter_lag_forgotten_shards_total", ADAPTER, 0, 1)],
        labels=ADAPTER,
        value="900",
        window="15m",
        late_s=915,
    ),
    Scenario(alert="OffsetLagJobAway", series=[Gauge("up", LAG_JOB, 1, 0)], labels=LAG_JOB),
    Scenario(
        alert="OffsetLagJobBehind",
        series=[Timestamp("offset_lag_job_settled_timestamp_seconds", LAG_JOB, 70, 900)],
        labels=LAG_JOB,
        value="15m 0s",
    ),
)
