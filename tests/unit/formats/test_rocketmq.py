"""RocketMQ's offset files as rows: names map to shards and back, and RocketMQ can read what is written."""

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given

from adapter.errors import InvalidInputError
from adapter.formats import files
from adapter.formats.files import Format
from adapter.formats.rows import Naming, OffsetRow, Reject
from adapter.model.queues import QUEUE_MAX
from adapter.model.records import LONG_MAX
from tests.unit.formats.samples import DATA, N, found, lists, offsets_5x, queue_rows, read, written

BROKER, CLIENT = Format.ROCKETMQ_BROKER, Format.ROCKETMQ_CLIENT
OF_A = Naming(broker="a")
OF_G = Naming(group="g")
USE_JSON = "use --format json, or a file name that ends in .json"


def row(shard: str, offset: int = 5, group: str = "g") -> OffsetRow:
    """A row with the labels that a file gives it."""
    _, topic, queue = f"/{shard}".rsplit("/", 2)
    return OffsetRow(N, group, shard, offset, topic=topic, partition=int(queue))


def without_version(text: str) -> str:
    """A broker's file without the version of its data, which is the time."""
    text, found = re.subn(r'\n\t"dataVersion":\{"counter":(\d+),"stateVersion":0,"timestamp":\1\},', "", text)
    assert found == 1
    return text


def refused(rows: list[OffsetRow], kind: Format, naming: Naming) -> list[str]:
    """The problem reported for each row."""
    with pytest.raises(InvalidInputError) as raised:
        written(rows, kind, naming)
    return [line.removeprefix("shard ").replace(f"; {USE_JSON}", "") for line in str(raised.value).splitlines()]


@given(lists(queue_rows()))
def test_a_brokers_file_comes_back_as_it_was(rows: list[OffsetRow]) -> None:
    """With any names, light message queues and broadcasting groups. Rows come in the order of topics and queues."""
    assert sorted(read(written(rows, BROKER), BROKER)) == sorted(rows)


@given(lists(queue_rows(broker="b/1")))
def test_a_brokers_file_comes_back_with_the_broker_that_is_named(rows: list[OffsetRow]) -> None:
    """Several brokers have a file each, with the same queues."""
    naming = Naming(broker="b/1")
    assert sorted(found(written(rows, BROKER, naming), BROKER, naming), key=str) == sorted(rows, key=str)


@given(lists(queue_rows(broker="b", group="g")))
def test_a_clients_file_comes_back_as_it_was(rows: list[OffsetRow]) -> None:
    """In order. The group comes from the caller, the broker from the file."""
    assert read(written(rows, CLIENT, OF_G), CLIENT, group="g") == rows


@pytest.mark.parametrize("name", ["broker-4x.json", "broker-4x-two-groups.json", "broker-5x.json", "broker-5x-lmq.json"])
def test_real_files_are_written_as_they_were(tmp_path: Path, name: str) -> None:
    """Every key and value of the offset tables, with quoted queue numbers; the order may differ."""
    data = (DATA / name).read_bytes()
    before = json.loads(re.sub(rb"(?<=[{,])(\d+):", rb'"\1":', data))
    path = tmp_path / ("lmqConsumerOffset.json" if "lmq" in name else "consumerOffset.json")
    files.write(path, BROKER, sorted(read(data, BROKER)), Naming())
    after = json.loads(path.read_bytes())
    assert {name: table for name, table in after.items() if name != "dataVersion"} == {
        name: table for name, table in before.items() if name.endswith("ffsetTable")
    }


@pytest.mark.parametrize("name", ["broker-5x.json", "broker-5x-lmq.json"])
def test_real_files_of_5x_are_read(name: str) -> None:
    """The offsets that RocketMQ 5.3.3 stored."""
    assert sorted(read((DATA / name).read_bytes(), BROKER)) == offsets_5x()


def test_a_real_file_of_a_5x_client_comes_back_as_it_was() -> None:
    """Its keys are objects."""
    rows = read((DATA / "client-5x.json").read_bytes(), CLIENT, group="g")
    assert len(rows) > 1
    assert sorted(read(written(rows, CLIENT, OF_G), CLIENT, group="g")) == sorted(rows)


def test_a_brokers_file_is_laid_out_as_fastjson_does() -> None:
    """With quoted queue numbers, which fastjson 1.2.83, fastjson2 2.0.43 and any JSON parser read (#10284)."""
    rows = [row("T/0"), row("T/10", LONG_MAX), row("U/0"), row("%LMQ%a/0", 7, "%LMQ%g")]
    assert without_version(written(rows, BROKER).decode()) == (
        '{\n\t"offsetTable":{\n\t\t"T@g":{"0":5,"10":9223372036854775807},\n\t\t"U@g":{"0":5},\n\t\t"%LMQ%a@%LMQ%g":{"0":7}\n\t}\n}\n'
    )


@pytest.mark.parametrize("name", ["consumerOffset.json", "lmqConsumerOffset.json"])
def test_a_brokers_file_has_a_counter_that_no_broker_has_reached(tmp_path: Path, name: str) -> None:
    """A broker with RocksDB ignores a file whose counter is not above its own, which grows once in 500 commits."""
    path, before_ms = tmp_path / name, time.time_ns() // 1_000_000
    files.write(path, BROKER, [row("T/0")], Naming())
    version = json.loads(path.read_bytes())["dataVersion"]
    assert version["counter"] >= before_ms
    assert version == {"counter": version["counter"], "stateVersion": 0, "timestamp": version["counter"]}


