"""Each alert has a runbook and each runbook an alert; what a runbook tells a person to type exists."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from adapter.cli.main import cli
from deploy.monitoring.source.alerts import ALERTS
from deploy.monitoring.source.runbooks import pages
from tests.monitoring.programs import ROOT

RUNBOOKS = ROOT / "docs" / "runbooks"
HEADINGS = ["What it means", "What is at risk", "Look", "Do", "When it clears"]
PAGES = sorted(path for path in RUNBOOKS.glob("*.md") if path.name != "index.md")


def commands(text: str) -> Iterator[list[str]]:
    """The command lines of `offset-adapter` in a page: in blocks, and in single backticks."""
    lines = [line.strip() for line in text.split("\n") if line.startswith("    ")]
    for found in [*lines, *re.findall(r"`(offset-adapter [^`]+)`", text)]:
        if found.startswith("offset-adapter "):
            yield shlex.split(found, comments=True)[1:]


def parse(arguments: list[str]) -> None:
    """Parse a command line as the program would, without running it. Raises click's error for what does not exist."""
    command: click.Command = cli
    name = "offset-adapter"
    while True:
        context = command.make_context(name, list(arguments))
        left = [*context._protected_args, *context.args] if isinstance(command, click.Group) else []
        if not isinstance(command, click.Group) or not left:
            return
        found, resolved, arguments = command.resolve_command(context, left)
        assert resolved is not None, left
        name, command = str(found), resolved


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the pages name are there."""
    for name in ("adapter.toml", "meta.toml", "FILE", "PLAN.csv"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    """By name."""
    assert [path.stem for path in PAGES] == sorted(alert.name for alert in ALERTS)


def test_a_runbook_has_all_parts_and_its_commands_and_links_exist() -> None:
    """The parts in one order, each with text; commands parse; pages and headings that it links to are there."""
    for path in PAGES:
        text = path.read_text()
        assert text.startswith(f"# {path.stem}\n")
        parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
        assert parts[1::2] == HEADINGS, path
        assert all(part.strip() for part in parts[2::2]), path
        for arguments in commands(text):
            parse(arguments)
        for target in re.findall(r"\]\(([^)]+)\)", text):
            name, _, heading = target.partition("#")
            linked = (path.parent / name).resolve()
            assert linked.is_file(), (path, target)
            slugs = {
                re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
                for line in linked.read_text().split("\n")
                if line.startswith("#")
            }
            assert not heading or heading in slugs, (path, target)


def test_commands_are_found_and_a_wrong_one_is_refused() -> None:
    """Otherwise the test above would prove nothing."""
    found = list(commands("text\n\n    offset-adapter status --json  # a comment\n\nand `offset-adapter groups list`, `other`"))
    assert found == [["status", "--json"], ["groups", "list"]]
    for wrong in (["statuss"], ["status", "--jason"], ["groups", "lisst"], ["meta", "placement", "shw"]):
        with pytest.raises(click.UsageError):
            parse(wrong)


def test_a_page_without_a_place_for_its_head_is_refused(tmp_path: Path) -> None:
    """It would have no threshold."""
    (tmp_path / "OffsetAdapterAway.md").write_text("# OffsetAdapterAway\n")
    with pytest.raises(ValueError, match="0 places for its head"):
        pages(tmp_path)
