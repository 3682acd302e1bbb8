"""The live lag in `groups list` and `groups describe`: beside what they had, and left out where there is none."""

import csv
import json
from collections.abc import AsyncIterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import grpc
import pytest

from adapter.cli.columns import CORE, Asked
from adapter.cli.connection import Target
from adapter.cli.groups import show
from adapter.cli.groups.show import Selection, View
from adapter.cli.output import CSV, JSON, TABLE, Form
from adapter.rpc import lag_pb, offsets_grpc, offsets_pb
from tests.unit.cli.fake_lag import FakeLag, group, serving, shard

KEY = ("default", "g")
LIVE = shard(
    "orders/0",
    lag_pb.WARN,
    offset=3,
    low_watermark=10,
    high_watermark=50,
    lag=40,
    lost=7,
    lag_seconds=200.0,
    commit_rate=1.5,
    trend=-2.0,
    burrow=lag_pb.REWIND,
)


class FakeAdmin(offsets_grpc.OffsetAdminServicer):
    """Groups with one shard that has a lag of 47 as DescribeGroup says it, and one without bounds."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    async def ListGroups(self, _request: offsets_pb.ListGroupsRequest, _context: Any) -> offsets_pb.ListGroupsReply:
        rows = [offsets_pb.ListGroupsReply.Group(namespace="default", group=name, shards=2) for name in self.names]
        return offsets_pb.ListGroupsReply(groups=rows)

    async def DescribeGroup(self, _request: offsets_pb.DescribeGroupRequest, _context: Any) -> offsets_pb.DescribeGroupReply:
        here = offsets_pb.Position(epoch=1, offset=3)
        rows = [
            offsets_pb.DescribeGroupReply.Shard(shard="orders/0", local=here, low_watermark=10, high_watermark=50, lag=47),
            offsets_pb.DescribeGroupReply.Shard(shard="orders/1", local=here),
        ]
        return offsets_pb.DescribeGroupReply(shards=rows, mode="write_back")

    async def DescribeGroups(
        self, request: offsets_pb.DescribeGroupsRequest, context: Any
    ) -> AsyncIterator[offsets_pb.DescribeGroupsReply]:
        for name in request.groups:
            reply = offsets_pb.DescribeGroupsReply()
            reply.groups.add(group=name, description=await self.DescribeGroup(offsets_pb.DescribeGroupRequest(), context))
            yield reply


def admin(*names: str) -> Any:
    """For `serving`; what is not called here is not implemented."""
    made: Any = type("Admin", (FakeAdmin,), {"__abstractmethods__": frozenset()})
    return offsets_grpc.add_OffsetAdminServicer_to_server, made(names)


@pytest.fixture
def lag() -> FakeLag:
    """One group."""
    made = FakeLag([group("g", lag_pb.WARN, lag=40, lag_seconds=200.0)])
    made.shards[KEY] = [LIVE]
    return made


async def described(
    lag: FakeLag,
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    form: Form,
    names: Sequence[str] = ("g",),
    columns: Asked = CORE,
) -> tuple[str, str]:
    """What `groups describe` prints."""
    async with serving(lag, directory, admin(*names)) as address:
        assert await show.describe(Target(address), Selection("default", names), View(form, columns))
    out, err = capsys.readouterr()
    return out, err


async def test_a_table_has_the_lag_that_can_be_read(lag: FakeLag, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That of the answer which has the offset beside it, which is newer; a shard without a live lag has empty cells."""
    out, err = await described(lag, tmp_path, capsys, TABLE, columns=Asked(wide=True))
    names, first, second = (line.split("\t") for line in out.splitlines())
    row = dict(zip(names, first, strict=True))
    wanted = {"lag": "47", "lost": "7", "lag-time": "3m 20s", "commits/s": "1.5", "trend/s": "-2", "status": "warn"}
    assert {name: row[name] for name in wanted} == wanted
    assert row["burrow"] == "rewind"
    other = dict(zip(names, second, strict=True))
    assert [other[name] for name in ("lag", "lost", "lag-time", "status", "burrow")] == ["-", "", "", "", ""]
    assert "live lag" not in err


