"""One batch of the lag job: one Spark job from segments to files, then the manifest. The driver sees a row for each bucket.

A repeated batch gives the same tables. Keys are split into buckets by their shard; a bucket that has grown is split in two at the
next batch, so that a task's memory stays bounded however many keys there are.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame

from adapter.errors import AdapterError
from adapter.pipeline.config import LagSection
from adapter.pipeline.lag import schemas, stages
from adapter.pipeline.lag.clock import clock_of
from adapter.pipeline.lag.files import STATE, BatchInfo
from adapter.pipeline.lag.publisher import Publisher
from adapter.pipeline.lag.stages import COMBINED, EVALUATED, GATHERED, Bucket, Told, Work

FIRST_BUCKETS = 4
# A bucket with more keys is split: a key takes some 700 bytes in the task that evaluates it.
MOST_KEYS = 250_000
# The sums of the groups of up to so many buckets are combined by the driver, those of more in a stage of their own.
_DRIVERS_BUCKETS = 8


def process(segments: DataFrame, batch: int, plan: str, section: LagSection, publisher: Publisher) -> BatchInfo:
    """Process a batch of segments, and make it complete. Raises AdapterError, OSError, and Spark's errors.

    `segments`: rows of SEGMENTS and PLANNED_US. `plan` identifies them, see `Publisher.done`.
    """
    # Of the stream's own session. Spark would plan a second time between stages, and has nothing to choose there.
    segments.sparkSession.conf.set("spark.sql.adaptive.enabled", "false")
    before = publisher.begin(batch)
    work = _work(batch, before, section)
    texts, groups = _run(segments, work)
    if not texts:  # no segment: no task has said anything
        texts, groups = _run(segments.sparkSession.createDataFrame(_nothing(work), GATHERED), work, gathered=True)
    info = _info(work, [Bucket.from_json(text) for text in texts], groups, plan)
    publisher.publish(info)
    return info


def buckets_after(before: BatchInfo | None) -> int:
    """Into how many buckets the keys are split, a power of two: as many as before, twice as many if one has grown too large."""
    if before is None:
        return FIRST_BUCKETS
    buckets, largest = before.buckets, before.largest
    while largest > MOST_KEYS:
        buckets, largest = buckets * 2, -(-largest // 2)
    return buckets


def _work(batch: int, before: BatchInfo | None, section: LagSection) -> Work:
    buckets = buckets_after(before)
    known = (before.brokers, tuple(before.files[STATE])) if before else ({}, ())
    pieces = max(1, buckets // _DRIVERS_BUCKETS)
    journals = tuple(place.url for place in section.journals)
    return Work(section.output, batch, journals, section.rules, buckets, pieces, *known)


def _run(rows: DataFrame, work: Work, *, gathered: bool = False) -> tuple[list[str], list[str]]:
    """What each bucket tells, and the files of `groups`."""
    found = rows if gathered else rows.mapInArrow(stages.gathering(work), GATHERED)
    evaluated = found.repartitionById(work.buckets, "bucket").mapInArrow(stages.evaluating(work), EVALUATED)
    if work.pieces == 1:
        return stages.combined(work, evaluated.toArrow().to_batches())
    combined = evaluated.repartitionById(work.pieces, "piece").mapInArrow(stages.combining(work), COMBINED).toArrow()
    told, paths = (combined[name].to_pylist() for name in ("told", "path"))
    return [text for some in told for text in some], paths


def _nothing(work: Work) -> list[tuple[int, str, None]]:
    """The rows of a task that has read no segment."""
    return [(bucket, stages.to_json(Told()), None) for bucket in range(work.buckets)]


def _info(work: Work, buckets: Sequence[Bucket], groups: Sequence[str], plan: str) -> BatchInfo:
    told = _told(work, buckets)
    clock = clock_of(told.brokers)
    files = {
        name: [path for bucket in buckets for path in bucket.files[name]] for name in ("shards", "rewinds", "rejects", STATE)
    }
    files["groups"] = list(groups)
    for name, schema in (("rewinds", schemas.REWINDS), ("rejects", schemas.REJECTS)):
        if not files[name]:
            files[name] = [stages.write_empty(work, name, schema)]
    return BatchInfo(
        work.batch,
        rows=told.rows,
        now=clock.now,
        settled=clock.settled,
        odd=told.odd,
        rejects=sum(bucket.rejects for bucket in buckets),
        brokers=told.brokers,
        buckets=work.buckets,
        largest=max(bucket.keys for bucket in buckets),
        plan=plan,
        files=files,
    )


def _told(work: Work, buckets: Sequence[Bucket]) -> Told:
    """What was told of the rows. Each bucket has heard it from every task, so all have to say the same."""
    told = buckets[0].told
    if [bucket.bucket for bucket in buckets] != list(range(work.buckets)) or any(bucket.told != told for bucket in buckets):
        found = [(bucket.bucket, bucket.told.rows) for bucket in buckets]
        raise AdapterError(f"batch {work.batch}: buckets and their rows do not agree: {found}; nothing of it was published")
    return told
