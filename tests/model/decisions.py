"""`make model-coverage RUNS=...`: which decisions on the way of a commit the model takes, and which no run has taken.

A decision is a branch of a statement, as coverage.py counts them. CONTRIBUTING.md says of the rest why it is not taken. A second
table has the modules on that way that the simulation replaces; with `--replaced` it tells what TESTS, which run them, take.
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
    "adapter/runtime/serving/http2/*.py",
    "adapter/runtime/coalescing.py",
    "adapter/sidecar/process.py",
    "adapter/sidecar/api/commit*.py",
    "adapter/sidecar/api/offset_service.py",
    "adapter/sidecar/api/state.py",
    "adapter/sidecar/engine/*.py",
    *(f"adapter/sidecar/ledger/{name}.py" for name in ("rules", "decision", "operations", "ledger", "watching")),
    *(f"adapter/sidecar/ledger/{name}.py" for name in ("write_batch", "store", "group_state", "dirty", "recovered")),
    "adapter/meta/epochless.py",
    "adapter/meta/labels.py",
    "adapter/meta/packed.py",
    "adapter/meta/slash_names.py",
    "adapter/meta/store_marks.py",
    "adapter/metaservice/clock_skew.py",
    "adapter/metaservice/engine.py",
)


# What of that way the model does not run, by the module of tests/model that is there instead.
REPLACED = {
    "disk.py": ("adapter/sidecar/ledger/disk.py", "adapter/runtime/durable/rocks.py", "adapter/runtime/durable/watermark.py"),
    "network.py": (
        *(f"adapter/meta/{name}.py" for name in ("client", "endpoints", "errors", "group_saves", "save_window", "wire")),
        *(f"adapter/metaservice/{name}.py" for name in ("offset_service", "bulk_checks", "group_reads", "limits")),
    ),
    "engine.py": (
        "adapter/metaservice/bulk.py",
        *(f"adapter/metaservice/rocksdb/{name}.py" for name in ("engine", "store")),
        *(f"adapter/metaservice/etcd/{name}.py" for name in ("engine", "txn_batcher", "reads", "sharding", "fences", "keys")),
        *(f"adapter/metaservice/etcd/{name}.py" for name in ("client", "elections", "errors", "broker_stores")),
    ),
}
# They run it in their own process, where it can be measured; durability, soak and exploration run it too.
TESTS = (
    "tests/contract",
    "tests/unit/meta",
    "tests/unit/metaservice",
    "tests/unit/sidecar/ledger",
    "tests/integration/test_meta_client.py",
    "tests/integration/test_meta_client_faults.py",
    "tests/integration/test_group_saves.py",
    "tests/integration/test_bulk.py",
    "tests/integration/test_bad_input_meta.py",
    "tests/integration/test_etcd_connecting.py",
)
NEVER = "never taken: from line to line (negative: the end of a function)"
WIDTH = 100  # characters of a line of code in the table


def main() -> int:
    """Play, measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.decisions", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first one (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: %(default)s")
    parser.add_argument("--world", help="default: each in turn")
    parser.add_argument("--plans", type=Path, help="also these, which tests.model.guided has kept")
    parser.add_argument("--lines", action="store_true", help="show the lines of code, too")
    parser.add_argument("--replaced", action="store_true", help="also what TESTS take of what is replaced; five minutes")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="decisions-") as name:
        if options.runs:
            failed = _play(Path(name), options.runs, options.seed, options.processes, options.world, options.plans)
            _show(_measured(Path(name)), lines=options.lines)
    with tempfile.TemporaryDirectory(prefix="decisions-") as name:
        if options.replaced:
            failed |= _test(Path(name), options.processes)
        _show_replaced(_measured(Path(name)) if options.replaced else {}, lines=options.lines)
    return failed


def _play(directory: Path, runs: int, seed: int, processes: int, world: str | None, plans: Path | None) -> int:
    """1 when a run broke; then fewer have been played."""
    each = -(-runs // processes)
    more = ["--world", world] if world else []
    played = [["--processes", "0", "--runs", str(each), "--seed", str(seed + at * each), *more] for at in range(processes)]
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "coverage", "run", f"--data-file={directory / f'.coverage.{at}'}", "--branch"),
                *("--source=adapter", "-m", "tests.model", *arguments),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        for at, arguments in enumerate([*played, *([["--plans", str(plans)]] if plans else [])])
    ]
    return max(process.wait() for process in started)


def _test(directory: Path, processes: int) -> int:
    """Run the tests of what is replaced; 1 when one failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--numprocesses={processes}", "--dist=loadfile"]
    done = subprocess.run(
        [*command, "--cov", "--cov-report=", *TESTS],
        cwd=ROOT,
        env={**os.environ, "COVERAGE_FILE": str(directory / ".coverage.tests")},
        check=False,
    )
    return int(done.returncode != 0)


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
    table = Table("module", "taken", "of", NEVER)
    found = [_row(path, files, lines=lines) for path in files_of(PATHS)]
    for row in found:
        if row[2] != "0":
            table.add_row(*row)
    taken, total = (sum(int(row[at]) for row in found) for at in (1, 2))
    table.add_section()
    table.add_row("all", str(taken), str(total), f"{100 * taken / total:.1f} %")
    _print(table)


def _show_replaced(files: dict[str, Any], *, lines: bool) -> None:
    """With `files` also what was taken."""
    table = Table("module", "replaced in the model by tests/model/", *(("taken", "of", NEVER) if files else ()))
    for instead, paths in REPLACED.items():
        for path in files_of(paths):
            name, *more = _row(path, files, lines=lines) if files else [_short(path)]
            table.add_row(name, instead, *more)
        table.add_section()
    _print(table)


def _row(path: str, files: dict[str, Any], *, lines: bool) -> list[str]:
    summary, missing = files[path]["summary"], files[path]["missing_branches"]
    shown = _lines(path, missing) if lines else [", ".join(f"{source}→{to}" for source, to in missing)]
    return [_short(path), str(summary["covered_branches"]), str(summary["num_branches"]), "\n".join(shown)]


def _short(path: str) -> str:
    return path.removeprefix("adapter/")


def files_of(patterns: Sequence[str]) -> list[str]:
    """The files; each pattern has some."""
    found = {pattern: [str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)] for pattern in patterns}
    assert all(found.values()), [pattern for pattern, paths in found.items() if not paths]
    return sorted(path for paths in found.values() for path in paths)


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 160).print(table, markup=False, highlight=False)


def _lines(path: str, missing: Sequence[Sequence[int]]) -> Iterator[str]:
    source = (ROOT / path).read_text().splitlines()
    for line, ways in groupby(missing, key=lambda way: way[0]):
        yield f"{line}→{', '.join(str(to) for _, to in ways)}  {source[line - 1].strip()[:WIDTH]}"


if __name__ == "__main__":
    sys.exit(main())
