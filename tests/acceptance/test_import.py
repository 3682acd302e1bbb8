"""`offset-adapter import` against a real adapter: what is merged, what is told, what a file has to be."""

import os
import shutil
import time
from pathlib import Path

import pytest
from rocksdict import Rdict

from adapter.cli.files.import_run import Source, read_into
from adapter.cli.files.sorting import OffsetSorter
from adapter.errors import InvalidInputError
from adapter.formats.files import Format
from adapter.formats.rows import Naming
from adapter.runtime.durable import rocks
from tests.acceptance.conftest import Pair, Ran, run
from tests.acceptance.exports import unpack
from tests.acceptance.helpers import commit, standing

OK, NO, ERROR = 0, 1, 2
ROCKETMQ = Path(__file__).parents[1] / "data" / "rocketmq"


def counts(new: int = 0, raised: int = 0, unchanged: int = 0, larger: int = 0, repeated: int = 0, unreadable: int = 0) -> str:
    """The line behind the table."""
    return (
        f"{new:,} new, {raised:,} raised, {unchanged:,} unchanged, {larger:,} where a larger one stands; "
        f"in the file: {repeated:,} repeated, {unreadable:,} unreadable"
    )


def test_a_brokers_file_is_compared_then_merged(shared: Pair) -> None:
    """A file of a 4.x broker. Without --execute nothing changes; with it, all of it stands; again, nothing is left to do."""
    path = ROCKETMQ / "broker-4x.json"
    given = ("import", path, "--format", "rocketmq-broker")
    ran = shared(*given)
    assert (ran.code, ran.err.startswith("warning: shards are named TOPIC/QUEUE")) == (OK, True)
    assert "default lsqGroup lsqTopic1/2 - 14" in ran.words
    assert ran.out.splitlines()[-2:] == [counts(new=5), "dry run: 5 of 5 offsets would be imported; --execute does it"]
    assert shared("get", "lsqGroup").code == NO
    ran = shared(*given, "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "done: 5 of 5 offsets imported, read back and equal")
    expected = {"%RETRY%lsqGroup/0": 0, "lsqTopic1/0": 8, "lsqTopic1/1": 15, "lsqTopic1/2": 14, "lsqTopic1/3": 12}
    assert standing(shared, "lsqGroup") == expected
    labels = {row["shard"]: (row["topic"], row["partition"]) for row in shared("get", "lsqGroup", "--json").json}
    assert labels["lsqTopic1/2"] == ("lsqTopic1", 2)
    ran = shared(*given, "--execute")
    assert ran.out.splitlines() == [counts(unchanged=5), "done: 0 of 5 offsets imported, read back and equal"]


STORES_5X = ("store-v1.tar.gz", "store-v2.tar.gz", "store-v2-killed.tar.gz", "store-single.tar.gz")
FILES_5X = ("broker-5x.json", "broker-5x-lmq.json", *STORES_5X)


@pytest.mark.parametrize("name", FILES_5X)
def test_what_rocketmq_5_wrote_stands_as_it_is(shared: Pair, tmp_path: Path, name: str) -> None:
    """The same offsets in each of its forms: see the data's README."""
    path = ROCKETMQ / name
    given = ["--format", "rocketmq-broker"]
    if name.endswith(".gz"):
        path, given = unpack(path, tmp_path / "store"), []
    ran = shared("import", path, *given, "-n", name, "--execute", "--json")
    assert (ran.code, len(ran.err.splitlines())) == (OK, 1)
    found = {(row["group"], row["shard"], row["after"]["offset"]) for row in ran.json["rows"]}
    lines = [line.split("\t") for line in (ROCKETMQ / "offsets-5x.tsv").read_text().splitlines()]
    assert found == {(group, f"{topic}/{queue}", int(offset)) for group, topic, queue, offset in lines}


def test_of_two_files_of_a_broker_the_one_that_is_not_in_use_is_told(shared: Pair, tmp_path: Path) -> None:
    """With enableLmq all groups are in lmqConsumerOffset.json, and consumerOffset.json is what it once was; or the other way."""
    alive, dead = tmp_path / "lmqConsumerOffset.json", tmp_path / "consumerOffset.json"
    for path, name, age_s in ((alive, "broker-5x-lmq.json", 10), (dead, "broker-5x.json", 1_000)):
        shutil.copyfile(ROCKETMQ / name, path)
        os.utime(path, (time.time() - age_s,) * 2)
    told = f"{dead}: lmqConsumerOffset.json beside it was written later"
    ran = shared("import", dead)
    assert (told in ran.err, "a broker with enableLmq=true keeps all its groups there" in ran.err) == (True, True)
    assert "was written later" not in shared("import", alive).err
    unpack(ROCKETMQ / "store-v2.tar.gz", tmp_path / "rdb")
    assert "rdb beside it was written later" not in shared("import", alive).err, "it is as old as its archive"
    os.utime(tmp_path / "rdb" / "CURRENT")
    assert "was written later" not in shared("import", alive).err, "this file is not written with the offsets"
    for log in (tmp_path / "rdb").glob("*.log"):
        os.utime(log)
    assert "rdb beside it was written later" in shared("import", alive).err


def test_an_empty_v2_store_may_be_a_slaves(shared: Pair, tmp_path: Path) -> None:
    """Its slaves keep no offsets on disk."""
    with Rdict(str(tmp_path / "rdb"), options=rocks.options()):
        pass
    ran = shared("import", tmp_path / "rdb")
    assert ran.code == ERROR
    assert "holds no offsets; the slave of a broker with configManagerVersion=v2 keeps none on disk" in ran.err


def test_the_queues_of_a_broker_are_named_after_it(shared: Pair) -> None:
    """Where several brokers share a Meta Service."""
    given = ("--format", "rocketmq-broker", "--broker", "broker-a", "-n", "named")
    assert shared("import", ROCKETMQ / "broker-4x.json", *given, "--execute").code == OK
    shards = {row["shard"] for row in shared("get", "lsqGroup", "-n", "named", "--json").json}
    assert shards == {"broker-a/%RETRY%lsqGroup/0", *(f"broker-a/lsqTopic1/{queue}" for queue in range(4))}


def test_a_clients_file_belongs_to_the_group_that_is_named(shared: Pair, tmp_path: Path) -> None:
    """It names none. The directory that RocketMQ's clients place it in is suggested, and nothing is sent."""
    directory = tmp_path / "10.0.0.1@DEFAULT" / "client-group"
    directory.mkdir(parents=True)
    path = directory / "offsets.json"
    path.write_text('{\n\t"offsetTable":{{"brokerName":"b","queueId":3,"topic":"t"}:42\n\t}\n}')
    ran = shared("import", path, "--execute")
    assert (ran.code, "--group client-group" in ran.err) == (ERROR, True)
    assert standing(shared, "client-group") == {}
    assert shared("import", path, "--group", "another", "--execute").code == OK
    assert standing(shared, "another") == {"b/t/3": 42}


def test_a_csv_that_was_cut_in_a_number_is_not_imported(shared: Pair, tmp_path: Path) -> None:
    """1234 of 123456789012: the line is shown, and --execute asks for --accept-unterminated. A whole file needs nothing."""
    path = tmp_path / "offsets.csv"
    path.write_text("cut,t,0,5\ncut,t,1,123456789012\n")
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    dry = shared("import", path)
    said = f"{path}: line 2: has no line end: the file may be cut here (there stands cut,t,1,1234)"
    assert (dry.code, dry.err) == (OK, f"warning: {said}; --execute takes it only with --accept-unterminated\n")
    refused = shared("import", path, "--execute")
    assert (refused.code, f"{said}; nothing was sent. If the file is whole, add --accept-unterminated" in refused.err) == (
        ERROR,
        True,
    )
    assert standing(shared, "cut") == {}
    accepted = shared("import", path, "--execute", "--accept-unterminated")
    assert (accepted.code, accepted.err) == (OK, "")
    assert standing(shared, "cut") == {"t/0": 5, "t/1": 1234}
    path.write_bytes(whole)
    assert shared("import", path, "--execute").err == ""
    assert standing(shared, "cut") == {"t/0": 5, "t/1": 123456789012}


def test_json_that_was_cut_is_refused_wherever_it_is_cut(shared: Pair, tmp_path: Path) -> None:
    """Its last bracket is the last thing in it."""
    path = tmp_path / "cut.json"
    row = '{"group": "cut-json", "shard": "t/0", "offset": 123456789012}'
    whole = f"[\n{row}\n]"
    for size in range(1, len(whole)):
        path.write_text(whole[:size])
        with OffsetSorter() as sorter, pytest.raises(InvalidInputError):
            read_into(sorter, Source(str(path), Format.JSON, Naming()), execute=True)
    path.write_text(whole)
    assert shared("import", path, "--execute").code == OK


def test_an_import_never_goes_back(shared: Pair, tmp_path: Path) -> None:
    """What stands and is larger stays, is named, and makes the exit code 1, also in the dry run."""
    commit(shared, "ahead", {"t/0": 100, "t/1": 1, "t/2": 50})
    path = tmp_path / "old.csv"
    path.write_text("ahead,t,0,50\nahead,t,1,50\nahead,t,2,50\n")
    ran = shared("import", path)
    assert (ran.code, ran.out.splitlines()[-2]) == (NO, counts(raised=1, unchanged=1, larger=1))
    assert "default ahead t/0 100 100 +0 100 stands and is larger" in ran.words
    ran = shared("import", path, "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (NO, "done: 1 of 3 offsets imported, read back and equal")
    assert standing(shared, "ahead") == {"t/0": 100, "t/1": 50, "t/2": 50}


def test_a_torn_file_is_refused_before_anything_is_sent(shared: Pair, tmp_path: Path) -> None:
    """Though most of it can be read. A backup beside it that can be read is named."""
    whole = (ROCKETMQ / "broker-4x-two-groups.json").read_bytes()
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(whole[: len(whole) * 3 // 4])
    ran = shared("import", path, "-n", "torn", "--execute")
    assert (ran.code, ran.out) == (ERROR, "")
    assert ran.err.splitlines()[-1].startswith(f"error: {path}: ")
    assert ran.err.endswith("; nothing was sent\n")
    assert "consumerOffset.json.bak" not in ran.err
    (tmp_path / "consumerOffset.json.bak").write_bytes(whole)
    assert "consumerOffset.json.bak beside it can be read" in shared("import", path, "-n", "torn", "--execute").err
    assert shared("groups", "list", "-n", "torn", "--json").json == []
    assert shared("import", f"{path}.bak", "-n", "torn", "--execute").code == OK
    assert len(shared("groups", "list", "-n", "torn", "--json").json) == 2


def test_an_entry_that_cannot_be_read_is_told_and_the_others_are_taken(shared: Pair, tmp_path: Path) -> None:
    """With its line, or its place and what stands there; the exit code is 1."""
    path = tmp_path / "bad.csv"
    path.write_bytes(b"bad,t,0,5\nbad,t,1,-5\n\nbad,t,2,\xff\nbad,t,3,8\n")
    ran = shared("import", path, "--execute")
    assert (ran.code, ran.out.splitlines()[-2]) == (NO, counts(new=2, unreadable=2))
    first, second = ran.err.splitlines()
    assert first.startswith(f"warning: {path}: line 2: offset: '-5' is not a whole number from 0 to 9223372036854775807")
    assert second.startswith(f"warning: {path}: line 4: is not UTF-8 at byte 9")
    assert standing(shared, "bad") == {"t/0": 5, "t/3": 8}
    broker = tmp_path / "consumerOffset.json"
    broker.write_text('{"offsetTable":{"t@bad2":{0:1,1:"x"},"no group":{0:2}}}')
    ran = shared("import", broker, "--execute")
    assert (ran.code, ran.out.splitlines()[-2]) == (NO, counts(new=1, unreadable=2))
    assert '$.offsetTable["t@bad2"]["1"]' in ran.err
    assert '$.offsetTable["no group"]' in ran.err
    assert standing(shared, "bad2") == {"t/0": 1}


def test_of_many_bad_entries_the_first_hundred_are_told(shared: Pair, tmp_path: Path) -> None:
    """And how many more. With nothing else in the file it is an error."""
    path = tmp_path / "bad.csv"
    path.write_text("many,t,x,5\n" * 250)
    ran = shared("import", path)
    *lines, more, error = ran.err.splitlines()
    assert (ran.code, len(lines)) == (ERROR, 100)
    assert more == f"warning: {path}: and 150 more that cannot be read"
    assert error == f"error: {path}: holds no offsets that can be read"


def test_a_key_that_comes_twice_gets_the_larger_offset(shared: Pair, tmp_path: Path) -> None:
    """In whichever order; it is counted, and no mistake."""
    path = tmp_path / "twice.csv"
    path.write_text("twice,t,0,7\ntwice,t,1,1\ntwice,t,0,9\ntwice,t,0,5\n")
    for execute in ([], ["--execute"]):
        ran = shared("import", path, *execute)
        assert (ran.code, ran.out.splitlines()[-2]) == (OK, counts(new=2, repeated=2))
    assert standing(shared, "twice") == {"t/0": 9, "t/1": 1}


def test_standard_input_is_read_as_a_file_is(shared: Pair) -> None:
    """Its format has to be named where it is not Kafka's CSV; a directory it cannot be."""

    def piped(text: str, *more: str) -> Ran:
        return run("import", "-", *more, answer=text, OFFSET_ADAPTER_ADDRESS=shared.adapter.address)

    ran = piped("piped,t,0,5\n", "--execute")
    assert (ran.code, ran.err) == (OK, "")
    text = (ROCKETMQ / "broker-4x.json").read_text()
    ran = piped(text, "--format", "rocketmq-broker", "-n", "piped", "--execute")
    assert (ran.code, ran.out.splitlines()[-2]) == (OK, counts(new=5))
    assert standing(shared, "piped") == {"t/0": 5}
    ran = piped("piped,t\n")
    assert (ran.code, ran.err.splitlines()[-1]) == (
        ERROR,
        "error: standard input: holds no offsets that can be read; it was read as kafka-csv: --format names another",
    )
    ran = piped("", "--format", "rocketmq-rocksdb")
    assert (ran.code, ran.err) == (ERROR, "error: FILE: rocketmq-rocksdb is a directory; name it\n")
