"""The tables of the lag job: independent of order, batches, tasks and buckets, and correct if clocks, heads or rows are bad."""

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from adapter.model.lag_rows import LagSettings
from adapter.pipeline.lag.clock import Clock, clock_of, newest_of
from adapter.pipeline.lag.part import split, to_bytes
from adapter.pipeline.lag.runs import ints
from tests.pipeline.lag_batches import LagBatches, Rows, at, by_group, commit

Told = Mapping[int, Mapping[str, Rows]]


def journal(random: Random) -> list[dict[str, Any]]:
    """Two brokers, six keys: commits, rewinds, resets, deletes, heartbeats, bad rows, jumping clocks. Each row has a number."""
    rows: list[dict[str, Any]] = []
    offsets: dict[tuple[str, str], int] = {}
    epochs: dict[tuple[str, str], int] = {}
    for seq in range(240):
        seconds = seq * 0.9 + random.choice((0, 0, 0, -20, 15))
        key = (random.choice("gh"), random.choice(("T/0", "T/1", "T/2")))
        names = {"group": key[0], "shard": key[1], "broker": random.choice(("b1", "b2")), "seq": seq}
        before = offsets.get(key, 0)
        kind = random.choice(("flush",) * 12 + ("rewind", "reset", "delete", "heartbeat", "bad"))
        offset = before + random.randrange(30)
        epoch = epochs.get(key, 0)
        moved = {"from_offset": before, "from_epoch": epoch}
        low = random.choice((0, 0, offset + random.randrange(-5, 20)))
        if kind in {"rewind", "reset", "delete"}:
            epoch = epoch + 1 if kind == "rewind" else ((epoch >> 32) + 1) << 32
            offset = 0 if kind == "delete" else max(0, before - random.randrange(40))
        rows.append(
            {
                **commit(seconds, offset, offset + random.randrange(50) if random.random() < 0.8 else None, low, **names),
                "epoch": epoch,
                "kind": "flush" if kind == "bad" else kind,
                "live": kind != "delete",
                **(moved if kind in {"rewind", "reset", "delete"} else {}),
                **({"offset": None, "problem": "offset 2**63 is beyond a long"} if kind == "bad" else {}),
                **({"group": "", "shard": ""} if kind == "heartbeat" else {}),
            }
        )
        if kind not in {"heartbeat", "bad"}:
            offsets[key], epochs[key] = offset, epoch
    return rows


@pytest.mark.parametrize(("buckets", "tasks"), [(1, 1), (4, 3)])
def test_late_repeated_and_reordered_rows_in_any_batches_end_in_the_same_tables(buckets: int, tasks: int) -> None:
    """In any number of tasks and buckets. A batch that is repeated has the same rows and state."""
    random = Random(11)
    rows = journal(random)
    plain = LagBatches().batch(rows)
    again = [*rows, *random.sample(rows, 60)]
    random.shuffle(again)
    cuts = [0, *sorted(random.sample(range(1, len(again)), 2)), len(again)]
    mixed = LagBatches(buckets=buckets, tasks=tasks)
    batches = [mixed.batch(again[cuts[number] : cuts[number + 1]]) for number in range(2)]
    before, newest = mixed.states, dict(mixed.newest)
    batches.append(mixed.batch(again[cuts[2] :]))
    assert batches[2]["shards"] == plain["shards"]
    assert batches[2]["groups"] == plain["groups"]
    assert len(plain["groups"]) == 2
    moves = [row for tables in batches for row in tables["rewinds"]]
    assert sorted(moves, key=repr) == plain["rewinds"]
    assert len(moves) > 10
    problems = {row["seq"] for tables in batches for row in tables["rejects"]}
    assert problems == {row["seq"] for row in plain["rejects"]} != set()
    after = [to_bytes(state) for state in mixed.states]
    mixed.states, mixed.newest = before, newest
    assert mixed.batch(again[cuts[2] :]) == batches[2]
    assert [to_bytes(state) for state in mixed.states] == after