def test_light_message_queues_are_where_their_broker_looks_for_them(tmp_path: Path) -> None:
    """A broker with enableLmq reads another file, and only queue 0 of such a group; one without has no such table."""
    path = tmp_path / "lmqConsumerOffset.json"
    rows = [row("T/0"), row("%LMQ%a/0", 7, "%LMQ%g"), row("%LMQ%a/1", 8, "%LMQ%g"), row("T/0", 9, "%LMQ%h")]
    files.write(path, BROKER, rows, Naming())
    assert without_version(path.read_text()) == (
        '{\n\t"offsetTable":{\n\t\t"T@g":{"0":5},\n\t\t"%LMQ%a@%LMQ%g":{"1":8}\n\t},'
        '\n\t"lmqOffsetTable":{\n\t\t"%LMQ%a@%LMQ%g":7,\n\t\t"T@%LMQ%h":9\n\t}\n}\n'
    )
    assert sorted(read(path.read_bytes(), BROKER)) == sorted(rows)


def test_a_clients_file_has_objects_as_keys() -> None:
    """With the fields in fastjson's order."""
    assert written([row('b"/T/3')], CLIENT, OF_G).decode() == (
        '{\n\t"offsetTable":{\n\t\t{"brokerName":"b\\"","queueId":3,"topic":"T"}:5\n\t}\n}\n'
    )


def test_what_a_brokers_file_cannot_hold_is_named() -> None:
    """Such rows, also those of another broker, are never dropped or changed silently."""
    rows = [
        row("a/t/0"),
        row("t/0"),
        row("b/t/0"),
        OffsetRow(N, "g", "a/t/00", 5),
        row(f"a/t/{QUEUE_MAX}"),
        OffsetRow(N, "g", f"a/t/{QUEUE_MAX + 1}", 5),
        row("a/t@u/0"),
        row("a/t/1", group="g@h"),
        row("a/t/1", group="g@broadcast"),
        row("a/t/2", LONG_MAX + 1),
        row("a/t/2")._replace(namespace="team"),
    ]
    assert refused(rows, BROKER, OF_A) == [
        "'t/0' of group 'g' is of no broker, and the file is of broker 'a'; --broker names another",
        "'b/t/0' of group 'g' is of broker 'b', and the file is of broker 'a'; --broker names another",
        "'a/t/00' of group 'g' is not of the form broker/topic/queue, which RocketMQ's file is made of",
        "'a/t/2147483648' of group 'g' is not of the form broker/topic/queue, which RocketMQ's file is made of",
        "'a/t@u/0' of group 'g' has a topic with an @, which separates topic and group in the file",
        "'a/t/1' of group 'g@h' is of a group with an @, which separates topic and group in the file",
        "'a/t/2' of group 'g' has offset 9223372036854775808, and the format's largest is 9223372036854775807",
        "'a/t/2' of group 'g' is in namespace 'team', not 'default', and the format has none",
    ]
    assert refused([row("b/t/0")], BROKER, Naming()) == [
        "'b/t/0' of group 'g' is of broker 'b', and the file is of none; --broker names another"
    ]


def test_what_a_clients_file_cannot_hold_is_named() -> None:
    """It has the queues of one group, each with its broker."""
    assert refused([row("a/t/0"), row("t/0"), row("a/t/0", group="h"), row("a/t/0", LONG_MAX + 1)], CLIENT, OF_G) == [
        "'t/0' of group 'g' is not of the form broker/topic/queue, which a client's file is made of",
        "'a/t/0' of group 'h' is not of group 'g', the only group of the file",
        "'a/t/0' of group 'g' has offset 9223372036854775808, and the format's largest is 9223372036854775807",
    ]
    with pytest.raises(InvalidInputError, match="group is missing: a client's file is of one group"):
        written([row("a/t/0")], CLIENT)


@pytest.mark.parametrize(
    ("table", "naming", "reason"),
    [
        ('"a/b@g":{0:5}', Naming(), "topic: 'a/b' has a /, which separates broker, topic and queue in a shard's name"),
        ('"@g":{0:5}', Naming(), "topic is empty"),
        ('"T@":{0:5}', Naming(), "group is missing; --group names it for the whole file"),
        ('"T@h":{0:5}', OF_G, "group: 'h' is not 'g', the only group whose offsets are read"),
        (f'"T@{"g" * 256}":{{0:5}}', Naming(), "group is 256 bytes long; at most 255 are allowed"),
        ('"T@g\\u0007":{0:5}', Naming(), "group has the control character U+0007 at position 1"),
        (f'"T@g":{{0:5}},"{"t" * 254}@g":{{0:5}}', Naming(), "shard is 256 bytes long; at most 255 are allowed"),
    ],
)
@pytest.mark.parametrize("more", ["", ',\n"T@g":{}'], ids=["last", "more"])
def test_a_name_that_cannot_be_stored_is_a_reject(table: str, naming: Naming, reason: str, more: str) -> None:
    """Only that entry is rejected, with line and place."""
    rows = found(f'{{\n"offsetTable":{{\n{table}{more}}}}}'.encode(), BROKER, naming)
    (bad,) = [each for each in rows if isinstance(each, Reject)]
    assert (bad.line, bad.text, bad.reason) == (3, "5", reason)
    assert bad.place.endswith('["0"]')
    assert len(rows) == table.count(":{")


def test_of_queues_with_names_of_different_length_those_that_fit_are_taken() -> None:
    """The queue's number is part of the shard's name."""
    table = f'{{"offsetTable":{{"{"t" * 252}@g":{{0:1,100:2,10:3}},"T@g":{{0:4}}}}}}'
    assert [each.reason if isinstance(each, Reject) else each.offset for each in found(table.encode(), BROKER)] == [
        1,
        "shard is 256 bytes long; at most 255 are allowed",
        3,
        4,
    ]
