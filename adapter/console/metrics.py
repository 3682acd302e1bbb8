"""The console's metrics: what its pages cost, and who looks at them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "offset_console"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0)


class ConsoleMetrics:
    """All metrics of the process, in a registry of their own unless one is given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._pages = Histogram(
            f"{PREFIX}_page_seconds",
            "Seconds from a request to its complete page or JSON, by page.",
            ["page"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._refused = Counter(
            f"{PREFIX}_requests_refused", "Requests answered with an error, by status code.", ["code"], registry=self.registry
        )
        self.streams = Gauge(f"{PREFIX}_live_streams", "Live pages that are open.", registry=self.registry)
        self.dropped = Counter(
            f"{PREFIX}_readers_dropped", "Live pages that were closed since their reader took nothing.", registry=self.registry
        )

    @contextmanager
    def page(self, name: str) -> Iterator[None]:
        """Measure the time of a page, unless it is refused."""
        began = time.perf_counter()
        yield
        self._pages.labels(name).observe(time.perf_counter() - began)

    def refused(self, code: int) -> None:
        """Count an answer with an error."""
        self._refused.labels(str(code)).inc()