def scenario() -> list[dict[str, Any]]:
    """One group for each special case; the newest row is at 1000 s."""
    rows = [commit(1_000, 0, group="", shard="", kind="heartbeat")]
    # Read at once, then nothing for minutes; one more message came 4 s ago.
    rows += [commit(600 + at, 10 + at, 10 + at, group="slow", shard="slow") for at in range(5)]
    rows.append(commit(996, 1, 15, group="other", shard="slow"))
    # Stopped with something to read; the head goes on by what another group's rows tell.
    rows += [commit(900 + at, 100 + at, 150 + at, group="stopped", shard="S") for at in range(5)]
    rows.append(commit(999, 1, 900, group="other", shard="S"))
    # Slower than its producer, with one decrease.
    rows += [commit(990 + at * 2, at, at + lag, group="warned", shard="W") for at, lag in enumerate((10, 30, 60, 59, 120))]
    rows += [commit(990 + at * 2, at * 5, group="unknown", shard="U") for at in range(5)]
    rows += [
        commit(995, 7, 9, group="deleted", shard="D"),
        commit(996, 0, kind="delete", epoch=1 << 32, live=False, group="deleted", shard="D"),
    ]
    # Retention took what it had not read, and then more.
    rows += [commit(990 + at, 100 + at, 500, 50 + 30 * at, group="late", shard="T") for at in range(5)]
    rows.append(commit(998, 500, 520, 450, group="other", shard="T"))
    back: dict[str, Any] = {"group": "rewound", "shard": "R", "broker": "b2"}
    rows += [commit(994 + at, 50 + at, 60, **back) for at in range(3)]
    rows.append(commit(997, 20, 60, kind="rewind", epoch=1, from_epoch=0, from_offset=52, seq=77, **back))
    rows.append(commit(997, 20, 60, kind="rewind", epoch=1, from_epoch=0, from_offset=52, seq=77, segment="copy", **back))
    # Clocks: before the start of the adapter; committed after it was journaled; ahead of the job by a month.
    rows.append(commit(-500, 5, 5, group="past", shard="P", seq=1))
    rows.append({**commit(998, 6, 9, group="ahead", shard="A", seq=2), "committed_at": at(5_000)})
    rows.append(commit(30 * 86_400, 9, 9, group="future", shard="F", seq=3))
    rows.append(
        commit(998, 9, group="large", shard="L", seq=4) | {"offset": None, "problem": "offset 9223372036854775808 is too large"}
    )
    rows.append(
        {"at": at(-1_764_547_200), "kind": "unreadable", "group": "", "shard": "", "problem": "is torn", "segment": "x", "seq": 5}
    )
    rows.append(commit(998, 9, group="strange", shard="K", seq=6, kind="compact"))
    rows.append(commit(998, -4, group="negative", shard="N", seq=7))
    return [{"seq": 1_000 + place, **row} for place, row in enumerate(rows)]


@pytest.fixture(scope="module")
def told() -> Told:
    """The tables of the scenario as batch 0, and of batch 1 with the rewind again and a late head."""
    rows = scenario()
    batches = LagBatches(buckets=2)
    late = commit(1_001, 2, 2_000, group="other", shard="S")
    return dict(enumerate([batches.batch(rows), batches.batch([late, *(row for row in rows if row.get("kind") == "rewind")])]))


def test_a_slow_topic_is_not_stopped_while_what_came_is_new(told: Told) -> None:
    """The last commit is 396 s old, and so is the head that it had reached."""
    row = by_group(told[0]["shards"])["slow"]
    assert (row["status"], row["lag"], row["lag_seconds"]) == ("OK", 1, 396.0)


def test_the_lag_of_a_stopped_consumer_goes_on_growing_with_the_head(told: Told) -> None:
    """Heads come from the commits of all groups."""
    first, second = (by_group(told[number]["shards"])["stopped"] for number in (0, 1))
    assert (first["status"], first["burrow"], first["lag"]) == ("STOP", "STOP", 900 - 104)
    assert (second["status"], second["lag"]) == ("STOP", 2_000 - 104)
    assert (first["consume_rate"], first["drain_seconds"]) == (0.0, None)


