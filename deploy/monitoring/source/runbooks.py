"""The generated parts of docs/runbooks: the head of each page, and the table of all. The rest of a page is written by people."""

import re
from collections.abc import Iterator
from pathlib import Path

from deploy.monitoring.source.alerts import ALERTS, GROUPS_OF_ALERTS
from deploy.monitoring.source.model import Alert, Times

BEGIN, END = "<!-- made by make monitoring -->", "<!-- end -->"
_HEAD = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
TITLES = {
    "offset-adapter": "Adapters",
    "offset-processes": "Adapters and the Meta Service",
    "offset-meta": "The Meta Service",
    "offset-groups": "Groups of consumers",
    "offset-pipeline": "The pipeline",
}


def pages(directory: Path) -> dict[Path, str]:
    """The table, and each page that is there with its present head. Raises ValueError for a page without a place for it."""
    found = {directory / "index.md": _table()}
    for alert in ALERTS:
        path = directory / f"{alert.name}.md"
        if path.is_file():
            text, count = _HEAD.subn(_head(alert).replace("\\", r"\\"), path.read_text())
            if count != 1:
                raise ValueError(f"{path}: has {count} places for its head, between {BEGIN} and {END}")
            found[path] = text
    return found


def _head(alert: Alert) -> str:
    after = f"for {alert.after}" if alert.after != "0s" else "at once"
    lines = [BEGIN, f"**{alert.severity}**, {after}:", "", "```text", Times().expr(alert.expr), "```", "", alert.reason, END]
    return "\n".join(lines)


def _table() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Alerts and their runbooks"
    yield ""
    yield "Made by `make monitoring` of `deploy/monitoring/source/alerts.py`. [Monitoring](../monitoring.md): how to use them."
    for group, alerts in GROUPS_OF_ALERTS.items():
        yield from ("", f"## {TITLES[group]}", "")
        yield from ("| alert | severity | fires after | threshold, and why |", "| --- | --- | --- | --- |")
        for alert in alerts:
            expr = Times().expr(alert.expr).replace("|", "\\|")
            after = "at once" if alert.after == "0s" else alert.after
            yield f"| [{alert.name}]({alert.name}.md) | {alert.severity} | {after} | `{expr}`: {alert.reason} |"
    yield from ("", "```{toctree}", ":hidden:", "", *sorted(alert.name for alert in ALERTS), "```")
