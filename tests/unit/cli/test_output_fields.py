"""docs/output.md names the fields of JSON and CSV that the commands print."""

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor

from adapter.cli.doctor import command as doctor
from adapter.cli.groups import broadcast, drain, handover, show
from adapter.cli.groups import lag as groups_lag
from adapter.cli.groups.lag import Brief, GroupLive
from adapter.cli.groups.show import Described, Selection
from adapter.cli.meta import kv, placement, status
from adapter.cli.offsets import history as offsets_history
from adapter.cli.offsets.older import MEMORY, Found
from adapter.cli.output import CSV, as_dict, fields_of
from adapter.metaservice.etcd.leader_placement import ClusterState, RaftGroup, RaftMember
from adapter.rpc import lag_pb, meta_pb, offsets_pb

PAGE = (Path(__file__).parents[3] / "docs" / "output.md").read_text()
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number"}


def documented(title: str) -> dict[str, str]:
    """Field -> type, of the table below a heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, title
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in found[1].splitlines() if line.startswith("| `")]
    names = {name.strip("`"): kind for name, kind, _ in rows}
    assert len(names) == len(rows)
    return names


def of_message(message: Descriptor, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Field -> type, as `as_dict` prints a message."""
    for field in message.fields:
        name = f"{prefix}{field.name}{'[]' if field.is_repeated else ''}"
        if field.message_type is not None:
            if field.has_presence:
                yield name, "object, optional"
            yield from of_message(field.message_type, f"{name}.")
        else:
            kinds = {field.TYPE_STRING: "string", field.TYPE_BOOL: "boolean", field.TYPE_DOUBLE: "number"}
            kind = "string" if field.enum_type is not None else kinds.get(field.type, "integer")
            yield name, kind + (", optional" if field.has_presence else "")