def test_what_retention_took_is_lost_and_not_lag(told: Told) -> None:
    """By the newest log start, which here is in another group's row."""
    row = by_group(told[0]["shards"])["late"]
    assert (row["head"], row["offset"], row["lag"], row["lost"]) == (520, 104, 520 - 450, 450 - 104)
    assert by_group(told[0]["groups"])["late"]["total_lag"] == 70
    assert by_group(told[0]["shards"])["unknown"]["lost"] == 0


def test_the_recorded_lag_is_what_could_be_read_then() -> None:
    """One of the window was small only because the log began late: without its low, this would be another status."""
    rows = [row for row in scenario() if row["group"] in {"late", "other"}]
    batches = LagBatches()
    batches.batch(rows)
    (state,) = batches.states
    key = state.keys["group"].to_pylist().index("late")
    lags = ints(state.points, "lag")[ints(state.points, "key") == key]
    assert lags.tolist() == [400, 399, 500 - 110, 500 - 140, 500 - 170]


def test_a_smaller_window_and_more_buckets_go_on_with_the_state() -> None:
    """The newest points are kept, and every key is in the bucket to which its new rows go."""
    batches = LagBatches()
    batches.batch(
        [commit(at, 10 + at, 90, 40, group=f"g{name}", shard=f"T/{name}", seq=at) for at in range(5) for name in range(20)]
    )
    batches.settings, batches.buckets = LagSettings(window_points=3), 4
    batches.states = split(batches.states[0], 4)
    tables = batches.batch([commit(9, 1, 91, 60, group="other", shard=f"T/{name}", seq=9) for name in range(20)])
    row = by_group(tables["shards"])["g7"]
    assert (row["points"], row["lag"], row["lost"]) == (3, 91 - 60, 60 - 14)
    assert len(tables["shards"]) == 40
    assert min(state.keys.num_rows for state in batches.states) > 0


def test_what_is_a_week_old_is_forgotten() -> None:
    """Tombstones, shards without a new head, and moves that were told; a late row within the week does not bring a key back."""
    day = 86_400
    gone: dict[str, Any] = {"group": "gone", "shard": "D"}
    delete = commit(2, 0, kind="delete", epoch=1 << 32, live=False, seq=2, **gone)
    move = commit(3, 5, 9, kind="reset", epoch=1 << 32, from_epoch=0, from_offset=9, group="moved", shard="M", seq=3)
    batches = LagBatches(planned_s=30 * day)
    batches.batch([commit(1, 7, 9, seq=1, **gone), delete, move, commit(4, 1, 4, group="quiet", shard="Q", seq=4)])
    tables = batches.batch([commit(6 * day, 1, 2, group="g", shard="T", seq=5), commit(1.5, 8, 9, seq=6, **gone), move])
    assert set(by_group(tables["shards"])) == {"g", "moved", "quiet"}
    assert (tables["rewinds"], by_group(tables["shards"])["quiet"]["head"]) == ([], 4)
    tables = batches.batch([commit(9 * day, 2, 3, group="g", shard="T", seq=7)])
    quiet = by_group(tables["shards"])["quiet"]
    assert (quiet["head"], quiet["lag"], quiet["offset"]) == (None, None, 1)
    (state,) = batches.states
    assert (state.moves.num_rows, "gone" in state.keys["group"].to_pylist()) == (0, False)


def test_one_decrease_does_not_clear_a_growing_lag(told: Told) -> None:
    """In Burrow it does."""
    row = by_group(told[0]["shards"])["warned"]
    assert (row["status"], row["burrow"], row["points"]) == ("WARN", "OK", 5)


