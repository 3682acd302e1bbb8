"""The metrics of a Prometheus registry in OpenTelemetry's form, under their names of /metrics. No I/O.

As OpenTelemetry's "Prometheus and OpenMetrics Compatibility" says: a counter is a monotonic sum, a histogram's cumulative buckets
become counts, and each sample of another type is a gauge.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

_UNITS = {"seconds": "s", "bytes": "By"}  # UCUM, by the last word of a name


def metrics_data(families: Iterable[Family], resource: Resource, scope: str, started_ns: int, now_ns: int) -> MetricsData:
    """All metrics as of `now_ns`, counted since `started_ns` (Unix nanoseconds)."""
    metrics = [metric for family in families for metric in _metrics(family, started_ns, now_ns)]
    scoped = ScopeMetrics(InstrumentationScope(scope), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scoped], "")])


def _metrics(family: Family, started_ns: int, now_ns: int) -> Iterator[Metric]:
    unit = next((unit for word, unit in _UNITS.items() if family.name.endswith(f"_{word}")), "")
    if family.type == "histogram":
        points = [_histogram(samples, started_ns, now_ns) for samples in _by_labels(family.samples)]
        data = Histogram([point for point in points if point], AggregationTemporality.CUMULATIVE)
        yield Metric(family.name, family.documentation, unit, data)
        return
    is_counter = family.type == "counter"
    named: dict[str, list[NumberDataPoint]] = {}
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            start = started_ns if is_counter else 0
            named.setdefault(sample.name, []).append(NumberDataPoint(sample.labels, start, now_ns, sample.value))
    for name, found in named.items():
        sums = Sum(found, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        yield Metric(name, family.documentation, unit, sums if is_counter else Gauge(found))


def _by_labels(samples: Iterable[Sample]) -> Iterable[list[Sample]]:
    """The samples of each series of a histogram."""
    found: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        found.setdefault(tuple(_without_edge(sample.labels).items()), []).append(sample)
    return found.values()


def _histogram(samples: Iterable[Sample], started_ns: int, now_ns: int) -> HistogramDataPoint | None:
    edges: list[float] = []
    reached: list[float] = [0.0]
    labels: Mapping[str, str] = {}
    total = 0.0
    for sample in samples:
        labels = _without_edge(sample.labels)
        if sample.name.endswith("_bucket"):
            edges.append(float(sample.labels["le"]))
            reached.append(sample.value)
        elif sample.name.endswith("_sum"):
            total = sample.value
    if not edges or not math.isinf(edges[-1]):
        return None
    return HistogramDataPoint(
        attributes=labels,
        start_time_unix_nano=started_ns,
        time_unix_nano=now_ns,
        count=int(reached[-1]),
        sum=total,
        bucket_counts=[int(after - before) for before, after in pairwise(reached)],
        explicit_bounds=edges[:-1],
        min=None,
        max=None,
    )


def _without_edge(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name != "le"}
