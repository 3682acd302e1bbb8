"""The sidecar's metrics."""

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from adapter.model.records import GroupKey, Status
from adapter.rpc import offsets_pb
from adapter.runtime.telemetry.metrics import LATENCY_BUCKETS

_SIZE_BUCKETS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


class AdapterMetrics:
    """The adapter's counters, gauges and histograms. One per process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.commit_errors = self._counter("commit_errors", "Refused commit requests, by gRPC status.", ["status"])
        self._commits = CommitsCollector("offset_adapter")
        self.registry.register(self._commits)
        results = self._counter("save_results", "Saved entries by what the Meta Service made of them.", ["status"])
        self.results = {status: results.labels(status.name.lower()) for status in Status}
        self._save_calls = self._counter("save_calls", "Save calls to the Meta Service.", ["cause"])
        self._save_entries = self._counter("save_entries", "Entries sent in save calls.", ["cause"])
        self._save_seconds = self._histogram("save_call_seconds", "Duration of a save call.", LATENCY_BUCKETS)
        self._flush_size = self._histogram("flush_keys", "Keys in a flush.", _SIZE_BUCKETS)
        self._flush_seconds = self._histogram("flush_seconds", "Duration of a successful flush.", LATENCY_BUCKETS)
        self._flush_failures = self._counter("flush_failures", "Flushes that could not be sent whole.")
        self.recovered = self._gauge("recovery_keys", "Keys of the last recovery, by what became of them.", ["result"])
        self.recovery_seconds = self._gauge("recovery_seconds", "Duration of the last recovery.")
        self.reopened = self._counter("store_reopened", "Times that the local store failed and was opened again.")
        self.expired_groups = self._counter("expired_groups", "Groups that were taken away: nobody committed to them any more.")
        self.expired_keys = self._counter("expired_keys", "Offsets that these groups had.")
        self.refused_connections = self._counter("refused_connections", "Connections refused: the files left are the store's.")
        self._changes = self._counter(
            "changes", "Executed changes of offsets by an administrator: one for each group that a call changed.", ["kind"]
        )
        for kind in ("reset", "delete", "clone", "import"):
            self._changes.labels(kind)
        self.swept = self._gauge("expiry_sweep_timestamp_seconds", "When the last look for old groups ended (Unix time).")
        self.save_call_count = 0
        self.committed = self._commits.add
        self.committed_together = self._commits.add_together
        for cause in ("flush", "write_through"):
            self._save_calls.labels(cause)

    @property
    def commit_count(self) -> int:
        """How many offsets were acknowledged since the start."""
        return self._commits.offsets

    def save_call(self, cause: str, entries: int) -> AbstractContextManager[None]:
        """Time and count one save call."""
        return self._timed_call(cause, entries)

    def flushed(self, keys: int, seconds: float) -> None:
        """Observe a flush that was answered: how many keys it had, and how long it took."""
        self._flush_size.observe(keys)
        self._flush_seconds.observe(seconds)

    def flush_failed(self) -> None:
        """Count a flush of which a part could not be sent or got no reply."""
        self._flush_failures.inc()

    def changed(self, kind: str) -> None:
        """Count an executed reset, delete, clone or import of one group, also one that failed half way."""
        self._changes.labels(kind).inc()

    @contextmanager
    def _timed_call(self, cause: str, entries: int) -> Iterator[None]:
        self.save_call_count += 1
        self._save_calls.labels(cause).inc()
        self._save_entries.labels(cause).inc(entries)
        started = time.perf_counter()
        try:
            yield
        finally:
            self._save_seconds.observe(time.perf_counter() - started)

    def _counter(self, name: str, text: str, labels: list[str] | None = None) -> Counter:
        return Counter(f"offset_adapter_{name}", text, labels or (), registry=self.registry)

    def _gauge(self, name: str, text: str, labels: list[str] | None = None) -> Gauge:
        return Gauge(f"offset_adapter_{name}", text, labels or (), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"offset_adapter_{name}", text, buckets=buckets, registry=self.registry)


SUPERSEDED_GROUPS = 100  # with a metric of their own


class CommitsCollector(Collector):
    """The metrics of commits: plain numbers until a scrape, since they change with each message of a broker."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._buckets = [0] * (len(LATENCY_BUCKETS) + 1)
        self._seconds = 0.0
        self.offsets = 0
        self._superseded = 0
        self._groups: OrderedDict[GroupKey, int] = OrderedDict()  # of superseded offsets; the newest last

    def add(self, offsets: int, superseded: Sequence[offsets_pb.Superseded], seconds: float) -> None:
        """Count an acknowledged commit request with this number of offsets, `seconds` after it arrived."""
        self.offsets += offsets
        if superseded:
            self._superseded += len(superseded)
            self._count_groups(superseded)
        self._seconds += seconds
        self._buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1

    def _count_groups(self, superseded: Sequence[offsets_pb.Superseded]) -> None:
        groups = self._groups
        for row in superseded:
            key = GroupKey(row.namespace, row.group)
            groups[key] = groups.get(key, 0) + 1
            groups.move_to_end(key)
        while len(groups) > SUPERSEDED_GROUPS:
            groups.popitem(last=False)

    def add_together(self, requests: int, offsets: int, seconds: float) -> None:
        """Count acknowledged requests, and all their offsets, `seconds` after the first of them arrived."""
        self.offsets += offsets
        self._seconds += requests * seconds
        self._buckets[bisect_left(LATENCY_BUCKETS, seconds)] += requests

    def collect(self) -> Iterator[Metric]:
        """The metrics in the form of Prometheus. Called in the metrics thread."""
        yield CounterMetricFamily(f"{self._prefix}_commits", "Acknowledged offsets.", value=self.offsets)
        text = "Commits that a larger standing value superseded locally."
        yield CounterMetricFamily(f"{self._prefix}_superseded", text, value=self._superseded)
        text = f"The same of one group; of the {SUPERSEDED_GROUPS} groups that it happened to last."
        by_group = CounterMetricFamily(f"{self._prefix}_group_superseded", text, labels=["namespace", "group"])
        for key, count in list(self._groups.items()):
            by_group.add_metric(key, count)
        yield by_group
        edges = [*map(floatToGoString, LATENCY_BUCKETS), "+Inf"]
        yield HistogramMetricFamily(
            f"{self._prefix}_commit_seconds",
            "From a commit request to its answer.",
            buckets=list(zip(edges, accumulate(self._buckets), strict=True)),
            sum_value=self._seconds,
        )
