"""Two benchmarks run, and all can be imported. What they measure is no test's business: their bars are printed, never asserted.

A short run of all of them is in test_all_benchmarks.py, which `make release-check` runs.
"""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import http2_load, http2_redis
from benchmarks.__main__ import ALL, HEAVY, main
from benchmarks.during_flush import Spans, told_apart
from benchmarks.http2_rising import Rising
from benchmarks.report import Bar, Result
from benchmarks.scale import SHORT
from tests.acceptance.benchmark_runs import BARS, BY_H2LOAD, WITHOUT_BARS, Ran, bench


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One that needs h2load, where it is not installed, and one that has bars."""
    directory = tmp_path_factory.mktemp("results")
    process = bench("floor", "flush", "--results", str(directory), path=str(directory))
    return Ran(process.returncode, process.stdout, process.stderr, directory)


def test_a_benchmark_runs_and_stores_its_tables_and_bars(ran: Ran) -> None:
    """With processes that start as users start them."""
    assert ran.exit_code == 0, ran.errors
    assert all(table["rows"] for name in ("floor", "flush") for table in ran.stored(name)["tables"])
    ran.assert_bars("floor", BY_H2LOAD["floor"])
    ran.assert_bars("flush", BARS["flush"])


def test_the_short_run_of_a_release_has_every_benchmark() -> None:
    """But those that start the servers of others, or Spark, and those that have no bar."""
    assert ALL.keys() - HEAVY == {*BARS, *WITHOUT_BARS}


def test_a_bar_may_be_a_least_or_a_most() -> None:
    """On the limit it is met in both."""
    assert [Bar("a", value, 2.0).verdict for value in (1.0, 2.0, 3.0)] == ["met", "met", "MISSED"]
    assert [Bar("a", value, 2.0, least=True).verdict for value in (1.0, 2.0, 3.0)] == ["MISSED", "met", "met"]
    assert Bar("a", 1.0, 2.0, least=True).sentence == "a: 1 (bar: >= 2)"


async def test_without_redis_a_table_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would have measured is not left out in silence."""
    monkeypatch.setenv("PATH", str(tmp_path))
    result = Result("http2", "")
    nothing: Any = None
    await http2_redis.measure(result, SHORT, tmp_path, nothing, nothing, Rising(), nothing)
    assert result.tables[0].rows == [[http2_redis.MISSING]]
    assert not result.bars


def test_answers_are_counted_wherever_their_bytes_are_cut() -> None:
    """What a server asks for meanwhile is acknowledged; a call that it ends early is an error."""
    answer = http2_load.frame(http2_load.HEADERS, 4, 1, b"") + http2_load.frame(http2_load.HEADERS, 5, 1, b"\x88")
    data = (
        http2_load.frame(http2_load.SETTINGS, 0, 0, bytes(6)) + 3 * answer + http2_load.frame(http2_load.PING, 0, 0, b"12345678")
    )
    for size in range(1, len(data)):
        replies: list[bytes] = []
        answers = http2_load.GrpcAnswers(replies.append)
        assert sum(answers.count(data[at : at + size]) for at in range(0, len(data), size)) == 3
        assert replies == [http2_load.frame(http2_load.SETTINGS, 1, 0, b""), http2_load.frame(http2_load.PING, 1, 0, b"12345678")]
    with pytest.raises(RuntimeError, match="type 3"):
        http2_load.GrpcAnswers(print).count(http2_load.frame(http2_load.RST_STREAM, 0, 1, bytes(4)))


def test_without_h2load_the_tables_say_so(ran: Ran) -> None:
    """What it would have measured is not left out in silence."""
    assert "h2load is not installed: apt-get install nghttp2-client" in ran.screen
    assert "h2load is not installed" in (ran.directory / "summary.md").read_text()


def test_a_commit_belongs_to_a_flush_when_its_life_overlaps_it() -> None:
    """One that was sent before and answered during it, too; what lived partly in neither time counts nowhere."""
    spans = Spans(quiet=[(0.0, 10.0)], flushing=[(20.0, 30.0)])
    commits = [(1.0, 2.0), (9.0, 3.0), (12.0, 4.0), (19.0, 5.0), (21.0, 6.0), (29.0, 7.0), (18.0, 15.0), (30.0, 8.0)]
    assert told_apart(commits, spans) == ([2.0], [5.0, 6.0, 7.0, 15.0])


def test_the_summary_names_the_machine_and_the_command(ran: Ran) -> None:
    """A number without them is worth nothing."""
    summary = (ran.directory / "summary.md").read_text()
    for fact in ("| CPU |", "| cores |", "| kernel |", "| grpcio |", "| date |", "BENCH=short python -m benchmarks"):
        assert fact in summary


def test_an_unknown_benchmark_or_scale_is_refused() -> None:
    """A typing mistake does not start minutes of work."""
    assert "'flsh' is not one of" in CliRunner().invoke(main, ["flsh"]).output
    assert "BENCH='tiny' is unknown" in CliRunner().invoke(main, env={"BENCH": "tiny"}).output