def test_without_a_head_the_lag_is_unknown_and_not_0(told: Told) -> None:
    """Values derived from it are unknown too."""
    row = by_group(told[0]["shards"])["unknown"]
    assert [row[name] for name in ("head", "lag", "lag_seconds", "produce_rate", "drain_seconds")] == [None] * 5
    assert (row["status"], row["burrow"], row["consume_rate"]) == ("UNKNOWN", "OK", 2.5)
    group = by_group(told[0]["groups"])["unknown"]
    assert (group["total_lag"], group["unknown_lag_shards"], group["drain_seconds"]) == (None, 1, None)


def test_a_deleted_key_is_in_no_table(told: Told) -> None:
    """A group of which every key is deleted is in no table either."""
    assert "deleted" not in by_group(told[0]["shards"])
    assert "deleted" not in by_group(told[0]["groups"])


def test_a_rewind_is_counted_once(told: Told) -> None:
    """Although it is twice in one batch, and again in the next."""
    (move,) = told[0]["rewinds"]
    assert [move[name] for name in ("group", "kind", "from_offset", "offset", "duplicates", "skipped")] == [
        "rewound",
        "rewind",
        52,
        20,
        32,
        0,
    ]
    assert told[1]["rewinds"] == []
    assert by_group(told[0]["shards"])["rewound"]["status"] == "REWIND"
    assert by_group(told[0]["groups"])["rewound"]["burrow"] == "ERR"


def test_rows_that_cannot_be_true_are_told_and_poison_nothing(told: Told) -> None:
    """Every such row is in `rejects`, and the batch's time is that of the valid rows."""
    problems = {row["seq"]: row["problem"] for row in told[0]["rejects"]}
    parts = {
        1: "went back",
        2: "was committed",
        3: "ahead of this machine",
        4: "too large",
        5: "is torn",
        6: "'compact'",
        7: "negative",
    }
    assert {seq: part in problems[seq] for seq, part in parts.items()} == dict.fromkeys(parts, True)
    assert len(problems) == len(parts)
    rows = by_group(told[0]["shards"])
    assert {row["evaluated_at"] for row in rows.values()} == {at(1_000)}
    assert {"large", "future", "strange", "negative"}.isdisjoint(rows)
    assert (rows["ahead"]["committed_at"], rows["ahead"]["offset"], rows["past"]["lag"]) == (at(998), 6, 0)


@pytest.mark.parametrize("ahead_s", [0, 12 * 60, 54 * 60])
def test_a_broker_whose_clock_is_ahead_makes_no_other_group_look_stopped(ahead_s: int) -> None:
    """Its rows count, but the time of the batch is not theirs: it is no later than the job's machine allows."""
    times = range(0, 600, 10)
    right = [commit(time, time, time + 100, group="right", seq=time) for time in times]
    ahead = [commit(time + ahead_s, time, time + 100, group="ahead", broker="b2", seq=time) for time in times]
    groups = by_group(LagBatches(planned_s=590).batch([*right, *ahead])["groups"])
    assert {name: (row["status"], row["total_lag"]) for name, row in groups.items()} == {
        "right": ("WARN", 100),
        "ahead": ("WARN", 100),
    }
    assert {row["evaluated_at"] for row in groups.values()} == {at(590 + min(ahead_s, 60))}


def test_a_broker_whose_journal_is_late_holds_back_the_silence_of_all_until_it_is_gone() -> None:
    """For at most five minutes, no group counts as stopped."""
    minute = 60_000_000
    assert clock_of({"a": 10 * minute, "b": 9 * minute}) == Clock(10 * minute, 9 * minute)
    assert clock_of({"a": 10 * minute, "b": 4 * minute}) == Clock(10 * minute, 10 * minute)
    assert clock_of({}) == Clock(0, 0)


def test_of_each_broker_the_newest_time_counts() -> None:
    """Whichever task has told it."""
    assert newest_of([{"b": 3, "a": 1}, {}, {"a": 2, "b": 1}]) == {"a": 2, "b": 3}
    assert clock_of(newest_of([])) == Clock(0, 0)
