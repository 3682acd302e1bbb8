"""The page, from gathered data: its texts, its links, and what is drawn."""

import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from adapter.errors import ConfigError
from adapter.look.shown import name as shown_name
from adapter.pipeline.config import JobConfig
from adapter.pipeline.report.content import Bar, GroupPoint, Point, Reject, Report, Rewind, RewindTotals
from adapter.pipeline.report.page import SCRIPT, TEMPLATE, render, with_gaps
from adapter.runtime.settings.config import load
from tests.unit.pipeline.reports import AT_MS, HOSTILE, group, report_of

ROOT = Path(__file__).parents[3]
TABLES = "data/lag & more"


class Page(HTMLParser):
    """The tables of a page by cell, its tags, ids and the targets of its links, and what each chart says."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.cells: list[str] = []
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a tag with its attributes."""
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action", "data"}]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.labels += [value or "" for name, value in attrs if name == "aria-label" and tag == "svg"]
        if tag in {"td", "th"}:
            self._in_cell = True
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        """Record the end of a cell."""
        if tag in {"td", "th"}:
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        """Record text."""
        if self._in_cell:
            self.cells[-1] += data.strip()

    def row(self, first: str) -> list[str]:
        """The cells of the row that begins with this one."""
        start = self.cells.index(first)
        return self.cells[start : start + 10]


def page(report: Report, console: str = "") -> str:
    """The page, made one minute after its data."""
    return render(report, TABLES, console, AT_MS + 60_000)


def test_names_are_text_whatever_they_are() -> None:
    """In the page and in all of its tables. A character that is not seen is shown by its code."""
    names = (*HOSTILE, "\N{RIGHT-TO-LEFT OVERRIDE}abc")
    rewinds = tuple(Rewind(AT_MS, name, name, name, name, name, 2, 1, 1, 0) for name in names)
    rejects = tuple(Reject(AT_MS, name, name, name, name, name, name) for name in names)
    groups = [group(name, "STOP", namespace=name, worst_shard=name) for name in names]
    read = Page(
        page(
            report_of(*groups, rewinds=rewinds, rewind_totals=RewindTotals(8, 8, 0, 0), rejects=rejects, reject_count=8),
            "https://console.example",
        )
    )
    assert read.tags.count("script") == 1
    assert "img" not in read.tags
    for name in names:
        assert sum(shown_name(name) in cell for cell in read.cells) >= 2 + 4 + 2, name
    assert not any("\N{RIGHT-TO-LEFT OVERRIDE}" in cell for cell in read.cells)


def test_the_page_needs_no_other_file() -> None:
    """No network, no picture, no style sheet; only our script may run."""
    html = page(report_of(group("g", "STOP")))
    read = Page(html)
    assert [reference for reference in read.references if not reference.startswith("#")] == ["data:,"]
    assert "url(" not in html
    assert "@import" not in html
    assert read.tags.count("iframe") == 0
    assert "script-src 'sha256-" in html
    assert SCRIPT.read_text() in html


def test_links_lead_to_the_groups() -> None:
    """Within the page to each of the worst ones; with its address, to the console for any."""
    moved = Rewind(AT_MS, "default", "elsewhere", "s/0", "b1", "rewind", 2, 1, 1, 0)
    report = report_of(group("a&b/c", "STOP"), group("h"), rewinds=(moved,), rewind_totals=RewindTotals(1, 1, 0, 0))
    read = Page(page(report))
    inside = [reference[1:] for reference in read.references if reference.startswith("#g-")]
    assert len(set(inside)) == 2
    assert {reference[1:] for reference in read.references if reference.startswith("#")} <= set(read.ids)
    links = [one for one in Page(page(report, "https://console.example/at")).references if one.startswith("https:")]
    assert links[0] == "https://console.example/at/"
    assert links[1] == "https://console.example/at/group?namespace=default&group=a%26b%2Fc"
    assert links[-1] == "https://console.example/at/group?namespace=default&group=elsewhere"


@pytest.mark.parametrize(
    "text", ["console.example", "javascript:alert(1)", "https://", "https://u:p@c.example", "https://c/?a=b"]
)
def test_the_address_of_the_console_is_one(tmp_path: Path, text: str) -> None:
    """Of http or https, without a user, a query or a fragment."""
    (tmp_path / "job.toml").write_text(f"[report]\nconsole = '{text}'\n")
    with pytest.raises(ConfigError, match=r"report.console: .*is no address of a console, such as https://console.example"):
        load(tmp_path / "job.toml", JobConfig)


def test_the_page_tells_what_it_is_of() -> None:
    """When it was made, the time of its data, and the period."""
    html = page(report_of(group("g"), group("h")))
    assert "Data of 2026-11-21 10:00:00 UTC; made 2026-11-21 10:01:00 UTC, 60 s later. 2 groups, 2 shards." in html
    behind = render(report_of(group("g")), TABLES, "", AT_MS - 1)
    assert "by a clock that is behind the adapters&#39;. 1 group, 1 shard." in behind


