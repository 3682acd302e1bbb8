"""The lag job's own metrics: what they count, and that the documents list them."""

import json
import math
import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from pyspark.sql.streaming.listener import SourceProgress

from adapter.pipeline.journal.offset import Progress, to_json
from adapter.pipeline.lag.files import BatchInfo
from adapter.pipeline.lag.metrics import PREFIX, LagMetrics, backlog

METRICS = Path(__file__).parents[3] / "docs" / "metrics.md"


def value(metrics: LagMetrics, name: str, **labels: str) -> float | None:
    """A sample."""
    return metrics.registry.get_sample_value(f"{PREFIX}_{name}", labels)


def test_batches_add_up_and_each_broker_has_the_time_of_its_newest_row() -> None:
    """Times are Unix seconds."""
    metrics = LagMetrics()
    metrics.on_batch(
        BatchInfo(0, rows=10, now=7_000_000, settled=5_500_000, rejects=1, brokers={"a": 7_000_000, "b": 5_500_000}), 0.5
    )
    metrics.on_batch(BatchInfo(1, rows=5, now=9_000_000, settled=6_000_000, brokers={"a": 9_000_000, "b": 5_500_000}), 1.5)
    assert value(metrics, "rows_total") == 15
    assert value(metrics, "rejects_total") == 1
    assert (value(metrics, "batch_seconds_count"), value(metrics, "batch_seconds_sum")) == (2, 2.0)
    assert (value(metrics, "journal_timestamp_seconds", broker="a"), value(metrics, "journal_timestamp_seconds", broker="b")) == (
        9.0,
        5.5,
    )
    assert value(metrics, "settled_timestamp_seconds") == 6.0
    assert (value(metrics, "last_batch_timestamp_seconds") or 0) > 0


def test_a_job_that_has_just_started_is_not_behind() -> None:
    """Its times are those of the newest batch of former runs; without one there are none, and not those of 1970."""
    metrics = LagMetrics()
    metrics.begin(None)
    assert math.isnan(value(metrics, "settled_timestamp_seconds") or 0)
    metrics.begin(BatchInfo(4, rows=5, now=9_000_000, settled=6_000_000, brokers={"a": 9_000_000}))
    assert value(metrics, "settled_timestamp_seconds") == 6.0
    assert value(metrics, "journal_timestamp_seconds", broker="a") == 9.0
    assert value(metrics, "rows_total") == 0
    assert math.isnan(value(metrics, "last_batch_timestamp_seconds") or 0)


@pytest.mark.parametrize(
    ("end", "latest", "segments"),
    [
        ({}, {"a/1": Progress(3)}, 3),
        ({"a/1": Progress(3)}, {"a/1": Progress(3)}, 0),
        ({"a/1": Progress(3, holes=((1, 1),))}, {"a/1": Progress(5), "b/1": Progress(2, holes=((0, 0),))}, 4),
        ({"a/1": Progress(3)}, None, 0),
        (None, None, 0),
    ],
)
def test_the_backlog_is_what_was_found_and_is_in_no_batch(
    end: dict[str, Progress] | None, latest: dict[str, Progress] | None, segments: int
) -> None:
    """By the offsets of the progress: that of the batch, and the latest that the source knows."""
    to, found = ("null" if offset is None else json.dumps(to_json(offset)) for offset in (end, latest))
    assert backlog(SourceProgress("journal", "null", to, found, 1, 1.0, 1.0, {})) == segments


def test_the_documents_list_them() -> None:
    """Not one more or less."""
    documented = set(re.findall(rf"`({PREFIX}_[a-z_]+)", METRICS.read_text()))
    served = set(re.findall(rf"^# TYPE ({PREFIX}_\S+) \S+$", generate_latest(LagMetrics().registry).decode(), re.MULTILINE))
    assert documented == {name for name in served if not name.endswith("_created")}
