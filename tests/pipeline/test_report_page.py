"""The page and its pictures, from collected data, without Spark."""

import math
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from adapter.pipeline.report.content import Bar, Point, Reject, Report, Rewind, RewindTotals
from adapter.pipeline.report.page import TEMPLATE, duration, render
from adapter.pipeline.report.plots import (
    PANELS,
    drawable,
    lag_plot,
    lag_seconds_plot,
    lines,
    rewinds_plot,
    short_number,
    short_seconds,
)
from tests.pipeline.reports import AT_MS, HOSTILE, group, report_of

ROOT = Path(__file__).parents[2]
TABLES = "data/lag & more"


class Page(HTMLParser):
    """The tables of a page by cell, its tags, and the targets of its links."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.alts: list[str] = []
        self.cells: list[str] = []
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a tag with its attributes."""
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action", "data"}]
        self.alts += [value or "" for name, value in attrs if name == "alt"]
        if tag == "td":
            self._in_cell = True
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        """Record the end of a cell."""
        if tag == "td":
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        """Record text."""
        if self._in_cell:
            self.cells[-1] += data.strip()


def page(report: Report, **pictures: bytes) -> str:
    """The page, made one minute after its data."""
    return render(report, {f"{name.replace('_', '-')}.png": png for name, png in pictures.items()}, TABLES, AT_MS + 60_000)


def test_names_are_text_whatever_they_are() -> None:
    """In the page, in all of its tables, and in the pictures."""
    rewinds = tuple(Rewind(AT_MS, name, name, name, name, name, 2, 1, 1, 0) for name in HOSTILE)
    rejects = tuple(Reject(AT_MS, name, name, name, name, name, name) for name in HOSTILE)
    groups = [group(name, "STOP", namespace=name) for name in HOSTILE]
    plain = report_of(*groups)
    report = Report(
        **{
            **{name: getattr(plain, name) for name in Report.__dataclass_fields__},
            "rewinds": rewinds,
            "rewind_totals": RewindTotals(7, 7, 0, 0),
            "rejects": rejects,
            "reject_count": 7,
        }
    )
    pictures = [draw(report) for draw in (lag_plot, lag_seconds_plot)]
    assert all(picture and picture.startswith(b"\x89PNG") for picture in pictures)
    html = page(report, lag=pictures[0] or b"", lag_seconds=pictures[1] or b"")
    read = Page(html)
    assert "script" not in read.tags
    assert read.tags.count("img") == 2
    for name in HOSTILE:
        assert sum(name in cell for cell in read.cells) >= 1 + 4 + 3, name
        assert not any(name in alt for alt in read.alts)


def test_the_page_refers_to_nothing_outside_its_directory() -> None:
    """It needs no network: styles are inside, pictures beside it, with alternative texts."""
    report = report_of(group("g", "STOP"))
    picture = lag_plot(report) or b""
    read = Page(html := page(report, lag=picture))
    assert read.references == ["data:,", "lag.png"]
    assert "url(" not in html
    assert "@import" not in html
    assert all(alt for alt in read.alts)
    assert read.tags.count("script") == read.tags.count("iframe") == 0
    assert 'width="1760"' in html


def test_the_page_tells_what_it_is_of() -> None:
    """When it was made, the time of its data, and the period."""
    html = page(report_of(group("g"), group("h")))
    assert "Data of 2026-11-21 10:00:00 UTC; made 2026-11-21 10:01:00 UTC, 1 min later. 2 groups, 2 shards." in html
    behind = render(report_of(group("g")), {}, TABLES, AT_MS - 1)
    assert "by a clock that is behind the adapters&#39;. 1 group, 1 shard." in behind


def test_unknown_is_never_zero() -> None:
    """In the table, and in the pictures: a line has a gap, and a lag that is always unknown has no picture."""
    unknown = group("u", lag=None)
    cells = Page(page(report_of(unknown))).cells
    assert cells[4:7] == ["unknown"] * 3
    assert lag_plot(report_of(unknown)) is None
    assert "The lag of these groups is not known" in page(report_of(unknown))
    part = Page(page(report_of(group("p", lag=7, unknown_lag_shards=2, drain_seconds=None)))).cells
    assert part[4:7] == ["7+ 2 unknown", "0.7 s", "not in sight"]
    assert Page(page(report_of(group("z", lag=0)))).cells[4:7] == ["0", "0 s", "0 s"]
    (line,) = lines(
        report_of(group("g"), lag=(Point("default", "g", 0, 1, None), Point("default", "g", 1, None, None))),
        lambda point: point.total_lag,
    )
    assert line.values[0] == 1
    assert math.isnan(line.values[1])


