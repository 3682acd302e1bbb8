"""The rules of `reconcile`: compared with `model` on random rows, and on examples."""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegerType, StructType

from adapter.model.records import FIRST_EPOCH, OffsetRecord, merge, resolve
from adapter.model.schemas import RECORDS, SNAPSHOT
from adapter.pipeline.reconcile import compare as reconcile

BROKERS = [f"broker-{number}" for number in range(70)]  # more than the bits of one long
START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
SHIFT = 1 << 32


class Held(NamedTuple):
    """A record in an adapter's snapshot."""

    broker: int
    record: OffsetRecord
    dirty: bool = False
    problem: str | None = None


def at(seconds: int) -> int:
    """A time from Unix milliseconds."""
    return START_MS + seconds * 1000


def _row(name: str, record: OffsetRecord, problem: str | None) -> tuple[Any, ...]:
    committed_at = START + timedelta(milliseconds=record.committed_at_ms - START_MS) if record.committed_at_ms else None
    offset = None if problem else record.offset
    labels = (record.topic, record.partition)
    return ("n", "g", name, *labels, record.epoch, offset, record.live, committed_at, record.metadata, problem)


def local_frame(spark: SparkSession, keys: Mapping[str, Sequence[Held]]) -> DataFrame:
    """A frame as `read_snapshots` returns it."""
    rows = [
        (*_row(name, held.record, held.problem), held.dirty, held.broker) for name, all_held in keys.items() for held in all_held
    ]
    schema: StructType = from_arrow_schema(SNAPSHOT).add("broker", IntegerType())
    return spark.createDataFrame(rows, schema)


def remote_frame(spark: SparkSession, records: Mapping[str, OffsetRecord], problem: str | None = None) -> DataFrame:
    """A frame as the data source `offsets` returns it."""
    return spark.createDataFrame([_row(name, record, problem) for name, record in records.items()], from_arrow_schema(RECORDS))


def differences(spark: SparkSession, local: Mapping[str, Sequence[Held]], remote: Mapping[str, OffsetRecord]) -> dict[str, Row]:
    """The row of each shard."""
    rows = reconcile.compare(local_frame(spark, local), remote_frame(spark, remote), BROKERS).collect()
    assert len(rows) == len({row["shard"] for row in rows})
    return {row["shard"]: row for row in rows}


class Expected(NamedTuple):
    """The expected kind, with + if it is planned; empty where there is no difference."""

    kind: str
    plan: OffsetRecord


def largest(all_held: Iterable[Held], remote: OffsetRecord | None) -> Held:
    """The largest local record by `model`: each is resolved against the remote one, then merged."""
    known = [held for held in all_held if held.record.epoch]
    unknown = [held for held in all_held if not held.record.epoch]
    best = max(known, key=lambda held: (held.record, held.dirty, held.broker), default=None)
    if best:
        best = best._replace(record=resolve(best.record, remote))
    meets = [record for record in (remote, best.record if best else None) if record]
    if unknown:
        late = max(unknown, key=lambda held: (held.record, held.dirty, held.broker))
        standing = max(meets, default=None)
        record = resolve(late.record, standing) if standing else late.record._replace(epoch=FIRST_EPOCH)
        late = late._replace(record=record)
        best = late if best is None or merge(late.record, best.record) != best.record else best
    assert best is not None
    return best


def expected(all_held: Sequence[Held], remote: OffsetRecord | None) -> Expected:
    """The row of a key in plain Python."""
    others = [held for held in all_held if not remote or (*held.record[:3],) != (*remote[:3],)]
    settled = len(others) < len(all_held)
    if not others:
        return Expected("", all_held[0].record)
    _, record, dirty, _ = largest(others, remote)
    live_at = [each.committed_at_ms for each in [*(held.record for held in all_held), remote] if each and each.live]
    buries = not record.live and max(live_at, default=0) > record.committed_at_ms
    if remote is None:
        kind = "epoch_conflict" if buries else "missing+" if record.live or dirty else ""
    elif record.position == remote.position:
        back = record.live and (dirty or record.committed_at_ms > remote.committed_at_ms)
        kind = "" if record.live == remote.live else "behind+" if back else "" if settled else "ahead"
    else:
        above = record.position > remote.position
        if settled and not above:
            return Expected("", record)
        higher, lower = (record, remote) if above else (remote, record)
        if higher.live and lower.live and higher.offset < lower.offset:
            kind = "epoch_conflict+" if above else "epoch_conflict"
        elif above:
            kind = "epoch_conflict" if buries else "behind+"
        else:
            kind = "ahead"
    return Expected(kind, record)