def of_value(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Field -> type, of an object in which every field has a value."""
    for field, value in values.items():
        name, item = (f"{prefix}{field}[]", value[0]) if isinstance(value, list) else (f"{prefix}{field}", value)
        if isinstance(item, dict):
            if not isinstance(value, list):
                yield name, "object, optional"
            yield from of_value(item, f"{name}.")
        else:
            yield name, KINDS[type(item)]


@pytest.mark.parametrize(
    ("title", "message"),
    [
        ("Fields of `list` and `get`", offsets_pb.ShardOffset),
        ("Fields of `top`", lag_pb.GroupLag),
    ],
)
def test_replies_are_printed_as_the_proto_has_them(title: str, message: Any) -> None:
    """With their types; `optional` where a field may be absent. CSV has the same fields."""
    fields = documented(title)
    assert fields == dict(of_message(message.DESCRIPTOR))
    assert fields_of(message) == list(dict.fromkeys(re.split(r"[.\[]", name)[0] for name in fields))
    assert {*as_dict(message())} <= {*fields_of(message)}


def test_a_change_says_where_it_is_from_beside_what_the_proto_has() -> None:
    """In JSON and CSV."""
    fields = documented("Fields of `offsets history`")
    assert fields == {**dict(of_message(offsets_pb.ListChangesReply.Change.DESCRIPTOR)), "source": "string", "broker": "string"}
    values = offsets_history._values(Found(offsets_pb.ListChangesReply.Change(), MEMORY))
    assert [*values] == offsets_history.FIELDS == list(dict.fromkeys(name.partition("[")[0] for name in fields))


def test_a_listed_group_has_its_lag_beside_what_the_proto_has() -> None:
    """Absent where there is none."""
    fields = documented("Fields of `groups list`")
    added = {"status": "string, optional", "lag": "integer, optional", "lag_seconds": "number, optional"}
    assert fields == {**dict(of_message(offsets_pb.ListGroupsReply.Group.DESCRIPTOR)), **added}
    assert tuple(fields) == show.LIST_FIELDS
    values = show._group_values(
        (offsets_pb.ListGroupsReply.Group(), Brief.of(lag_pb.GroupLag(status=lag_pb.OK, lag=1, lag_seconds=2.0)))
    )
    assert tuple(values) == show.LIST_FIELDS


def test_every_field_of_status_is_on_the_page() -> None:
    """With its type."""
    fields = documented("Fields of `status`")
    replied = dict(of_message(offsets_pb.StatusReply.DESCRIPTOR))
    assert {name: fields.get(name) for name in replied} == replied


def test_a_described_group_has_its_name_and_a_state_for_each_shard() -> None:
    """Beside what the adapter replies."""
    added = {"namespace": "string", "group": "string", "shards[].state": "string"}
    live = {"live": "object, optional", "lag_error": "string", "shards[].live": "object, optional"}
    for prefix, message in (("live.", lag_pb.GroupLag), ("shards[].live.", lag_pb.ShardLag)):
        beside = {f"{prefix}{name}" for name in ("namespace", "group", "shard", "topic", "partition")}
        live.update({name: kind for name, kind in of_message(message.DESCRIPTOR, prefix) if name not in beside})
    assert documented("Fields of `groups describe`") == {**added, **live, **dict(of_message(Described.DESCRIPTOR))}
    reply = Described(shards=[Described.Shard(shard="s"), Described.Shard(shard="other")])
    lag = lag_pb.GetGroupLagReply(shards=[lag_pb.ShardLag(shard="s")])
    described = show._described(reply, GroupLive(lag), Selection("default"))
    assert [row["state"] for row in described["shards"]] == ["clean", "clean"]
    assert ["live" in row for row in described["shards"]] == [False, True]
    assert {*described["shards"][1]["live"]} <= {name.rpartition(".")[2] for name in live}


def test_the_columns_of_csv() -> None:
    """In the order of the page."""
    columns = documented("Columns of `groups describe --output csv`")
    assert tuple(columns) == show.DESCRIBE_CSV
    row = Described.Shard(
        shard="s",
        local=offsets_pb.Position(offset=1, epoch=2),
        remote=offsets_pb.Position(offset=3, epoch=4),
        low_watermark=5,
        high_watermark=9,
        lag=6,
        held_until_ms=7,
        committed_at_ms=8,
        metadata="m",
    )
    lag = lag_pb.ShardLag(lag=6, lost=1, lag_seconds=0.5, commit_rate=1.5, trend=2.5)
    flat = show._flat(row, Described(mode="write_back", generation=10, member_id="c"))
    values = {**flat, **groups_lag.csv_values(lag)}
    assert {"namespace", "group", *values} == {*columns}
    assert {name: kind for name, kind in of_value(values) if kind != columns[name].partition(",")[0]} == {}
    assert tuple(documented("Columns of `meta placement show --output csv`")) == placement.CSV_FIELDS
    gone = Described.Shard(shard="s", local=offsets_pb.Position(offset=1, epoch=2, deleted=True))
    assert show._flat(gone, Described())["current_offset"] is None


def test_the_fields_of_rows() -> None:
    """Of listings that are not of the proto."""
    assert tuple(documented("Fields of `groups broadcast`")) == broadcast.FIELDS
    assert tuple(documented("Fields of `groups handover`")) == handover.FIELDS
    assert tuple(documented("Fields of `drain`")) == drain.FIELDS
    assert tuple(documented("Fields of `doctor` and `meta doctor`")) == doctor.FIELDS
    assert tuple(documented("Fields of `meta kv list` and `meta kv get`")) == kv.FIELDS


def test_the_fields_of_a_meta_service() -> None:
    """With everything that may be absent."""
    reply = meta_pb.GetStoreStatusReply(
        engine="rocksdb", version="1", marks=[meta_pb.StoreMark(store_id=b"1")], loss=meta_pb.GetStoreStatusReply.Loss(writes=1)
    )
    assert documented("Fields of `meta status`") == dict(of_value(status._json(reply, 1)))


def test_the_fields_of_a_placement(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a group that leads beside the metadata, so that there is a problem."""
    member = RaftMember(endpoint="127.0.0.1:1", node="n", reachable=True, id=1, leader_id=1, term=1)
    situation = ClusterState(RaftGroup(name="metadata", members=(member,)), (RaftGroup(name="o1", members=(member,)),))
    found = dict(of_value(placement.as_dict(situation)))
    capsys.readouterr()
    assert not placement._shown(situation, CSV)
    assert [*csv.reader(capsys.readouterr().out.splitlines())] == [
        ["raft_group", "leader", "endpoint", "members", "db_size", "etcd", "placement"],
        ["metadata", "n", "127.0.0.1:1", "1/1", "0.0 MiB", "", "good"],
        ["o1", "n", "127.0.0.1:1", "1/1", "0.0 MiB", "", "beside metadata"],
    ]
    page = documented("Fields of `meta placement show`")
    assert {name: kind.partition(",")[0] for name, kind in page.items()} == {
        name: kind.partition(",")[0] for name, kind in found.items()
    }
