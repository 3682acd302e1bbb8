"""`offset-adapter export` from a real adapter, and back by an import: in every format the same offsets."""

import json
from pathlib import Path

import pytest

from adapter.formats import broker_places, files
from adapter.formats.files import Format
from adapter.formats.rows import Naming, OffsetRow
from adapter.model.records import U64_MAX
from adapter.rpc import offsets_pb
from adapter.runtime.wording import counted
from tests.acceptance.conftest import Pair, run
from tests.acceptance.exports import unpack
from tests.acceptance.helpers import commit, standing
from tests.integration.helpers import rpc

OK, NO, ERROR = 0, 1, 2
ROCKETMQ = Path(__file__).parents[1] / "data" / "rocketmq"
FOR_JSON = broker_places.note_of(Format.ROCKETMQ_BROKER, "v1", lmq=False)


def table(path: Path, kind: Format, naming: Naming) -> list[tuple[str, str, int]]:
    """What a file holds: group, shard, offset."""
    rows = []
    for row in files.read(path, kind, naming):
        assert isinstance(row, OffsetRow), row
        rows.append((row.group, row.shard, row.offset))
    return sorted(rows)


@pytest.mark.parametrize("name", ["broker-4x.json", "broker-4x-two-groups.json"])
def test_real_files_of_brokers_come_back_as_they_were(shared: Pair, tmp_path: Path, name: str) -> None:
    """consumerOffset.json of real brokers, through an adapter and a Meta Service: the same table."""
    assert shared("import", ROCKETMQ / name, "--format", "rocketmq-broker", "-n", name, "--execute").code == OK
    path = tmp_path / "consumerOffset.json"
    ran = shared("export", "-n", name, "-o", path)
    assert (ran.code, ran.out) == (OK, "")
    before = table(ROCKETMQ / name, Format.ROCKETMQ_BROKER, Naming())
    assert table(path, Format.ROCKETMQ_BROKER, Naming()) == before
    groups = len({group for group, _, _ in before})
    assert ran.err.splitlines() == [
        f"exported {counted(len(before), 'offset')} of {counted(groups, 'group')} in namespace {name} to {path}",
        FOR_JSON,
    ]


@pytest.mark.parametrize("layout", ["v1", "v2"])
def test_a_rocksdb_store_comes_back_as_it_was(shared: Pair, tmp_path: Path, layout: str) -> None:
    """In both layouts; the directory is known by being one."""
    source = ROCKETMQ / "broker-4x-two-groups.json"
    there, back = f"from-{layout}", f"to-{layout}"
    assert shared("import", source, "--format", "rocketmq-broker", "-n", there, "--execute").code == OK
    store = tmp_path / "store"
    given = ("--format", "rocketmq-rocksdb", "--layout", layout)
    assert shared("export", "-n", there, *given, "-o", store).code == OK
    assert shared("import", store, "-n", back, "--execute").code == OK
    path = tmp_path / "consumerOffset.json"
    assert shared("export", "-n", back, "-o", path).code == OK
    assert table(path, Format.ROCKETMQ_BROKER, Naming()) == table(source, Format.ROCKETMQ_BROKER, Naming())


def test_an_export_says_which_broker_reads_it(shared: Pair, tmp_path: Path) -> None:
    """A broker with V2 reads no JSON and no V1 store, and one with enableLmq reads a file of another name: in silence."""
    commit(shared, "for-whom", {"t/0": 5})
    store = ("--format", "rocketmq-rocksdb")
    cases = {
        ("consumerOffset.json",): "configManagerVersion=v2 never does (it needs --format rocketmq-rocksdb --layout v2)",
        ("lmqConsumerOffset.json",): "only a broker with enableLmq=true reads the file",
        ("consumerOffsets", *store): "configManagerVersion=v2 never does (it needs --layout v2)",
        ("rdb", *store, "--layout", "v2"): "for a broker with configManagerVersion=v2, which reads nothing else",
    }
    for (name, *given), text in cases.items():
        directory = tmp_path / f"for-{name}"
        directory.mkdir()
        ran = shared("export", "for-whom", *given, "-o", directory / name)
        assert (ran.code, text in ran.err) == (OK, True), ran.err
    ran = shared("export", "for-whom", *store, "-o", tmp_path / "metadata")
    assert (ran.code, "write consumerOffsets beside it with --layout v1" in ran.err) == (ERROR, True)
    assert "broker" not in shared("export", "for-whom", "-o", tmp_path / "offsets.csv").err