def test_unknown_is_never_zero() -> None:
    """In the table and in the charts: a lag that is always unknown has none."""
    read = Page(page(report_of(group("u", lag=None))))
    assert [read.row("1")[at] for at in (4, 5, 6, 7)] == ["unknown"] * 4
    assert [label.partition(".")[0] for label in read.labels] == ["Groups that stall or have stopped"]
    assert "There are no two points at which a lag is known" in page(report_of(group("u", lag=None)))
    part = Page(page(report_of(group("p", lag=7, unknown_lag_shards=2, drain_seconds=None)))).row("1")
    assert [part[at] for at in (4, 5, 7)] == ["7+ 2 unknown", "0.70 s", "not in sight"]
    none = Page(page(report_of(group("z", lag=0)))).row("1")
    assert [none[at] for at in (4, 5, 7)] == ["0", "0.0 s", "0.0 s"]


def test_charts_say_in_words_what_they_draw() -> None:
    """For who does not see them: the history of all, and for each of the worst groups its lag."""
    moved = Rewind(AT_MS - 1_000, "default", "g", "g/0", "b1", "reset", 2, 1, 1, 0)
    report = report_of(group("g", "STOP", 1_500), rewinds=(moved,), rewind_totals=RewindTotals(1, 1, 0, 0), bars=(Bar(AT_MS, 7),))
    period = "From 2026-11-21 09:00:00 UTC to 2026-11-21 10:00:00 UTC, between 0 and "
    html = page(report)
    assert Page(html).labels == [
        f"Lag of all groups in messages, as far as it is known. {period}1,500",
        f"Groups that stall or have stopped. {period}1",
        "the same: from 1,500 to 1,500, at most 1,500",
        f"Lag in messages. {period}1,500",
        "Lag in time. " + period.replace(" 0 ", " 0.0 s ") + "2 min 30 s",
        f"Messages read again. {period}7",
    ]
    assert html.count(">reset</text>") == 2


def test_a_line_has_a_gap_where_nothing_was_evaluated() -> None:
    """The lag job was not running then."""
    times = [*range(0, 600_000, 60_000), 6_000_000, 6_060_000]
    shown, (line,) = with_gaps(times, [1] * len(times))
    assert [at for at, value in zip(shown, line, strict=True) if value is None] == [540_001]
    history = tuple(Point(at, 1.0, 0) for at in times)
    total = re.findall(r'<path class="offset" d="([^"]*)"', page(report_of(group("g"), history=history)))[0]
    assert total.count("M") == 2
    assert with_gaps([], []) == ([], [[]])
    assert with_gaps([5], [1]) == ([5], [[1]])


def test_huge_and_tiny_values_can_be_drawn() -> None:
    """Spark's largest long, a century of lag, a single point in time."""
    report = report_of(
        group("g", lag=2**63 - 1, max_lag_seconds=3.2e9),
        group("h", lag=1, max_lag_seconds=1e-9),
        bars=(Bar(AT_MS - 3_600_000, 2**63 - 1), Bar(AT_MS, 1)),
        rewinds=(Rewind(AT_MS, "default", "g", "g/0", "b", "rewind", 2**63 - 1, 0, 2**63 - 1, 0),),
        rewind_totals=RewindTotals(1, 2**64, 0, 0),
    )
    paths = re.findall(r'<path[^>]* d="([^"]*)"', page(report))
    numbers = [float(number) for path in paths for number in re.findall(r"[\d.]+", path)]
    assert numbers
    assert 0 <= min(numbers) <= max(numbers) <= 720
    assert all("-" not in path and "n" not in path for path in paths)
    point = GroupPoint(AT_MS, 1, 1.0)
    moment = Report(AT_MS, AT_MS, worst=report.worst[:1], lines=((point,),), history=(Point(AT_MS, 1.0, 0),))
    assert Page(page(moment)).labels == []


def test_an_empty_report_says_what_to_do() -> None:
    """It names the settings; rejects are still shown."""
    html = page(Report(rejects=(Reject(None, None, "a.parquet", None, None, None, "is torn"),), reject_count=1))
    assert "Nothing has been evaluated yet" in html
    assert 'The tables in <span class="name">data/lag &amp; more</span> have no groups.' in html
    assert "offset-adapter-spark lag" in html
    assert Page(html).cells[-3:] == ["unknown", "is torn", "a.parquet"]
    assert "Not counted" not in page(Report())


def test_a_list_that_is_cut_says_so() -> None:
    """It has the total number."""
    moved = Rewind(AT_MS, "default", "g", "g/0", "b1", "rewind", 2, 1, 1, 0)
    html = page(report_of(group("g"), groups=4_000, rewinds=(moved,), rewind_totals=RewindTotals(9, 8, 7, 6)))
    assert "1 of 4,000: the worst status first" in html
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html))
    assert "9 since 2026-11-21 09:00:00 UTC: 8 messages read again, 7 skipped. 6 of them cannot be counted." in text
    assert "cannot be counted. The 1 with most messages read again:" in text


def test_what_a_page_is_made_of_is_in_the_wheel(tmp_path: Path) -> None:
    """A build could leave it out, because it is no Python file."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    needed = {f"adapter/pipeline/report/templates/{name}" for name in (TEMPLATE, SCRIPT.name)}
    assert needed | {"adapter/look/templates/macros.html", "adapter/look/static/look.css"} <= {*zipfile.ZipFile(wheel).namelist()}
