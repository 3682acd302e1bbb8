"""`make model-coverage RUNS=...`: which decisions on the way of a commit the model takes, and which no run has taken.

A decision is a branch of a statement, as coverage.py counts them. CONTRIBUTING.md says of the rest why it is not taken.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
# From a request to the disk and to the Meta Service, and its decision there.
PATHS = (
    "adapter/model/records.py",
    "adapter/model/codec.py",
    "adapter/sidecar/process.py",
    "adapter/sidecar/api/commit*.py",
    "adapter/sidecar/api/state.py",
    "adapter/sidecar/api/admission*.py",
    "adapter/sidecar/engine/*.py",
    "adapter/sidecar/storage/store.py",
    "adapter/sidecar/storage/record_cache.py",
    "adapter/sidecar/storage/write_batch.py",
    "adapter/metaservice/engine.py",
)
WIDTH = 100  # characters of a line of code in the table


def main() -> int:
    """Play, measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.decisions", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first one (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: %(default)s")
    parser.add_argument("--world", help="default: each in turn")
    parser.add_argument("--lines", action="store_true", help="show the lines of code, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="decisions-") as name:
        broke = _play(Path(name), options.runs, options.seed, options.processes, options.world)
        _show(_measured(Path(name)), lines=options.lines)
    return broke


def _play(directory: Path, runs: int, seed: int, processes: int, world: str | None) -> int:
    """1 when a run broke; then fewer have been played."""
    each = -(-runs // processes)
    more = ["--world", world] if world else []
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "coverage", "run", f"--data-file={directory / f'.coverage.{at}'}", "--branch"),
                *("--source=adapter", "-m", "tests.model", "--processes", "0"),
                *("--runs", str(each), "--seed", str(seed + at * each), *more),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        for at in range(processes)
    ]
    return max(process.wait() for process in started)


def _measured(directory: Path) -> dict[str, Any]:
    """What coverage.py says of each file."""
    data = f"--data-file={directory / '.coverage'}"
    coverage = [sys.executable, "-m", "coverage"]
    report = directory / "report.json"
    subprocess.run([*coverage, "combine", "-q", data, str(directory)], cwd=ROOT, check=True)
    subprocess.run([*coverage, "json", "-q", data, "-o", str(report)], cwd=ROOT, check=True)
    found: dict[str, Any] = json.loads(report.read_bytes())["files"]
    return found


def _show(files: dict[str, Any], *, lines: bool) -> None:
    table = Table("module", "taken", "of", "never taken: from line to line (negative: the end of a function)")
    taken = total = 0
    for path in sorted(str(found.relative_to(ROOT)) for pattern in PATHS for found in ROOT.glob(pattern)):
        summary, missing = files[path]["summary"], files[path]["missing_branches"]
        taken += summary["covered_branches"]
        total += summary["num_branches"]
        if summary["num_branches"]:
            shown = _lines(path, missing) if lines else [", ".join(f"{source}→{to}" for source, to in missing)]
            table.add_row(
                path.removeprefix("adapter/"), str(summary["covered_branches"]), str(summary["num_branches"]), "\n".join(shown)
            )
    table.add_section()
    table.add_row("all", str(taken), str(total), f"{100 * taken / total:.1f} %")
    Console(width=None if sys.stdout.isatty() else 160).print(table, markup=False, highlight=False)


def _lines(path: str, missing: Sequence[Sequence[int]]) -> Iterator[str]:
    source = (ROOT / path).read_text().splitlines()
    for line, ways in groupby(missing, key=lambda way: way[0]):
        yield f"{line}→{', '.join(str(to) for _, to in ways)}  {source[line - 1].strip()[:WIDTH]}"


if __name__ == "__main__":
    sys.exit(main())
