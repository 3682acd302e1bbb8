"""The metrics of a Prometheus registry in OpenTelemetry's form."""

from typing import Any

from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from adapter.runtime.telemetry.otlp_metrics import metrics_data


def converted(registry: CollectorRegistry) -> dict[str, Any]:
    """The metrics by name."""
    data = metrics_data(registry.collect(), Resource({}), "scope", 5, 7)
    return {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}


def test_a_counter_is_a_sum_under_its_name_of_a_scrape() -> None:
    """Each series is a point; when a series was made is not one."""
    registry = CollectorRegistry()
    calls = Counter("calls", "Calls.", ["kind"], registry=registry)
    calls.labels("a").inc(2)
    calls.labels("b").inc(3)
    found = converted(registry)
    assert list(found) == ["calls_total"]
    points = found["calls_total"].data.data_points
    assert [(point.attributes, point.value) for point in points] == [({"kind": "a"}, 2), ({"kind": "b"}, 3)]
    assert (found["calls_total"].data.is_monotonic, found["calls_total"].description) == (True, "Calls.")
    assert {(point.start_time_unix_nano, point.time_unix_nano) for point in points} == {(5, 7)}


def test_a_gauge_has_its_unit() -> None:
    """By the last word of its name."""
    registry = CollectorRegistry()
    Gauge("free_bytes", "Free.", registry=registry).set(1.5)
    (metric,) = converted(registry).values()
    assert (metric.name, metric.unit, metric.data.data_points[0].value) == ("free_bytes", "By", 1.5)


def test_a_histogram_has_counts_for_each_bucket() -> None:
    """Prometheus' are cumulative, OpenTelemetry's are not; the last bucket has no edge."""
    registry = CollectorRegistry()
    waits = Histogram("wait_seconds", "Waits.", ["kind"], buckets=(1, 2), registry=registry)
    for value in (0.5, 1.5, 1.7, 9):
        waits.labels("a").observe(value)
    waits.labels("b").observe(1)
    (metric,) = converted(registry).values()
    first, second = metric.data.data_points
    assert (metric.name, metric.unit) == ("wait_seconds", "s")
    assert (first.attributes, first.count, first.sum) == ({"kind": "a"}, 4, 12.7)
    assert (first.bucket_counts, first.explicit_bounds) == ([1, 2, 1], [1.0, 2.0])
    assert (second.attributes, second.bucket_counts) == ({"kind": "b"}, [1, 0, 0])


def test_another_type_is_a_gauge() -> None:
    """Nothing is left out."""
    registry = CollectorRegistry()
    Info("build", "Build.", registry=registry).info({"version": "1"})
    (metric,) = converted(registry).values()
    assert metric.data.data_points[0].attributes == {"version": "1"}