def test_a_line_has_a_gap_where_nothing_was_evaluated() -> None:
    """The lag job was not running then."""
    times = [*range(0, 600_000, 60_000), 6_000_000, 6_060_000]
    report = report_of(group("g"), lag=tuple(Point("default", "g", at, 1, 1.0) for at in times))
    (line,) = lines(report, lambda point: point.total_lag)
    assert [at for at, value in zip(line.at_ms, line.values, strict=True) if math.isnan(value)] == [540_001]


def test_a_group_without_points_has_an_empty_panel_and_the_first_ones_have_one() -> None:
    """The numbers of panels are the ranks in the table."""
    report = report_of(*(group(f"g{number}") for number in range(PANELS + 3)))
    assert [line.rank for line in lines(report, lambda point: point.total_lag)] == list(range(1, PANELS + 1))
    few = report_of(group("a"), group("b"), lag=(Point("default", "b", AT_MS, 1, 1.0),))
    assert [line.values for line in lines(few, lambda point: point.total_lag)] == [[], [1]]
    assert lag_plot(few)


def test_huge_and_tiny_values_can_be_drawn() -> None:
    """Spark's largest long, a century of lag, a single point in time."""
    report = report_of(group("g", lag=2**63 - 1, max_lag_seconds=3.2e9), group("h", lag=1, max_lag_seconds=1e-9))
    assert lag_plot(report)
    assert lag_seconds_plot(report)
    moment = Report(AT_MS, AT_MS, worst=report.worst, lag=report.lag[2:3], bars=(Bar(AT_MS, 2**63 - 1),))
    assert lag_plot(moment)
    assert rewinds_plot(moment)
    assert rewinds_plot(report) is None


def test_an_empty_report_says_what_to_do() -> None:
    """It names the settings; rejects are still shown."""
    html = page(Report(rejects=(Reject(None, None, "a.parquet", None, None, None, "is torn"),), reject_count=1))
    assert "Nothing has been evaluated yet" in html
    assert "The tables in <bdi>data/lag &amp; more</bdi> have no groups." in html
    assert "offset-adapter-spark lag" in html
    assert Page(html).cells == ["unknown", "is torn", "a.parquet"]
    assert "Not counted" not in page(Report())


def test_a_list_that_is_cut_says_so() -> None:
    """It has the total number."""
    plain = report_of(group("g"))
    rewind = Rewind(AT_MS, "default", "g", "g/0", "b1", "rewind", 2, 1, 1, 0)
    html = page(Report(AT_MS, AT_MS, groups=4_000, worst=plain.worst, rewinds=(rewind,), rewind_totals=RewindTotals(9, 8, 7, 6)))
    assert "1 of 4,000: the worst status first" in html
    assert "9 in the last 24 hours: 8 messages read again, 7 skipped. <b>6 of them cannot be counted.</b> The 1 with most" in html


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((None, None), (0, "0 s"), (0.04, "< 0.1 s"), (0.06, "0.1 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min")),
        *((61, "1 min 1 s"), (3_600, "1 h"), (7_261, "2 h 1 min"), (90_000, "1 d 1 h"), (864_000_000, "10,000 d")),
    ],
)
def test_durations_are_read_by_people(seconds: float | None, text: str | None) -> None:
    """At most two units."""
    assert duration(seconds) == text


def test_axes_are_short() -> None:
    """Three digits and a unit."""
    numbers = (0, 999, 1_500, 2_000_000, 3e9, 4e12, 5e15, 9.22e18)
    assert [short_number(number) for number in numbers] == ["0", "999", "1.5 k", "2 M", "3 G", "4 T", "5 P", "9.22 E"]
    assert [short_seconds(number) for number in (0, 59, 90, 7_200, 172_800)] == ["0 s", "59 s", "1.5 min", "2 h", "2 d"]


def test_a_name_in_a_picture_has_only_letters_of_the_font() -> None:
    """Matplotlib warns of all others. A long name is cut in its middle, because names often begin alike."""
    assert drawable("a消b") == "a□b"
    assert drawable("x" * 20 + "y" * 20) == "x" * 10 + "…" + "y" * 9


def test_the_template_is_in_the_wheel(tmp_path: Path) -> None:
    """A build could leave it out, because it is no Python file."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert f"adapter/pipeline/report/{TEMPLATE}" in zipfile.ZipFile(wheel).namelist()
