"""`top` where nobody watches: one listing, in the forms that every listing has."""

import csv
import json
from io import StringIO
from pathlib import Path

import grpc
import pytest

from adapter.cli.connection import CallError, Target
from adapter.cli.groups import lag as groups_lag
from adapter.cli.main import cli
from adapter.cli.output import CSV, JSON, TABLE, Form
from adapter.cli.top.listing import Wanted, print_groups
from adapter.rpc import lag_pb
from tests.unit.cli.fake_lag import NOW_MS, FakeLag, group, serving

GROUPS = (
    group("a", lag_pb.STOP, lag=2_000_000, lag_seconds=200.0, trend=-2.5, commit_rate=0.5, shards=3, stop=2, worst_shard="t/1"),
    group("b", lag_pb.LAG_STATUS_UNSPECIFIED, namespace="n", last_commit_at_ms=0),
)
ALL = Wanted(lag_pb.LagFilter(), "name", 0)


async def printed(
    lag: FakeLag, directory: Path, capsys: pytest.CaptureFixture[str], form: Form, wanted: Wanted = ALL
) -> tuple[str, str]:
    """What is printed on standard output and on standard error."""
    async with serving(lag, directory) as address:
        await print_groups(Target(address), wanted, form)
    out, err = capsys.readouterr()
    return out, err


async def test_a_table_says_what_is_known_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lag in full, spans as a person reads them, `-` for what is unknown; the age of a commit by the adapter's clock."""
    out, err = await printed(FakeLag(GROUPS), tmp_path, capsys, TABLE)
    assert [line.split("\t") for line in out.splitlines()] == [
        ["status", "namespace", "group", "lag", "lag-time", "trend/s", "last-commit", "shards"],
        ["stop", "default", "a", "2000000", "3m 20s", "-2.5", "1s", "3: 2 stop"],
        ["unknown", "n", "b", "-", "-", "-", "-", "1"],
    ]
    assert err == "2 groups\n"


async def test_json_and_csv_have_the_fields_of_the_proto_with_words_of_statuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is unknown is absent, or an empty cell."""
    out, err = await printed(FakeLag(GROUPS), tmp_path, capsys, JSON)
    first, second = json.loads(out)
    assert err == ""
    assert first == {
        "namespace": "default",
        "group": "a",
        "shards": 3,
        "known": 0,
        "lag": 2_000_000,
        "lag_seconds": 200.0,
        "commit_rate": 0.5,
        "trend": -2.5,
        "lost": 0,
        "last_commit_at_ms": NOW_MS - 1_000,
        "status": "stop",
        "burrow": "unknown",
        "worst_shard": "t/1",
        "warn": 0,
        "rewind": 0,
        "stall": 0,
        "stop": 2,
        "beyond": 0,
        "status_since_ms": NOW_MS - 3_600_000,
    }
    assert "lag" not in second
    out, _ = await printed(FakeLag(GROUPS), tmp_path, capsys, CSV)
    rows = [*csv.DictReader(StringIO(out))]
    assert [row["lag"] for row in rows] == ["2000000", ""]
    assert {name for name, value in rows[0].items() if value} == {*first}


async def test_groups_come_in_pages_each_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one changes its place between two pages, and to no more than are wanted."""
    monkeypatch.setattr(groups_lag, "PAGE", 3)
    lag = FakeLag(group(f"g{number}") for number in range(8))
    out, err = await printed(lag, tmp_path, capsys, JSON)
    assert [row["group"] for row in json.loads(out)] == [f"g{number}" for number in range(8)]
    out, err = await printed(lag, tmp_path, capsys, TABLE, ALL._replace(limit=4))
    assert [line.split("\t")[2] for line in out.splitlines()[1:]] == ["g0", "g1", "g2", "g3"]
    assert err == "4 groups of 8 that match\n"
    assert [request.page_size for request in lag.asked[-2:]] == [3, 1]

    class Moving(FakeLag):
        """A group is added at the front after each page."""

        async def ListGroupLag(self, request: lag_pb.ListGroupLagRequest, context: object) -> lag_pb.ListGroupLagReply:
            reply = await super().ListGroupLag(request, context)
            self.groups["default", f"a{len(self.asked)}"] = group(f"a{len(self.asked)}")
            return reply

    out, _ = await printed(Moving(group(f"g{number}") for number in range(8)), tmp_path, capsys, JSON)
    names = [row["group"] for row in json.loads(out)]
    assert len({*names}) == len(names)
    assert {f"g{number}" for number in range(8)} <= {*names}


async def test_a_page_that_was_cut_for_its_size_is_not_the_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The adapter limits the bytes of a message."""

    class Cut(FakeLag):
        async def ListGroupLag(self, request: lag_pb.ListGroupLagRequest, context: object) -> lag_pb.ListGroupLagReply:
            reply = await super().ListGroupLag(request, context)
            del reply.groups[2:]
            return reply

    out, _ = await printed(Cut(group(f"g{number}") for number in range(5)), tmp_path, capsys, JSON)
    assert [row["group"] for row in json.loads(out)] == [f"g{number}" for number in range(5)]


async def test_options_reach_the_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The filter, the order."""
    lag = FakeLag(GROUPS)
    wanted = Wanted(lag_pb.LagFilter(namespace="default", pattern="a*", at_least=lag_pb.WARN), "seconds", 1)
    out, _ = await printed(lag, tmp_path, capsys, JSON, wanted)
    assert [row["group"] for row in json.loads(out)] == ["a"]
    assert (lag.asked[0].filter, lag.asked[0].order) == (wanted.lag_filter, lag_pb.LAG_SECONDS)


async def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bounds, groups without room, and an adapter without lag: an error that says why."""
    lag = FakeLag(GROUPS)
    lag.bounds_error, lag.forgotten = "the broker\x1b is away", 3
    _, err = await printed(lag, tmp_path, capsys, TABLE)
    assert "warning: the broker did not tell the bounds of its shards" in err
    assert "the broker\\x1b is away" in err
    assert "3 shards forgotten" in err
    lag.refusal = (grpc.StatusCode.FAILED_PRECONDITION, "lag.shards is 0")
    with pytest.raises(CallError, match=r"FAILED_PRECONDITION: lag\.shards is 0"):
        await printed(lag, tmp_path, capsys, TABLE)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--sort", "size"], "'size' is not one of"),
        (["--at-least", "bad"], "'bad' is not one of 'ok', 'warn', 'rewind', 'stall', 'stop', 'beyond'"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_what_is_typed_wrong_is_named(given: list[str], said: str) -> None:
    """With the option."""
    from click.testing import CliRunner  # noqa: PLC0415 - only here

    ran = CliRunner().invoke(cli, ["top", *given])
    assert ran.exit_code == 2
    assert said in ran.output