def _kind(row: Row | None) -> str:
    return "" if row is None else f"{row['kind']}{'+' if row['planned'] else ''}"


def _random_record(chance: random.Random, *, epoch: int) -> OffsetRecord:
    live = chance.random() < 0.75
    offset = 0 if not live and chance.random() < 0.5 else chance.randrange(4)
    when = at(chance.randrange(4)) if chance.random() < 0.9 else 0
    return OffsetRecord(epoch, offset, live, when, chance.choice(["", "m"]), chance.choice(["", "t"]), chance.randrange(2))


def _universe(chance: random.Random, size: int) -> tuple[dict[str, list[Held]], dict[str, OffsetRecord]]:
    local: dict[str, list[Held]] = {}
    remote: dict[str, OffsetRecord] = {}
    for number in range(size):
        holders = chance.sample(range(len(BROKERS)), chance.choice([0, 1, 1, 1, 2, 3]))
        held = [
            Held(broker, _random_record(chance, epoch=chance.choice([0, 1, 1, 2, SHIFT])), chance.random() < 0.3)
            for broker in holders
        ]
        if held:
            local[f"{number}"] = held
        if chance.random() < 0.8:
            remote[f"{number}"] = _random_record(chance, epoch=chance.choice([1, 1, 2, SHIFT]))
    return local, remote


def test_every_key_is_judged_as_the_model_merges_it(spark: SparkSession) -> None:
    """Kind, plan and brokers of random keys; merging the plan never moves a record back, and leaves none below it."""
    local, remote = _universe(random.Random(5), 4_000)
    found = differences(spark, local, remote)
    seen: dict[str, int] = defaultdict(int)
    for name, held in local.items():
        wanted = expected(held, remote.get(name))
        row = found.pop(name, None)
        seen[wanted.kind] += 1
        assert _kind(row) == wanted.kind, (held, remote.get(name), row)
        if row is None:
            continue
        plan = wanted.plan
        assert (row["plan_epoch"], row["local_offset"], row["local_live"]) == (plan.epoch, plan.offset, plan.live), (held, row)
        assert (row["metadata"], row["topic"], row["partition"]) == (plan.metadata, plan.topic, plan.partition), (held, row)
        assert row["brokers"] == [BROKERS[broker] for broker in sorted(one.broker for one in held)]
        assert row["broker"] in row["brokers"]
        if row["planned"]:
            stands = merge(plan, remote.get(name, plan))
            assert stands == plan, "a planned record does not raise what stands"
    assert found == {}, "keys that no adapter has are no difference"
    kinds = {"missing+", "behind+", "epoch_conflict+", "epoch_conflict", "ahead", ""}
    assert kinds == {name for name, count in seen.items() if count >= 10}


def dead(epoch: int, offset: int = 0, *, since: int = 0) -> OffsetRecord:
    """A tombstone."""
    return OffsetRecord(epoch, offset, live=False, committed_at_ms=at(since))


def live(epoch: int, offset: int, *, since: int = 0) -> OffsetRecord:
    """A record with an offset."""
    return OffsetRecord(epoch, offset, committed_at_ms=at(since))