@pytest.mark.parametrize("name", ["consumerOffset.json", "consumerOffsets"])
def test_an_export_does_not_go_back_behind_the_store_beside_it(shared: Pair, tmp_path: Path, name: str) -> None:
    """RocketMQ would take it over in place of newer offsets, since its counter is the time: 99 became 15."""
    namespace, store = f"behind-{name}", tmp_path / "metadata"
    unpack(ROCKETMQ / "store-single.tar.gz", store)
    for shard, offset in (("T/3", 41), ("T/0", 0)):
        shared("commit", "g", shard, str(offset), "-n", namespace)
    given = ("--format", "rocketmq-rocksdb") if name == "consumerOffsets" else ()
    ran = shared("export", "g", "-n", namespace, *given, "-o", tmp_path / name)
    assert ran.code == ERROR
    assert "-o: metadata beside it has larger offsets for 1 shard, as 'T/3' of group 'g': 42, here 41" in ran.err
    assert not (tmp_path / name).exists()
    assert shared("export", "g", "-n", namespace, *given, "-o", tmp_path / "elsewhere").code == OK
    assert shared("import", store, "-n", namespace, "--execute").code == OK
    assert shared("export", "g", "-n", namespace, *given, "-o", tmp_path / name).code == OK


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("consumerOffset.json", "7 offsets that the export has not, as '%LMQ%q/0' of group '%LMQ%q': 11"),
        ("consumerOffsets", "1 offset that the export has not, as 'T/0' of group 'g': 0"),
    ],
)
def test_offsets_that_a_broker_loses_by_an_export_are_told(shared: Pair, tmp_path: Path, name: str, told: str) -> None:
    """By JSON all that is not in it; by a V1 store only queues, of the groups and topics that are in it."""
    unpack(ROCKETMQ / "store-single.tar.gz", tmp_path / "metadata")
    namespace = f"lost-{name}"
    shared("commit", "g", "T/3", "42", "-n", namespace)
    given = ("--format", "rocketmq-rocksdb") if name == "consumerOffsets" else ()
    ran = shared("export", "g", "-n", namespace, *given, "-o", tmp_path / name)
    assert (ran.code, f"warning: metadata beside it has {told}; a broker that takes" in ran.err) == (OK, True), ran.err
    ran = shared("export", "-n", namespace, *given, "-o", tmp_path / "lmqConsumerOffset.json")
    assert (ran.code, "that the export has not" in ran.err) == (OK, False), "no broker with this store reads it"


def test_a_store_beside_an_export_that_cannot_be_read_is_told(shared: Pair, tmp_path: Path) -> None:
    """It is not known then whether the broker would go back."""
    commit(shared, "unknown", {"t/0": 5})
    (tmp_path / "lmqConsumerOffset.json").write_text("{")
    ran = shared("export", "unknown", "-o", tmp_path / "consumerOffset.json")
    assert ran.code == OK
    assert "lmqConsumerOffset.json: is not JSON" in ran.err
    assert "whether the broker would go back was not checked" in ran.err


def test_the_queues_of_one_broker_are_a_clients_or_a_brokers_file(shared: Pair, tmp_path: Path) -> None:
    """A client's file takes the brokers out of the shards; a broker's is of the one that is named."""
    commit(shared, "by-broker", {"b1/t/0": 5, "b1/t/1": 6})
    client = tmp_path / "by-broker" / "offsets.json"
    client.parent.mkdir()
    assert shared("export", "by-broker", "-o", client).code == OK
    assert shared("import", client, "--group", "by-broker", "-n", "elsewhere", "--execute").code == OK
    assert {row["shard"] for row in shared("get", "by-broker", "-n", "elsewhere", "--json").json} == {"b1/t/0", "b1/t/1"}
    path = tmp_path / "consumerOffset.json"
    commit(shared, "by-broker", {"b2/t/0": 7})
    ran = shared("export", "by-broker", "--broker", "b1", "-o", path)
    assert (ran.code, ran.err.splitlines()[0]) == (OK, "left out 1 offset of other brokers than 'b1'")
    assert '"t@by-broker":{"0":5,"1":6}' in path.read_text()
    ran = shared("export", "by-broker", "-o", path)
    assert (ran.code, len(ran.err.splitlines())) == (ERROR, 3)
    assert "shard 'b1/t/0' of group 'by-broker' is of broker 'b1', and the file is of none; --broker names another" in ran.err
    commit(shared, "of-none", {"t/0": 5})
    ran = shared("export", "of-none", "--broker", "b1", "-o", path)
    assert (ran.code, "shard 't/0' of group 'of-none' is of no broker" in ran.err) == (ERROR, True)
    assert shared("export", "by-broker", "--broker", "b3", "-o", path).code == NO