async def test_json_and_csv_keep_what_they_had(lag: FakeLag, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """New fields stand beside the old ones, in CSV behind them."""
    out, err = await described(lag, tmp_path, capsys, JSON)
    found = json.loads(out)[0]
    assert (err, found["lag_error"], found["live"]["status"], found["live"]["lag"]) == ("", "", "warn", 40)
    first, second = found["shards"]
    assert (first["lag"], first["live"]["lag"], first["live"]["lost"]) == (47, 40, 7)
    assert (first["live"]["status"], first["live"]["burrow"], first["state"]) == ("warn", "rewind", "ahead")
    assert "live" not in second
    out, _ = await described(lag, tmp_path, capsys, CSV)
    rows = [*csv.DictReader(StringIO(out))]
    assert [*rows[0]][-8:-6] == ["remote_error", "live_lag"]
    assert [rows[0][name] for name in ("lag", "live_lag", "lost", "lag_seconds", "status")] == ["47", "40", "7", "200.0", "warn"]
    assert [rows[1][name] for name in ("lag", "live_lag", "lost", "lag_seconds", "status")] == ["", "", "", "", ""]


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ((grpc.StatusCode.FAILED_PRECONDITION, "lag.shards is 0"), "no live lag: FAILED_PRECONDITION: lag.shards is 0\n"),
        ((grpc.StatusCode.UNIMPLEMENTED, "?"), "no live lag: this adapter is of a version without it\n"),
        (
            (grpc.StatusCode.RESOURCE_EXHAUSTED, "later"),
            "no live lag of g0, g1, g2, g3, g4 and 2 others: RESOURCE_EXHAUSTED: later\n",
        ),
    ],
)
async def test_where_there_is_no_lag_one_note_says_so(
    lag: FakeLag, tmp_path: Path, capsys: pytest.CaptureFixture[str], refusal: tuple[grpc.StatusCode, str], said: str
) -> None:
    """And the command does what it did. An adapter that keeps none at all is asked once."""
    lag.refusal = refusal
    names = [f"g{number}" for number in range(7)]
    out, err = await described(lag, tmp_path, capsys, TABLE, names)
    assert len(out.splitlines()) == 1 + 2 * len(names)
    assert err.endswith(said)
    assert err.count("no live lag") == 1
    assert len(lag.asked) == (7 if refusal[0] is grpc.StatusCode.RESOURCE_EXHAUSTED else 1)
    out, err = await described(lag, tmp_path, capsys, JSON, names)
    found = json.loads(out)
    assert err == ""
    assert all("live" not in row and row["lag_error"] for row in found)


async def test_a_group_that_was_forgotten_is_named(lag: FakeLag, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other one has its lag."""
    out, err = await described(lag, tmp_path, capsys, TABLE, ["g", "forgotten"])
    assert err.endswith(
        "no live lag of forgotten: nobody commits to it at this adapter, or more shards than lag.shards have moved since\n"
    )
    assert "\twarn\t" in out


async def test_groups_list_has_status_and_lag(lag: FakeLag, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the groups with a lag; without any, one note."""

    async def listed(form: Form) -> tuple[str, str]:
        async with serving(lag, tmp_path, admin("g", "other")) as address:
            await show.list_groups(Target(address), Selection(""), View(form))
        out, err = capsys.readouterr()
        return out, err

    out, err = await listed(JSON)
    first, second = json.loads(out)
    assert (first["status"], first["lag"], first["lag_seconds"]) == ("warn", 40, 200.0)
    assert {"status", "lag", "lag_seconds"} & {*second} == set()
    out, err = await listed(TABLE)
    assert [line.split("\t")[5:] for line in out.splitlines()] == [
        ["status", "lag", "lag-time"],
        ["warn", "40", "3m 20s"],
        [""] * 3,
    ]
    assert err == "2 groups\n"
    out, err = await listed(CSV)
    assert [line.split(",")[5:] for line in out.splitlines()] == [
        ["status", "lag", "lag_seconds"],
        ["warn", "40", "200.0"],
        [""] * 3,
    ]
    lag.refusal = (grpc.StatusCode.FAILED_PRECONDITION, "lag.shards is 0")
    out, err = await listed(TABLE)
    assert err == "2 groups; no live lag: FAILED_PRECONDITION: lag.shards is 0\n"
    assert len(out.splitlines()) == 3
