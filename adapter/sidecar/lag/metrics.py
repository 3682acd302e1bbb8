"""The metrics of the live lag. Their number is bounded: the worst groups and named ones have their own, the rest are summed."""

import re
from collections.abc import Iterator
from fnmatch import translate

import numpy as np
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from adapter.model.lag_rows import Ints
from adapter.model.lag_status import Status
from adapter.rpc import lag_pb
from adapter.runtime.telemetry.metrics import LATENCY_BUCKETS
from adapter.sidecar.config import LagSection
from adapter.sidecar.lag.view import View

_PREFIX = "offset_adapter"
_LABELS = ("namespace", "group")


class LagMetrics(Collector):
    """Reads the last evaluation at each scrape, in the metrics thread. One per process; the view is replaced."""

    def __init__(self, section: LagSection, registry: CollectorRegistry) -> None:
        self._most = section.metric_groups_max
        patterns = [translate(pattern) for pattern in section.metric_groups]
        self._named = re.compile("|".join(patterns)).match if patterns else None
        self._fitting: tuple[int, Ints] = (-1, np.zeros(0, np.int64))
        self._view = View.nothing()
        self._forgotten = 0
        self._cpu_s = self._longest_s = 0.0
        self._seconds = Histogram(
            f"{_PREFIX}_lag_evaluation_seconds",
            "Duration of an evaluation of the live lag, most of it in another thread.",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        registry.register(self)

    def evaluated(self, view: View, seconds: float, cpu_s: float, longest_s: float) -> None:
        """Show the newest evaluation from now on. `longest_s`: the longest time for which it held the event loop."""
        self._cpu_s += cpu_s
        self._longest_s = max(self._longest_s, longest_s)
        self._forgotten += max(view.forgotten - self._view.forgotten, 0)
        self._view = view
        self._seconds.observe(seconds)

    def ended(self) -> None:
        """The store is closed: until the next evaluation nothing is known."""
        self._view = View.nothing()

    def collect(self) -> Iterator[Metric]:
        """The metrics in the form of Prometheus. Called in the metrics thread."""
        view = self._view  # once: it is replaced by the event loop
        chosen = self._chosen(view)
        yield from _of_groups(view, chosen)
        sums = view.sums
        rest = view.kept
        rest[chosen] = False
        lags = sums.lag[rest]
        text = "Messages that groups without a metric of their own have still to read, where that is known."
        yield GaugeMetricFamily(
            f"{_PREFIX}_other_groups_lag_messages", text, value=float(lags[lags > 0].astype(np.float64).sum())
        )
        states = GaugeMetricFamily(f"{_PREFIX}_lag_groups", "Groups of which lag is kept, by status.", labels=["status"])
        counts = np.bincount(sums.status[view.kept], minlength=len(Status))
        for status in Status:
            states.add_metric([status.name.lower()], float(counts[status]))
        yield states
        yield GaugeMetricFamily(f"{_PREFIX}_lag_shards", "Shards of groups of which lag is kept.", value=view.shards_kept)
        yield CounterMetricFamily(
            f"{_PREFIX}_lag_forgotten_shards",
            "Shards whose lag was forgotten for lack of room (lag.shards).",
            value=self._forgotten,
        )

        yield CounterMetricFamily(
            f"{_PREFIX}_lag_cpu_seconds", "CPU time that evaluations of the live lag took.", value=self._cpu_s
        )
        text = "The longest time for which an evaluation of the live lag held up commits, since the start."
        yield GaugeMetricFamily(f"{_PREFIX}_lag_longest_hold_seconds", text, value=self._longest_s)

    def _chosen(self, view: View) -> Ints:
        """The groups with metrics of their own: the worst, and named ones."""
        worst = view.order(lag_pb.WORST)[: self._most]
        if self._named is None:
            return worst
        version, fitting = self._fitting
        if version != view.names_version:
            kept = np.flatnonzero(view.kept).tolist()
            fitting = np.array([group for group in kept if self._named(view.groups[group].group)], np.int64)
            self._fitting = view.names_version, fitting
        return np.union1d(worst, fitting[np.argsort(view.ranks[fitting])][: self._most])


def _of_groups(view: View, chosen: Ints) -> Iterator[Metric]:
    """The metrics of some groups. What is unknown has no sample."""
    lag = GaugeMetricFamily(f"{_PREFIX}_group_lag_messages", "Messages that the group has still to read.", labels=_LABELS)
    seconds = GaugeMetricFamily(
        f"{_PREFIX}_group_lag_seconds",
        "How long ago the end of its log was where the group is; of its slowest shard.",
        labels=_LABELS,
    )
    status = GaugeMetricFamily(
        f"{_PREFIX}_group_lag_status",
        "0 unknown, 1 ok, 2 warn, 3 rewind, 4 stall, 5 stop, 6 beyond the end of its log; of its worst shard.",
        labels=_LABELS,
    )
    commit = GaugeMetricFamily(
        f"{_PREFIX}_group_last_commit_timestamp_seconds", "When the group committed last (Unix time).", labels=_LABELS
    )
    for message in view.messages(chosen):
        labels = (message.namespace, message.group)
        if message.HasField("lag"):
            lag.add_metric(labels, float(message.lag))
        if message.HasField("lag_seconds"):
            seconds.add_metric(labels, message.lag_seconds)
        status.add_metric(labels, float(message.status))
        if message.last_commit_at_ms:
            commit.add_metric(labels, message.last_commit_at_ms / 1000)
    yield from (lag, seconds, status, commit)
