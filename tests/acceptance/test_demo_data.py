"""The reader of RocketMQ's consumer offset table: fastjson's unquoted keys, and a clear refusal of everything else."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.__main__ import TABLES
from demo.consumers import commit_request
from demo.table import QueueOffset, TableError, parse_table, quote_integer_keys, read_table, read_tables

DATA = Path(__file__).parents[2] / "demo" / "data" / "rocketmq"

RENAME = "please_rename_unique_group_name"


def test_a_real_table_is_read_completely() -> None:
    """Every queue of a 4.x broker's file, in its order; offset 0 of a retry topic is an offset, not absence."""
    assert read_table(DATA / "broker-4x.json") == [
        QueueOffset("lsqGroup", "%RETRY%lsqGroup", 0, 0),
        QueueOffset("lsqGroup", "lsqTopic1", 0, 8),
        QueueOffset("lsqGroup", "lsqTopic1", 1, 15),
        QueueOffset("lsqGroup", "lsqTopic1", 2, 14),
        QueueOffset("lsqGroup", "lsqTopic1", 3, 12),
    ]


def test_a_real_table_with_two_groups_keeps_them_apart() -> None:
    """One group's name is the beginning of the other's."""
    found = read_table(DATA / "broker-4x-two-groups.json")
    offsets = {(entry.group, entry.topic): entry.offset for entry in found}
    assert len(found) == 10
    assert offsets == {
        (RENAME, f"%RETRY%{RENAME}"): 0,
        (RENAME, "TopicTest"): 1043,
        (f"{RENAME}_4", f"%RETRY%{RENAME}_4"): 0,
        (f"{RENAME}_4", "TopicTest"): 543,
    }


def test_the_demo_loads_both_tables() -> None:
    """15 keys, all different."""
    assert len({entry.key for entry in read_tables(TABLES)}) == 15


def test_a_queue_becomes_a_shard_with_labels() -> None:
    """The documented mapping: group = group, shard = topic/queueId; topic and queue id travel as labels."""
    entry = QueueOffset("g", "%RETRY%g", 3, 0)
    assert entry.key == ("default", "g", "%RETRY%g/3")
    request = commit_request([entry, entry._replace(topic="t", offset=7), entry._replace(group="h")])
    assert [(group.group, len(group.shards)) for group in request.groups] == [("g", 2), ("h", 1)]
    shard = request.groups[0].shards[1]
    assert (shard.shard, shard.offset, shard.topic, shard.partition) == ("t/3", 7, "t", 3)


def test_quoted_keys_read_the_same() -> None:
    """Newer fastjson quotes integer keys."""
    assert parse_table('{"offsetTable":{"t@g":{"0":5,"12":6}}}') == parse_table('{"offsetTable":{"t@g":{0:5,12:6}}}')


def test_what_5x_adds_without_offsets_is_ignored() -> None:
    """No offsets are in dataVersion and groupTopicMap."""
    text = '{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":2},"groupTopicMap":{"g":["t"]},"offsetTable":{"t@g":{0:5}}}'
    assert parse_table(text) == [QueueOffset("g", "t", 0, 5)]


@pytest.mark.parametrize(
    "topic",
    ["{0:", ",1:", '\\"{0:1}', "\\\\", "{0:543,1:543}", '\\\\\\",2:', "\\u0022{3:", "a b", "q,4 :"],
)
def test_a_string_is_never_touched(topic: str) -> None:
    """What looks like an integer key inside of a string stays as it is, also behind escaped quotes."""
    text = f'{{"offsetTable":{{"{topic}@g":{{0:5}}}}}}'
    assert parse_table(text) == [QueueOffset("g", json.loads(f'"{topic}"'), 0, 5)]


names = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('{},:"\\0123456789@ '))


@given(st.dictionaries(names, st.dictionaries(st.integers(), st.integers() | names)), st.sampled_from(["", " ", "\n\t\t"]))
def test_quoting_changes_integer_keys_and_nothing_else(table: dict[str, dict[int, int | str]], space: str) -> None:
    """Any table in fastjson's form reads as the same table with quoted keys would."""
    rows = (
        f"{json.dumps(name)}:{{{','.join(f'{space}{key}{space}:{json.dumps(value)}' for key, value in queues.items())}}}"
        for name, queues in table.items()
    )
    expected = {name: {str(key): value for key, value in queues.items()} for name, queues in table.items()}
    assert json.loads(quote_integer_keys("{" + ",".join(rows) + "}")) == expected


