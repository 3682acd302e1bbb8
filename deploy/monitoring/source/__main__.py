"""`python -m deploy.monitoring.source`: writes the generated files, or says which are not current."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from deploy.monitoring.source.files import Options, generated
from deploy.monitoring.source.model import Times
from deploy.monitoring.source.recordings import LAG_OBJECTIVE_S
from deploy.monitoring.source.runbooks import pages

HERE = Path(__file__).parents[1]
RUNBOOKS = HERE.parents[1] / "docs" / "runbooks"


def _objective(text: str) -> tuple[str, float]:
    pattern, _, seconds = text.rpartition("=")
    try:
        found = float(seconds)
    except ValueError:
        found = 0.0
    if not pattern or not 0 < found < float("inf"):
        raise click.BadParameter(f"{text!r} is not PATTERN=SECONDS, such as payments.*=30", param_hint="--objective")
    try:
        re.compile(pattern)
    except re.error as error:  # Prometheus would refuse all of its configuration
        raise click.BadParameter(f"{text!r} names no regular expression: {error}", param_hint="--objective") from error
    return pattern, found


@click.command()
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), default=HERE, help="The directory; default: this one."
)
@click.option("--only", multiple=True, metavar="FILE", help="Write this file only; may be repeated.")
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a file is not current.")
@click.option(
    "--scale",
    type=click.FloatRange(0.001, 1.0),
    default=1.0,
    show_default=True,
    help="Multiply all times by this, so that a demonstration sees alerts fire within seconds.",
)
@click.option("--runbooks", default="docs/runbooks/", show_default=True, help="What each runbook_url begins with.")
@click.option(
    "--runbook-suffix", default=".md", show_default=True, help="What each runbook_url ends with; .html for the built site."
)
@click.option(
    "--lag-objective",
    type=click.FloatRange(0, min_open=True),
    default=LAG_OBJECTIVE_S,
    show_default=True,
    help="Seconds, of every group.",
)
@click.option(
    "--objective", multiple=True, metavar="PATTERN=SECONDS", help="Of the groups with such names; the first that fits counts."
)
def main(
    output: Path,
    only: tuple[str, ...],
    scale: float,
    runbooks: str,
    runbook_suffix: str,
    lag_objective: float,
    objective: tuple[str, ...],
    *,
    check: bool,
) -> None:
    """Write the rules, alerts and dashboards of deploy/monitoring."""
    options = Options(
        times=Times(scale),
        runbooks=runbooks,
        runbook_suffix=runbook_suffix,
        lag_objective_s=lag_objective,
        objectives=[_objective(text) for text in objective],
    )
    files = generated(options)
    if unknown := [name for name in only if name not in files]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(files)}", param_hint="--only")
    chosen = {output / name: text for name, text in files.items() if not only or name in only}
    if output == HERE and not only:
        chosen |= pages(RUNBOOKS)
    if check:
        sys.exit(_report(path for path, text in chosen.items() if not path.is_file() or path.read_text() != text))
    for path, text in chosen.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _report(outdated: Iterable[Path]) -> int:
    found = [str(path) for path in outdated]
    for path in found:
        click.echo(f"{path} is not current: run make monitoring", err=True)
    return 1 if found else 0


if __name__ == "__main__":
    main()
