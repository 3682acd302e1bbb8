"""Prometheus metrics; `metrics_http` serves them. Names follow Prometheus' conventions: base units, `_total`."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

LATENCY_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class GaugesCollector(Collector):
    """Gauges whose values are read at each scrape."""

    def __init__(self, prefix: str, read: Callable[[], dict[str, tuple[str, float]]]) -> None:
        self._prefix = prefix
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield what `read` returns: name -> (help, value)."""
        for name, (text, value) in self._read().items():
            yield GaugeMetricFamily(f"{self._prefix}_{name}", text, value=value)


class CountersCollector(Collector):
    """Counters whose values are read at each scrape."""

    def __init__(self, prefix: str, read: Callable[[], dict[str, tuple[str, float]]]) -> None:
        self._prefix = prefix
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield what `read` returns: name -> (help, value)."""
        for name, (text, value) in self._read().items():
            yield CounterMetricFamily(f"{self._prefix}_{name}", text, value=value)