def test_kafkas_csv_goes_from_one_adapter_to_another(pair: Pair, shared: Pair, tmp_path: Path) -> None:
    """With the group's column; topics may have slashes and commas; queue 10 stands behind queue 9."""
    commit(pair, "g1", {"t/10": 5, "t/9": 6, "a,b/10": 7})
    commit(pair, "g2", {"t/0": 2**63 - 1})
    path = tmp_path / "offsets.csv"
    ran = pair("export", "-o", path)
    assert (ran.code, ran.out, ran.err) == (OK, "", f"exported 4 offsets of 2 groups in namespace default to {path}\n")
    assert path.read_text() == f'g1,"a,b",10,7\ng1,t,9,6\ng1,t,10,5\ng2,t,0,{2**63 - 1}\n'
    assert shared("import", path, "--execute").code == OK
    assert standing(shared, "g1") == {"t/9": 6, "t/10": 5, "a,b/10": 7}
    assert pair("export").out == path.read_text()


def test_json_holds_everything(shared: Pair) -> None:
    """Offsets of 64 bits, any name of a shard, metadata, times; standard input and output."""
    shared("commit", "json-1", "t/0", "5", "--metadata", 'a, "b"')
    commit(shared, "json-3", {"no partition": U64_MAX})
    ran = shared("export", "json-3", "json-1", "--format", "json")
    exported = json.loads(ran.out)
    assert [(row["group"], row["shard"], row["offset"]) for row in exported] == [
        ("json-1", "t/0", 5),
        ("json-3", "no partition", U64_MAX),
    ]
    assert exported[0]["metadata"] == 'a, "b"'
    moved = json.dumps([{**row, "namespace": "json"} for row in exported])
    given = ("import", "-", "--format", "json", "--execute")
    assert run(*given, answer=moved, OFFSET_ADAPTER_ADDRESS=shared.adapter.address).code == OK
    back = json.loads(shared("export", "-n", "json", "--format", "json").out)
    assert [{**row, "namespace": "default"} for row in back] == exported


def test_a_file_of_one_group_goes_to_the_group_that_is_named(shared: Pair, tmp_path: Path) -> None:
    """Kafka's form for a single group has no group in it."""
    commit(shared, "single", {"t/0": 5})
    path = tmp_path / "single.csv"
    assert shared("export", "single", "-o", path).code == OK
    assert path.read_text() == "t,0,5\n"
    ran = shared("import", path)
    assert ran.code == ERROR
    assert f"{path}: line 1: group is missing; --group names it for the whole file" in ran.err
    assert shared("import", path, "--group", "renamed", "--execute").code == OK
    assert standing(shared, "renamed") == {"t/0": 5}


def test_what_a_format_cannot_hold_is_named_and_not_exported(shared: Pair, tmp_path: Path) -> None:
    """A file that was there stays as it was, also a directory."""
    commit(shared, "odd", {"a queue": 5, "t/0": 2**63})
    for name, given in (("e.csv", ()), ("consumerOffset.json", ()), ("store", ("--format", "rocketmq-rocksdb"))):
        path = tmp_path / name
        if not given:
            path.write_text("before")
        ran = shared("export", "odd", "-o", path, *given)
        assert (ran.code, ran.out) == (ERROR, "")
        assert "error: shard 'a queue' of group 'odd' is not of the form " in ran.err
        assert f"error: shard 't/0' of group 'odd' has offset {2**63}, and the format's largest is {2**63 - 1}" in ran.err
        assert path.read_text() == "before" if not given else not path.exists()
    assert len(list(tmp_path.iterdir())) == 2
    assert shared("export", "odd", "-o", tmp_path / "e.json").code == OK


