"""The report's page in a real browser, without a display: Debian's chromium, asked through the DOM that it made of the page.

Another page holds it in two frames, of a wide and a narrow width, looks into both, and writes down what it found: the report
itself has no script.
"""

import json
import re
import shutil
import subprocess
from html import unescape
from typing import Any

import pytest

from adapter.pipeline.places import Place
from adapter.pipeline.report import job as report_job
from adapter.pipeline.report.content import Bar, Reject, Report, Rewind, RewindTotals
from tests.pipeline.reports import AT_MS, HOSTILE, group, report_of

WIDTHS = (1_200, 360)
LIMIT_S = 250  # far above what it takes

# `console.info` at the end proves that the console is listened to.
LOOKING = """<!doctype html><meta charset="utf-8">
<iframe src="index.html" width="1200" height="900"></iframe><iframe src="index.html" width="360" height="900"></iframe>
<pre></pre>
<script>
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(({contentDocument: page}) => ({
    title: page.title,
    pictures: [...page.images].map(picture => [picture.getAttribute("src"), picture.complete, picture.naturalWidth, picture.alt]),
    rows: [...page.querySelectorAll("#worst tbody tr")].map(row => [...row.cells].map(cell => cell.innerText)),
    first: page.querySelector("#worst tbody tr").getBoundingClientRect().toJSON(),
    sections: [...page.querySelectorAll("section")].map(section => section.id),
    scripts: page.scripts.length,
    width: page.documentElement.clientWidth,
    needed: page.documentElement.scrollWidth,
  }));
  document.querySelector("pre").textContent = JSON.stringify(found);
  console.info("looked");
});
</script>
"""


@pytest.fixture(scope="module")
def browser() -> str:
    """The path of the browser."""
    found = shutil.which("chromium")
    if not found:
        pytest.skip("not run: chromium is not on PATH (make tools)")
    return found


@pytest.fixture(scope="module")
def seen(browser: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], list[str]]:
    """What the wide and the narrow frame contain, and the messages of the console."""
    directory = tmp_path_factory.mktemp("report")
    report_job.write(fleet(), Place.of("data/lag"), Place.of(directory), AT_MS + 60_000)
    (directory / "looking.html").write_text(LOOKING)
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
            # No name of a machine can be resolved: what needs the network fails, and the console says so.
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--allow-file-access-from-files"),
            *("--enable-logging=stderr", "--log-level=0", "--dump-dom"),
            *(f"--user-data-dir={directory / 'profile'}", (directory / "looking.html").as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    written = re.search(r"<pre>(.+?)</pre>", done.stdout, re.DOTALL)
    assert written, done.stdout + done.stderr
    return json.loads(unescape(written[1])), re.findall(r'CONSOLE[^"]*"(.*)", source', done.stderr)


def fleet() -> Report:
    """Healthy groups, one that is stopped, and names with HTML and scripts."""
    hostile = [group(name, "WARN", 1_000 + number) for number, name in enumerate(HOSTILE)]
    plain = report_of(group("stopped", "STOP", 350_000), *hostile, *(group(f"healthy-{number}") for number in range(30)))
    rewinds = tuple(Rewind(AT_MS, "default", name, "s/0", "b1", "rewind", 9, 2, 7, 0) for name in HOSTILE)
    values = {name: getattr(plain, name) for name in Report.__dataclass_fields__}
    more = {"rewinds": rewinds, "rewind_totals": RewindTotals(7, 49, 0, 0), "bars": (Bar(AT_MS, 49),)}
    rejects = (Reject(None, "b1", "a.parquet", None, None, None, HOSTILE[1]),)
    return Report(**{**values, **more, "rejects": rejects, "reject_count": 1})


@pytest.mark.parametrize("frame", range(len(WIDTHS)))
def test_all_pictures_are_loaded(seen: tuple[list[dict[str, Any]], list[str]], frame: int) -> None:
    """In their full size."""
    view = seen[0][frame]
    assert [picture[0] for picture in view["pictures"]] == [*report_job.PICTURES]
    assert all(complete and width == 1_760 and alt for _, complete, width, alt in view["pictures"])


def test_the_console_stays_silent(seen: tuple[list[dict[str, Any]], list[str]]) -> None:
    """No errors, no requests to other hosts, no refused styles, no output of a script in a name."""
    assert seen[1] == ["looked"]


@pytest.mark.parametrize("frame", range(len(WIDTHS)))
def test_the_worst_group_is_first(seen: tuple[list[dict[str, Any]], list[str]], frame: int) -> None:
    """It is visible at both widths, with status and name; the page never scrolls sideways."""
    view = seen[0][frame]
    assert view["rows"][0] == ["1", "STOP", "STOP", "stopped", "350,000", "9 h 43 min", "9 h 43 min", "1", "stopped/0"]
    assert view["first"]["height"] > 0
    assert 0 <= view["first"]["left"] < view["width"] / 4
    assert view["needed"] <= view["width"] <= WIDTHS[frame]
    assert view["sections"] == ["worst", "lag", "rewinds", "rejects"]


@pytest.mark.parametrize("frame", range(len(WIDTHS)))
def test_names_do_nothing(seen: tuple[list[dict[str, Any]], list[str]], frame: int) -> None:
    """They are shown as text, letter by letter."""
    view = seen[0][frame]
    assert view["title"] == "Consumer lag"
    assert view["scripts"] == 0
    assert [row[3] for row in view["rows"][1 : len(HOSTILE) + 1]] == list(HOSTILE)
