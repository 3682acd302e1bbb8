"""The lag job and an adapter judge the same series alike: of a log that was made anew, and of a lag that grows unevenly."""

import struct
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pytest

from adapter.model.lag_rows import LagSettings
from adapter.pipeline.lag.part import from_bytes, to_bytes
from adapter.rpc import lag_pb
from tests.pipeline.lag_batches import LagBatches, commit
from tests.unit.sidecar.lag.lagging import lagging

SETTINGS = LagSettings(window_points=8, head_points=30, head_distance_ms=1_000)
AGAIN = 1 << 32  # the epoch after a reset
NAMES = {lag_pb.LAG_STATUS_UNSPECIFIED: "UNKNOWN"}
Row = dict[str, Any]


def lag_of(batches: LagBatches, rows: list[Row]) -> Row:
    """Process a batch; the row of the only shard."""
    (row,) = batches.batch(rows)["shards"]
    return row


def steady(begin: int, offset: int, lag: int, log_id: str | None, epoch: int = 0, seconds: int = 20) -> list[Row]:
    """A commit a second, of one message, with the end `lag` messages ahead."""
    return [commit(begin + i, offset + i, offset + i + lag, epoch=epoch, log_id=log_id) for i in range(seconds)]


@pytest.mark.parametrize(("first", "second"), [("a", "b"), (None, None), (None, "b")])
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_after_a_topic_was_made_anew_its_lag_is_that_of_the_new_log(first: str | None, second: str | None, parts: int) -> None:
    """At once, in messages and seconds, with nothing of the dead log; in one batch or several, and if old rows come late."""
    old, new = steady(0, 1_000_000, 100, first), steady(30, 5, 5, second, AGAIN)
    rows = [*old[:-1], *new, old[-1]] if first else [*old, *new]
    batches = LagBatches(SETTINGS)
    for some in range(parts):
        row = lag_of(batches, rows[some * len(rows) // parts : (some + 1) * len(rows) // parts])
    assert (row["head"], row["lag"], row["lost"], row["status"]) == (29, 5, 0, "WARN")
    assert row["lag_seconds"] == pytest.approx(5)
    assert row["produce_rate"] == pytest.approx(1)


def test_the_log_before_is_known_by_its_identity_whatever_its_end_is() -> None:
    """The new log is longer already, and has another start: who has not committed to it is BEYOND, and not behind."""
    batches = LagBatches(SETTINGS)
    rows = [{**row, "low_watermark": 900} for row in steady(0, 1_000, 100, "a")]
    assert lag_of(batches, rows)["lag"] == 100
    told = [commit(30 + i, 0, 50_000 + i, log_id="b", group="") for i in range(5)]  # of nobody, but with an end
    row = lag_of(batches, told)
    assert (row["head"], row["lag"], row["lost"], row["status"]) == (50_004, None, 0, "BEYOND")
    # When the heads of the dead log are no longer kept, it is so still.
    row = lag_of(batches, [commit(100 + i, 0, 60_000 + i, log_id="b", group="") for i in range(40)])
    assert (row["lag"], row["status"]) == (None, "BEYOND")


def test_bounds_without_an_identity_are_those_of_the_newest_log() -> None:
    """Some consumers tell it, others do not."""
    rows = [*steady(0, 1_000, 100, "a"), *steady(30, 2_000, 50, None)]
    row = lag_of(LagBatches(SETTINGS), rows)
    assert (row["head"], row["lag"], row["status"]) == (2_069, 50, "WARN")


def test_a_state_of_an_earlier_release_is_read() -> None:
    """It has no logs, and knows nobody who was WARN."""
    batches = LagBatches(SETTINGS)
    lag_of(batches, steady(0, 1_000, 100, "a"))
    assert batches.states[0].logs.num_rows == 1
    part = from_bytes(earlier(to_bytes(batches.states[0])))
    assert part.logs.num_rows == part.warned.num_rows == 0
    assert part.tables()[:6] == batches.states[0].tables()[:6]
    batches.states = [part]
    assert lag_of(batches, steady(20, 1_020, 100, "a"))["lag"] == 100


def earlier(data: bytes) -> bytes:
    """A part as earlier releases wrote it: its first six tables."""
    _, _, *sizes = struct.unpack_from("<8sI4x8Q", data)
    tables = data[80 : 80 + sum(sizes[:6])]
    return struct.pack("<8sI4x6Q", b"lagpart1", zlib.crc32(tables), *sizes[:6]) + tables


def series() -> list[tuple[int, int]]:
    """Offset and end of each second: a lag that grows in steps, stays, grows clearly, falls, and a log that is made anew."""
    random = Random(3)
    lags = [2_000 + 40 * i + 100 * (-i % 5) for i in range(30)]
    lags += [lags[-1] + random.randrange(-80, 80) for _ in range(12)]
    lags += [lags[-1] + 90 * i for i in range(10)]
    lags += [lags[-1] - 100 * i for i in range(12)]
    return [(100_000 + 50 * i, 100_000 + 50 * i + lag) for i, lag in enumerate(lags)] + [(7 + i, 10 + i) for i in range(8)]


async def test_an_adapter_and_the_job_give_the_same_status_in_each_second(tmp_path: Path) -> None:
    """WARN has the same two thresholds in both: it does not alternate with OK."""
    batches = LagBatches(SETTINGS)
    found: list[tuple[str, str]] = []
    limits: dict[str, Any] = {"window_points": 8, "minimum_points": 3, "point_distance_ms": 1_000, "head_points": 30}
    async with lagging(tmp_path, **limits) as lag:
        for second, (offset, high) in enumerate(series()):
            await lag.step(offset, high, overwrite=True)
            shard = lag.shard()
            assert shard is not None
            row = lag_of(batches, [commit(second, shard.offset, high, epoch=shard.epoch)])
            found.append((NAMES.get(shard.status, lag_pb.LagStatus.Name(shard.status)), row["status"]))
            assert (shard.lag if shard.HasField("lag") else None) == row["lag"]
    assert [adapter for adapter, _ in found] == [job for _, job in found]
    growing = [job for _, job in found[:30]]
    assert set(growing[growing.index("WARN") :]) == {"WARN"}
    assert {job for _, job in found} >= {"UNKNOWN", "OK", "WARN", "REWIND"}