def test_the_positions_of_broadcasting_clients_stay_here(shared: Pair, tmp_path: Path) -> None:
    """RocketMQ's brokers have none of them on disk; what is left out is told. By name they are refused, in JSON they are."""
    for group in ("b", "b@broadcast", "b@broadcast@client-1"):
        shared("commit", group, "t/0", "5", "-n", "casting")
    path = tmp_path / "consumerOffset.json"
    ran = shared("export", "-n", "casting", "-o", path)
    assert (ran.code, ran.err.splitlines()) == (
        OK,
        [
            "left out 1 group of broadcasting clients: RocketMQ's brokers do not keep their positions",
            f"exported 2 offsets of 2 groups in namespace casting to {path}",
            FOR_JSON,
        ],
    )
    assert shared("export", "b@broadcast@client-1", "-n", "casting", "-o", path).code == ERROR
    assert len(json.loads(shared("export", "-n", "casting", "--format", "json").out)) == 3


def test_a_group_without_offsets_is_told(shared: Pair, tmp_path: Path) -> None:
    """The others are exported, and the exit code is 1; without any, nothing is written."""
    commit(shared, "somebody", {"t/0": 5})
    ran = shared("export", "somebody", "nobody")
    assert (ran.code, ran.out) == (NO, "somebody,t,0,5\n")
    assert "group 'nobody' has no offsets in namespace 'default'" in ran.err
    path = tmp_path / "e.csv"
    assert shared("export", "nobody", "-o", path).code == NO
    assert not path.exists()


def test_an_export_says_what_only_the_meta_service_has(pair: Pair, tmp_path: Path) -> None:
    """An adapter with a new store exported 10 of 100,000 offsets with exit code 0. `--meta` has all of them."""
    for group in ("here", "there", "there-too"):
        commit(pair, group, {f"{group}/{number}": 5 for number in range(3)})
    commit(pair, "gone", {"t/0": 5})
    assert pair("commit", "of-another", "t/0", "5", "-n", "tenant").code == OK
    assert pair("offsets", "delete", "gone", "--execute").code == OK
    assert pair("flush").code == OK
    with rpc(pair.adapter.address) as stubs:  # as at a hand-over: away from here, and nowhere else
        for group in ("there", "there-too"):
            stubs.store.RemoveOffsets(offsets_pb.RemoveOffsetsRequest(groups=[offsets_pb.GroupShards(group=group)]), timeout=30)
    path = tmp_path / "offsets.csv"
    ran = pair("export", "-o", path)
    assert (ran.code, path.read_text()) == (NO, "here,here,0,5\nhere,here,1,5\nhere,here,2,5\n")
    assert "warning: not in the export: 6 offsets of 2 groups that stand in the Meta Service" in ran.err
    assert f"exported 3 offsets of 1 group in namespace default to {path}" in ran.err
    meta = f"--meta={pair.meta.address}"
    ran = pair("export", meta, "-o", path)
    assert (ran.code, len(path.read_text().splitlines())) == (OK, 9), ran.err
    ran = pair("export", "there", "--meta", pair.meta.address)
    assert (ran.code, ran.out) == (OK, "there,0,5\nthere,1,5\nthere,2,5\n")
    assert pair("export", "--meta", pair.meta.address, "nobody").code == NO
    everything = json.loads(pair("export", meta, "--format", "json", "--all-namespaces").out)
    assert {(row["namespace"], row["group"]) for row in everything} == {
        ("tenant", "of-another"),
        *(("default", group) for group in ("here", "there", "there-too")),
    }
    assert pair("export", "here").code == OK, "what was named is whole"
    pair.meta.kill()
    assert (pair("export").code, pair("export", meta).code) == (ERROR, ERROR)


def test_shards_without_a_number_are_left_out_only_if_asked_for(shared: Pair, tmp_path: Path) -> None:
    """They are counted; JSON has them."""
    commit(shared, "half-named", {"t/0": 5, "lonely": 6, "t/x": 7})
    for name in ("e.csv", "consumerOffset.json"):
        path = tmp_path / name
        ran = shared("export", "half-named", "-o", path)
        assert (ran.code, path.exists()) == (ERROR, False)
        assert "--skip-unnamed leaves out the 2 offsets of shards that are not named TOPIC/NUMBER" in ran.err
        ran = shared("export", "half-named", "-o", path, "--skip-unnamed")
        assert (ran.code, path.exists()) == (OK, True)
        assert "left out 2 offsets of shards that are not named TOPIC/NUMBER" in ran.err
        assert "exported 1 offset of 1 group" in ran.err