@given(names)
def test_json_stays_as_it_is(text: str) -> None:
    """A string on its own, whatever is in it."""
    encoded = json.dumps(text, ensure_ascii=False)
    assert quote_integer_keys(encoded) == encoded


def _queues(text: str) -> str:
    return f'{{"offsetTable":{{"t@g":{text}}}}}'


BAD = {
    "": "is not JSON",
    "[]": "the file is not an object",
    "{}": "'offsetTable' is missing",
    '{"offsetTable":[]}': "'offsetTable' is not an object",
    '{"offsetTable":{},"lmqOffsetTable":{}}': "'lmqOffsetTable' is unknown here and may hold offsets",
    '{"offsetTable":{"t":{0:1}}}': "'t' is not topic@group",
    '{"offsetTable":{"t@":{0:1}}}': "'t@' is not topic@group",
    '{"offsetTable":{"@g":{0:1}}}': "'@g' is not topic@group",
    '{"offsetTable":{"t@g@broadcast":{0:1}}}': "'t@g@broadcast' is not topic@group",
    '{"offsetTable":{"t@g":{0:1},"t@g":{0:2}}}': "the key 't@g' is there twice",
    '{"offsetTable":{t@g:{0:1}}}': "is not JSON",
    '{"offsetTable":{"t@g":{0:1}': "is not JSON",
    "{\n'offsetTable':{}}": "line 2",
    '{"offsetTable":{"t@g {0:1}}}': "is not JSON",
    "__import__('os')": "is not JSON",
    "{" * 100_000: "is not JSON",
    '{"offsetTable":' * 100_000: "is nested too deeply",
    _queues("5"): "'t@g' is not an object",
    _queues("{0:1,0:2}"): "the key '0' is there twice",
    _queues('{0:1,"0":2}'): "the key '0' is there twice",
    _queues("{00:1}"): "the queue id '00'",
    _queues("{-1:1}"): "the queue id '-1'",
    _queues("{2147483648:1}"): "the queue id '2147483648'",
    _queues('{"\u0661":1}'): "the queue id",
    _queues("{1.5:1}"): "is not JSON",
    _queues("{0:-1}"): "queue 0: the offset -1",
    _queues("{0:9223372036854775808}"): "the offset 9223372036854775808",
    _queues("{0:1.0}"): "the offset 1.0",
    _queues('{0:"1"}'): "the offset '1'",
    _queues("{0:true}"): "the offset True",
    _queues("{0:null}"): "the offset None",
    _queues("{0:NaN}"): "NaN is not a number",
    _queues("{0:1,}"): "is not JSON",
    _queues("{0:" + "9" * 5_000 + "}"): "has a number that cannot be read",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_what_cannot_be_read_for_certain_is_refused(text: str) -> None:
    """With the place and the reason; nothing is skipped."""
    with pytest.raises(TableError) as caught:
        parse_table(text)
    assert BAD[text] in str(caught.value)


def test_an_error_names_its_file(tmp_path: Path) -> None:
    """Torn, not UTF-8, or not there."""
    torn, binary = tmp_path / "torn.json", tmp_path / "binary.json"
    torn.write_text('{"offsetTable":{"t@g":{0:1')
    binary.write_bytes(b"\xff")
    for path in (torn, binary, tmp_path / "absent.json"):
        with pytest.raises(TableError, match=path.name):
            read_table(path)


def test_the_same_queue_in_two_files_is_refused(tmp_path: Path) -> None:
    """Two brokers' queues of one name are different queues; which offset counts cannot be known."""
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_text(_queues("{0:1}"))
    with pytest.raises(TableError, match=r"b\.json: default/g/t/0 is in .*a\.json too"):
        read_tables(paths)


def test_no_offsets_at_all_are_refused() -> None:
    """A demo of nothing would succeed."""
    with pytest.raises(TableError, match="no offset was found"):
        read_tables([])
