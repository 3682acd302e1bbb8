"""How values are shown, and what charts draw."""

import math

import anyio
import pytest

from adapter.console.config import ChartSection
from adapter.console.views.charts import Charts, Point, drawing, point_of
from adapter.fleet.views import GroupShards
from adapter.look import shown
from adapter.look.charts import CHART_WIDTH, spark_path, spark_text
from adapter.look.pages import row_id
from adapter.look.shown import NOTHING
from tests.unit.console.fakes import HOSTILE, FakeFleet, group_view, shard_row


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0 s"), (0.0042, "4.2 ms"), (0.42, "0.42 s"), (1.5, "1.5 s"), (59.9, "59 s"), (119.0, "119 s"),
        (200.0, "3 min 20 s"),
        (7_200.0, "2 h 0 min"), (172_800.0, "2 d 0 h"), (None, NOTHING), (math.nan, NOTHING), (math.inf, NOTHING),
    ],
)  # fmt: skip
def test_a_duration_is_read_at_a_glance(value: float | None, text: str) -> None:
    """Two units at most; what is unknown is a dash and no zero."""
    assert shown.seconds(value) == text


def test_numbers_rates_and_trends() -> None:
    """A trend has its sign, since growing lag is what matters."""
    assert [shown.number(1234567), shown.number(None), shown.short(12_345_678), shown.short(999)] == [
        "1,234,567",
        NOTHING,
        "12.3M",
        "999",
    ]
    assert [shown.trend(1.25), shown.trend(-200.0), shown.trend(0.0), shown.trend(None)] == [
        "+1.2/s",
        "\N{MINUS SIGN}200/s",
        "0.0/s",
        NOTHING,
    ]


def test_a_time_that_cannot_be_is_a_dash() -> None:
    """A client may commit with any time."""
    assert [shown.when(0), shown.when(2**63), shown.iso(2**64 - 1), shown.iso(None)] == [NOTHING, NOTHING, "", ""]
    assert shown.when(1_790_000_000_000) == "2026-09-21 14:13:20 UTC"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", "plain"), ("\u202eabc", "\\u{202e}abc"), ("a\u0085b", "a\\u{85}b"), ("a\u2028b", "a\\u{2028}b"),
        ("a\u00a0b", "a\\u{a0}b"),
        ("مجموعة", "مجموعة"), ("a b", "a b"), ("\\u{202e}abc", "\\u{5c}u{202e}abc"), ("\\u", "\\u"),
    ],
)  # fmt: skip
def test_names_that_differ_look_different(name: str, text: str) -> None:
    """Characters that are not seen, or turn the text around, are shown by their codes."""
    assert shown.name(name) == text


def test_the_ids_of_rows_are_ids_and_differ() -> None:
    """Whatever the names are; where a name ends is part of it."""
    ids = [row_id("g", name) for name in HOSTILE] + [row_id("g", "a", "bc"), row_id("g", "ab", "c")]
    assert len(set(ids)) == len(ids)
    assert all(found.replace("-", "").isalnum() for found in ids)


def test_a_sparkline_has_gaps_where_nothing_is_known() -> None:
    """A line through a gap would be an invention."""
    assert spark_path(()) == spark_path((5,)) == spark_path((None, 3, None)) == ""
    assert spark_path((0, 10, None, 10, 0)).count("M") == 2
    assert spark_path((0, 0)) == "M0 46L240 46"
    assert spark_text((1, 5, 3)) == "up: from 1 to 3, at most 5"
    assert spark_text((3, 1)).startswith("down")


def test_a_chart_has_both_lines_gaps_and_a_table() -> None:
    """Within its borders, the newest row first."""
    points = [Point(1_000, 10, 20), Point(2_000, None, None), Point(3_000, 15, 30)]
    found = drawing(points, [(2_500, "reset"), (9_000, "later")])
    assert found is not None
    assert (found.chart.least, found.chart.most) == (10, 30)
    assert [path.count("M") for path in found.chart.paths] == [2, 2]
    assert [text for _, text in found.chart.marks] == ["reset"]
    assert all(0 <= across <= CHART_WIDTH for across, _ in found.chart.marks)
    assert [row.at_ms for row in found.rows] == [3_000, 2_000, 1_000]
    assert drawing(points[:2]) is None


def test_a_part_that_could_not_be_had_is_a_gap() -> None:
    """The sum over fewer shards would be drawn as a fall."""
    rows = [shard_row("t/0"), shard_row("t/1")]
    assert point_of(GroupShards(group_view("g"), rows), 1) == Point(1, 180, 200)
    assert point_of(GroupShards(group_view("g"), rows, {"b:1": "away"}), 1) == Point(1, None, None)


def test_the_history_of_charts_is_bounded() -> None:
    """In groups and in points; who was not looked at for the longest time goes first."""
    charts = Charts(ChartSection(groups=2, points=10, interval_ms=1_000), FakeFleet())
    shards = GroupShards(group_view("a"), [shard_row("t/0")])
    for at_ms in range(0, 100_000, 1_000):
        charts.note(("default", "a"), shards, at_ms)
    assert [point.at_ms for point in charts.look(("default", "a"))][:2] == [90_000, 91_000]
    charts.look(("default", "b"))
    charts.look(("default", "a"))
    charts.look(("default", "c"))
    assert len(charts) == 2
    assert len(charts.look(("default", "a"))) == 10
    assert Charts(ChartSection(groups=0), FakeFleet()).look(("default", "a")) == []


async def test_charts_are_collected_for_the_worst_groups_and_those_looked_at() -> None:
    """A person who comes later finds their history."""
    fleet = FakeFleet([], [group_view("worst"), group_view("looked-at")])
    charts = Charts(ChartSection(groups=2, points=10, interval_ms=500), fleet)
    charts.look(("default", "looked-at"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(charts.run)
        with anyio.fail_after(60):
            while len(charts) < 2 or not charts._kept["default", "worst"] or not charts._kept["default", "looked-at"]:  # noqa: ASYNC110
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
