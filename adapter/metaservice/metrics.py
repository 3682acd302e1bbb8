"""The Meta Service's Prometheus metrics."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from adapter.model.records import Status
from adapter.runtime.telemetry.metrics import LATENCY_BUCKETS


class MetaMetrics:
    """The metrics of one Meta Service process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter("offset_meta_calls", "Calls by RPC.", ["rpc"], registry=self.registry)
        results = Counter("offset_meta_save_results", "Saved entries by result.", ["status"], registry=self.registry)
        self.results = {status: results.labels(status.name.lower()) for status in Status}
        self.tombstones_dropped = Counter(
            "offset_meta_tombstones_dropped", "Tombstones that were old enough to be forgotten.", registry=self.registry
        )
        self.skewed_saves = Counter(
            "offset_meta_skewed_saves",
            "Saves of adapters whose clock differs from this one by more than 30 s.",
            registry=self.registry,
        )
        self.save_seconds = Histogram(
            "offset_meta_save_seconds", "Duration of a save, sync included.", buckets=LATENCY_BUCKETS, registry=self.registry
        )
        self._refused = Counter(
            "offset_meta_refused_calls", "Calls refused because too much was under way.", ["limit"], registry=self.registry
        )
        self._under_way = Gauge(
            "offset_meta_under_way", "Offsets of saves, and metadata calls, under way.", ["limit"], registry=self.registry
        )

    def refused(self, limit: str) -> Callable[[], None]:
        """A function that counts a call refused by this limit."""
        return self._refused.labels(limit).inc

    def shows_under_way(self, limit: str, read: Callable[[], float]) -> None:
        """Export the value of `read` as the work in progress under this limit."""
        self._under_way.labels(limit).set_function(read)
