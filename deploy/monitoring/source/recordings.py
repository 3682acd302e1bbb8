"""Recording rules: what alerts and dashboards ask for again and again, and the objectives of the lag in seconds."""

from collections.abc import Sequence

from deploy.monitoring.source.model import Recording

LAG_OBJECTIVE_S = 300  # five minutes behind: what people notice, unless somebody says otherwise for a group

RECORDINGS = (
    Recording("offset_adapter:commits:rate5m", "rate(offset_adapter_commits_total[<5m>])"),
    Recording(
        "offset_adapter:commit_seconds:p99_5m",
        "histogram_quantile(0.99, sum by (job, instance, le) (rate(offset_adapter_commit_seconds_bucket[<5m>])))",
    ),
    Recording(
        "offset_adapter:flush_seconds:p99_5m",
        "histogram_quantile(0.99, sum by (job, instance, le) (rate(offset_adapter_flush_seconds_bucket[<5m>])))",
    ),
    Recording(
        "offset_meta:save_seconds:p99_5m",
        "histogram_quantile(0.99, sum by (job, instance, le) (rate(offset_meta_save_seconds_bucket[<5m>])))",
    ),
    Recording(
        "offset:store_disk_free:ratio",
        "(offset_adapter_store_disk_free_bytes / offset_adapter_store_disk_size_bytes)"
        " or (offset_meta_store_disk_free_bytes / offset_meta_store_disk_size_bytes)",
    ),
    Recording(
        "offset:open_files:ratio",
        "(offset_adapter_open_files / offset_adapter_open_files_limit)"
        " or (offset_meta_open_files / offset_meta_open_files_limit)",
    ),
    # In Kubernetes each installation has a namespace of its own, and its Raft groups the same names as those of others.
    Recording(
        "offset_meta:raft_group_quota_used:ratio",
        "max by (job, namespace, raft_group) (offset_meta_raft_group_bytes)"
        " / min by (job, namespace, raft_group) (offset_meta_raft_group_quota_bytes)",
    ),
    # A group of several brokers is on several adapters; its lag is that of the shard that is furthest behind.
    Recording("offset_adapter:group_lag_seconds:max", "max by (namespace, group) (offset_adapter_group_lag_seconds)"),
    Recording("offset_adapter:group_lag_messages:sum", "sum by (namespace, group) (offset_adapter_group_lag_messages)"),
)


def objectives(default_s: float, others: Sequence[tuple[str, float]] = ()) -> Recording:
    """The objective of each group's lag in seconds. `others`: regular expressions of names, and seconds; the first wins."""
    parts = [_objective(f'{{group=~"{_escaped(pattern)}"}}', seconds) for pattern, seconds in others]
    return Recording("offset_adapter:group_lag_objective_seconds", " or ".join([*parts, _objective("", default_s)]))


def _objective(matcher: str, seconds: float) -> str:
    return f"(group by (namespace, group) (offset_adapter_group_lag_seconds{matcher}) * {seconds:g})"


def _escaped(pattern: str) -> str:
    return pattern.replace("\\", "\\\\").replace('"', '\\"')
