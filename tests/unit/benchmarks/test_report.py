"""Stored benchmark results: one JSON file for all benchmarks, and the summary that is made from it."""

from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.report import FILE, SUMMARY, Bar, Result, Table, loaded, show, store, stored

MACHINE = {"CPU": "a", "commit": "c1", "load average before": "0.10"}


def about(**machine: str) -> dict[str, Any]:
    """A run on a machine."""
    return {"command": "python -m benchmarks", "date": "2026-11-22 12:00 UTC", "machine": {**MACHINE, **machine}}


def a_result(name: str, value: float) -> Result:
    """A result with one table and one bar."""
    return Result(
        name, f"title of {name}", [Table("rows", ["what", "ms"], [["one", value]])], [Bar(f"bar of {name}", value, 2.0)]
    )


def test_a_result_replaces_its_own_part_only(tmp_path: Path) -> None:
    """The results of other benchmarks stay, in the JSON file and in the summary."""
    store(tmp_path, a_result("rates", 1.0), about())
    store(tmp_path, a_result("flush", 1.5), about())
    store(tmp_path, a_result("rates", 3.0), about())
    results = stored(tmp_path)
    assert {name: result["bars"][0]["value"] for name, result in results.items()} == {"flush": 1.5, "rates": 3.0}
    assert results["rates"]["bars"][0]["verdict"] == "MISSED"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([FILE, SUMMARY])
    summary = (tmp_path / SUMMARY).read_text()
    assert "| flush | bar of flush | 1.5 | <= 2 | met | 1 |" in summary
    assert "| rates | bar of rates | 3 | <= 2 | MISSED | 1 |" in summary


def test_a_stored_result_prints_as_it_did_when_it_was_measured(tmp_path: Path) -> None:
    """Tables, bars and notes read from the file are those that were written."""
    result = a_result("rates", 1.0)
    result.notes.append("a note")
    store(tmp_path, result, about())
    screens = []
    for each in (result, loaded(stored(tmp_path)["rates"])):
        console = Console(width=100)
        with console.capture() as capture:
            show(console, each)
        screens.append(capture.get())
    assert screens[0] == screens[1]
    assert "a note" in screens[0]


def test_the_summary_numbers_the_runs_and_names_what_was_not_measured(tmp_path: Path) -> None:
    """Two commits are two runs; a table of one cell names the missing tool; a result without bars leaves no gap."""
    store(tmp_path, a_result("rates", 1.0), about())
    store(tmp_path, Result("floor", "the floor", [Table("rows", ["what"], [["h2load is not installed"]])]), about(commit="c2"))
    summary = (tmp_path / SUMMARY).read_text()
    assert "| floor | the floor | | no bar | | 2 |" in summary
    assert "- floor: not measured: h2load is not installed" in summary
    assert "| 2 | 2026-11-22 12:00 UTC | c2 | 0.10 | `python -m benchmarks` |" in summary
    assert summary.count("| CPU | a |") == 1
