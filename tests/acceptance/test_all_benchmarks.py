"""A short run of all benchmarks: each runs, and stores what it measured. `make test` runs two of them (test_benchmarks.py)."""

import importlib.util
import json
import shutil

import pytest

from benchmarks import http2_redis
from tests.acceptance.benchmark_runs import BARS, BY_H2LOAD, BY_REDIS, TIMEOUT_S, WITHOUT_BARS, Ran, bench

pytestmark = [pytest.mark.release, pytest.mark.timeout(TIMEOUT_S + 100)]
# The same with adapters and Meta Services as forks: their starts are a third of a short run's processor time.
FORKED = """
from adapter.testing.processes import ServiceProcess
from benchmarks.__main__ import main
from tests import forking

ServiceProcess.by_default = forking.start
main()
"""
needs_h2load = pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed (nghttp2-client)")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Everything once. In test_benchmarks.py processes start as users start them."""
    directory = tmp_path_factory.mktemp("results")
    process = bench("--results", str(directory), program=("-c", FORKED))
    return Ran(process.returncode, process.stdout, process.stderr, directory)


def test_all_benchmarks_run(ran: Ran) -> None:
    """Each one that needs no foreign server stores its tables."""
    assert ran.exit_code == 0, ran.errors
    for name in (*BARS, *WITHOUT_BARS):
        assert all(table["rows"] for table in ran.stored(name)["tables"])
    assert "peers" not in json.loads((ran.directory / "results.json").read_text())


@pytest.mark.parametrize(("name", "bars"), BARS.items())
def test_each_bar_is_printed_and_stored_with_its_verdict(ran: Ran, name: str, bars: int) -> None:
    """On the screen, in the JSON and in the summary."""
    expected = bars if shutil.which("h2load") else BY_H2LOAD.get(name, bars)
    ran.assert_bars(name, expected - (BY_REDIS.get(name, 0) if http2_redis.lacking() else 0))


def test_a_load_is_counted_on_both_sides(ran: Ran) -> None:
    """Every load is answered, and the Meta Service and the adapter both count save calls.

    Not in each load: on a busy machine the counters may be read twice between two flushes.
    """
    rows = ran.stored("rates")["tables"][0]["rows"]
    assert len(rows) == 5
    assert all(commits > 0 for _, commits, *_ in rows)
    assert any(seen > 0 for _, _, _, _, seen, *_ in rows)
    assert any(sent > 0 for _, _, _, _, _, sent, *_ in rows)


@needs_h2load
def test_the_adapter_stands_beside_servers_that_do_nothing(ran: Ran) -> None:
    """Under each shape of call, and as a stream."""
    assert len(ran.stored("floor")["tables"]) == 4
    for table in range(4):
        rows = ran.rows("floor", table)
        assert all(rate > 0 for rate, *_ in rows.values())
        assert {"no-op, aio", "no-op, threads-4", "no-op, aio-uvloop, two processes", "adapter, wal_sync = interval"} <= set(rows)


def test_the_builtin_server_stands_beside_grpcio_servers_that_write(ran: Ran) -> None:
    """In each shape of calls, over TCP and over a Unix socket."""
    tables = [table for table in ran.stored("http2")["tables"] if table["title"].startswith("Lone commits, ")]
    assert len(tables) == 4
    for table in tables:
        assert {"adapter", "aio-uvloop, writes"} == {row[0] for row in table["rows"]}
        assert all(rate > 0 for _, rate, *_ in table["rows"])


def test_what_is_left_of_a_commit_is_told_by_stage(ran: Ran) -> None:
    """All stages and the rest are what the server's process took."""
    stages = ran.rows("http2", -1)
    parts = [us for name, (us, _) in stages.items() if not name.startswith(("of these", "all"))]
    assert sum(parts) == pytest.approx(stages["all, by the server's process"][0])


def test_commits_are_told_apart_by_whether_a_flush_was_under_way(ran: Ran) -> None:
    """Both kinds have their row."""
    rows = ran.stored("during_flush")["tables"][0]["rows"]
    assert [row[1].split()[0] for row in rows] == ["without", "during"]
    assert sum(row[2] for row in rows) > 0


def test_a_drain_is_told_with_the_cpu_of_both_processes(ran: Ran) -> None:
    """Of new keys and of known ones; a killed adapter compares all of them at its start, and pushes what was dirty."""
    for _, offsets, seconds, rate, *cpu in ran.stored("drain")["tables"][0]["rows"]:
        assert rate == pytest.approx(offsets / seconds)
        assert len(cpu) == 2
    (_, keys, *_), _ = ran.stored("drain")["tables"][0]["rows"]
    dirty, clean = (row[4:6] for row in ran.stored("drain")["tables"][2]["rows"])
    assert dirty[0] >= keys
    assert clean[1] >= keys


def test_the_rates_are_drawn_or_the_screen_says_why_not(ran: Ran) -> None:
    """Matplotlib is no dependency of the tests."""
    if importlib.util.find_spec("matplotlib"):
        assert (ran.directory / "rates.png").read_bytes().startswith(b"\x89PNG")
    else:
        assert "no plot: matplotlib is not installed" in ran.screen