CASES: dict[str, tuple[list[Held], OffsetRecord | None, str]] = {
    "missing": ([Held(0, live(1, 5))], None, "missing+"),
    "behind": ([Held(0, live(1, 5))], live(1, 3), "behind+"),
    "ahead": ([Held(0, live(1, 5))], live(1, 9), "ahead"),
    "equal": ([Held(0, live(1, 5))], live(1, 5, since=9), ""),
    "after a hand-over": ([Held(0, live(1, 5)), Held(64, live(1, 9))], live(1, 9), ""),
    "a rewind here": ([Held(0, live(2, 5))], live(1, 9), "epoch_conflict+"),
    "a rewind there": ([Held(0, live(1, 9))], live(2, 5), "epoch_conflict"),
    "a reset forward": ([Held(0, live(SHIFT, 99))], live(1, 9), "behind+"),
    "unknown epoch": ([Held(0, live(0, 9))], live(1, 5), "behind+"),
    "unknown epoch before a reset": ([Held(0, live(0, 9, since=1))], live(SHIFT, 5, since=2), "epoch_conflict"),
    "unknown epoch after a reset that is held": ([Held(0, live(0, 9, since=3))], live(SHIFT, 5, since=2), "epoch_conflict"),
    "unknown epoch after a reset that is taken up": ([Held(0, live(0, 9, since=3))], live(SHIFT + 1, 5, since=2), "behind+"),
    "deleted here": ([Held(0, dead(SHIFT, since=2))], live(1, 5, since=1), "behind+"),
    "deleted here before a commit there": ([Held(0, dead(SHIFT, since=1))], live(1, 5, since=2), "epoch_conflict"),
    "deleted here before a commit elsewhere": (
        [Held(0, dead(SHIFT, since=1)), Held(1, live(1, 5, since=2))],
        None,
        "epoch_conflict",
    ),
    "a tombstone that was swept": ([Held(0, dead(SHIFT))], None, ""),
    "a tombstone that was never there": ([Held(0, dead(SHIFT), dirty=True)], None, "missing+"),
    "expired since": ([Held(0, live(1, 5, since=1))], dead(1, 5, since=9), "ahead"),
    "expired though dirty here": ([Held(0, live(1, 5, since=1), dirty=True)], dead(1, 5, since=9), "behind+"),
    "begun anew after an expiry": ([Held(0, live(1, 2, since=9))], dead(1, 5, since=1), "behind+"),
    "unreadable": ([Held(0, live(1, 5)), Held(1, live(1, 0), problem="too large")], None, "unreadable"),
}


def test_the_kinds_are_what_the_documents_say(spark: SparkSession) -> None:
    """One example of each kind."""
    local = {name: held for name, (held, _, _) in CASES.items()}
    remote = {name: there for name, (_, there, _) in CASES.items() if there}
    found = differences(spark, local, remote)
    assert {name: _kind(row) for name, row in found.items()} == {name: kind for name, (_, _, kind) in CASES.items() if kind}
    assert found["behind"]["difference"] == 2
    assert found["ahead"]["difference"] == -4
    assert found["missing"]["difference"] is None
    assert found["unreadable"]["problem"] == "too large"
    assert (found["unknown epoch"]["local_epoch"], found["unknown epoch"]["plan_epoch"]) == (0, 1)
    assert found["begun anew after an expiry"]["plan_epoch"] == 2


def test_what_the_meta_service_has_too_large_for_spark_is_unreadable(spark: SparkSession) -> None:
    """It counts neither as behind nor as ahead, and nothing is merged."""
    local = local_frame(spark, {"s": [Held(0, live(1, 5))]})
    (row,) = reconcile.compare(local, remote_frame(spark, {"s": live(1, 0)}, "offset is over"), BROKERS[:1]).collect()
    assert (row["kind"], row["planned"], row["problem"]) == ("unreadable", False, "offset is over")


def test_what_is_below_the_plan_is_found(spark: SparkSession) -> None:
    """Absent or less in (epoch, offset); not what was committed, reset or expired since, nor what is too large."""
    records = {
        **dict.fromkeys(("lost", "lower", "equal", "went on", "reset", "expired"), live(1, 5)),
        "lower epoch": live(2, 5),
        "swept": dead(SHIFT),
    }
    now = {
        "lower": live(1, 4),
        "lower epoch": live(1, 9),
        "equal": live(1, 5),
        "went on": live(1, 9),
        "reset": live(SHIFT, 0),
        "expired": dead(1, 5),
    }
    plan = remote_frame(spark, {**records, "large": live(1, 5)}).drop("problem")
    standing = remote_frame(spark, now).unionByName(remote_frame(spark, {"large": live(1, 0)}, "offset is over"))
    below = {row["shard"] for row in reconcile.applied(plan, standing).where("below").collect()}
    assert below == {"lost", "lower", "lower epoch"}


@pytest.fixture(autouse=True)
def few_partitions(spark: SparkSession) -> None:
    """Use few partitions, because frames are small."""
    spark.conf.set("spark.sql.shuffle.partitions", "2")
