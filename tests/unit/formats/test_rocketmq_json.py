"""RocketMQ's offset files: all their forms are read, and anything else is rejected with line, place and reason."""

import io
import json
from pathlib import Path

import pytest

from adapter.formats.json_stream import DEPTH_MAX, KEY_MAX, NUMBER_MAX, STRING_MAX
from adapter.formats.rocketmq_json import Queues, broker_file, client_file
from adapter.formats.rows import TEXT_SHOWN, NotReadableError, Reject
from adapter.model.records import LONG_MAX

DATA = Path(__file__).parents[2] / "data" / "rocketmq"
NUMBERS = f"0 to {LONG_MAX}"

Entry = Queues | Reject


def positions(entries: list[Entry]) -> dict[tuple[str, str, int], int]:
    """(group, topic, queue) -> offset."""
    return {
        (entry.group, entry.topic, queue): offset
        for entry in entries
        if isinstance(entry, Queues)
        for queue, offset in entry.offsets
    }


def broker(text: str | bytes) -> list[Entry]:
    """The entries of a broker's file."""
    return list(broker_file(io.BytesIO(text if isinstance(text, bytes) else text.encode())))


def client(text: str) -> list[Entry]:
    """The entries of a client's file."""
    return list(client_file(io.BytesIO(text.encode())))


def only(entries: list[Entry]) -> Reject:
    """The one reject."""
    (entry,) = entries
    assert isinstance(entry, Reject)
    return entry


def test_a_file_of_a_4x_broker_is_read() -> None:
    """In fastjson's dialect: unquoted numbers as keys; one file has two groups."""
    assert positions(broker((DATA / "broker-4x.json").read_bytes())) == {
        ("lsqGroup", "%RETRY%lsqGroup", 0): 0,
        **{("lsqGroup", "lsqTopic1", queue): offset for queue, offset in enumerate((8, 15, 14, 12))},
    }
    found = positions(broker((DATA / "broker-4x-two-groups.json").read_bytes()))
    assert len(found) == 10
    assert found["please_rename_unique_group_name_4", "TopicTest", 3] == 543


@pytest.mark.parametrize("after", ["", ',"dataVersion":{}'], ids=["last", "more"])
def test_a_file_of_a_5x_broker_is_read(after: str) -> None:
    """It has a version and a derived map, which are ignored, and offsets of light message queues, which are read."""
    rows = broker(f"""{{
        "dataVersion":{{"counter":3,"stateVersion":0,"timestamp":1700000000000}},
        "groupTopicMap":{{"g":["T"],"h":["T","U"],"i":[]}},
        "lmqOffsetTable":{{"%LMQ%a@%LMQ%g":7,"%LMQ%b@%LMQ%g":"8"}},
        "offsetTable":{{"T@g":{{"0":5,1:6}}, "T@g@broadcast":{{0:4}}, "none@g":{{}}, "U@g":{{0:3}}}}{after}
    }}""")
    assert positions(rows) == {
        ("%LMQ%g", "%LMQ%a", 0): 7,
        ("%LMQ%g", "%LMQ%b", 0): 8,
        ("g", "T", 0): 5,
        ("g", "T", 1): 6,
        ("g@broadcast", "T", 0): 4,
        ("g", "U", 0): 3,
    }


def test_what_rocketmq_rust_has_more_is_not_taken_for_offsets() -> None:
    """Pull positions are not consumed offsets; a pending reset is reported, since somebody has to repeat it."""
    row = only(
        broker("""{"offsetTable":{}, "pullOffsetTable":{"T@g":{"0":9}}, "processedPullOffsetTable":{"T@g":{"0":9}},
        "resetOffsetTable":{"T@g":{"0":1}}, "dataVersion":null}""")
    )
    reason = "is a pending reset, not an offset; repeat the reset after the import"
    assert row == Reject(2, '$.resetOffsetTable["T@g"]', '{"0":1}', reason)


def test_a_table_of_another_name_is_told() -> None:
    """An unknown table is rejected."""
    assert only(broker('{"offsetTables":{"T@g":{"0":9}}}')).reason == "'offsetTables' is an unknown table"


def test_a_reference_of_fastjson_is_told() -> None:
    """A map that occurs twice is written as a reference by fastjson; it is rejected."""
    row = only(broker('{"offsetTable":{"T@g":{"$ref":"$.offsetTable.U\\\\@g"}}}'))
    assert row.reason == 'queueId: "$ref" is not a whole number from 0 to 2147483647'


def test_a_clients_file_is_read() -> None:
    """Its keys are objects, with the fields in any order; or the same in a string."""
    rows = client("""{"offsetTable":{{
            "brokerName":"broker-a",
            "queueId":3,
            "topic":"TopicTest"
        }:29,{"topic":"b{r}a,c\\"es:","queueId":"0","brokerName":"b"}:30,
        "{\\"brokerName\\":\\"c\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":31}}""")
    assert [(row.line, row.broker, row.topic, row.offsets) for row in rows if isinstance(row, Queues)] == [
        (1, "broker-a", "TopicTest", [(3, 29)]),
        (5, "b", 'b{r}a,c"es:', [(0, 30)]),
        (6, "c", "T", [(1, 31)]),
    ]


@pytest.mark.parametrize(
    "value",
    [
        "null",
        "-1",
        str(LONG_MAX + 1),
        "1.5",
        "1e3",
        "true",
        '"12x"',
        '""',
        '"-1"',
        '"\u0663"',
        "[1]",
        '{"a":{"b":{"c":{"d":1}}}}',
    ],
)
def test_an_offset_that_is_none_is_a_reject(value: str) -> None:
    """With line, field and text. An absent offset is not 0."""
    first, second = broker(f'{{"offsetTable":{{\n"T@g":{{\n0:{value},1:5}}}}}}')
    reason = f"offset: {value} is not a whole number from {NUMBERS}"
    assert first == Reject(3, '$.offsetTable["T@g"]["0"]', value, reason)
    assert second == Queues(2, '$.offsetTable["T@g"]', "g", "T", "", [(1, 5)], keyed=True)
    assert second.place_of(1) == '$.offsetTable["T@g"]["1"]'


def test_the_largest_long_is_an_offset_also_in_quotes() -> None:
    """In its mode for browsers, fastjson quotes it."""
    rows = broker(f'{{"offsetTable":{{"T@g":{{0:{LONG_MAX},1:"{LONG_MAX}",2147483647:1}}}}}}')
    assert [*positions(rows).values()] == [LONG_MAX, LONG_MAX, 1]


@pytest.mark.parametrize("queue", ["-1", "2147483648", '"x"', '""'])
def test_a_queue_that_is_none_is_a_reject(queue: str) -> None:
    """Queue numbers are Java ints from 0."""
    row = only(broker(f'{{"offsetTable":{{"T@g":{{{queue}:5}}}}}}'))
    assert row.reason == f"queueId: {queue} is not a whole number from 0 to 2147483647"


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ('"T"', "key: is not topic@group"),
        ("5", "key: is not topic@group"),
        ('{"a":"T@g"}', "key: is not topic@group"),
        ('"T@g@other"', "key: has 2 @: it is unclear which one separates topic and group"),
        ('"a@T@g@broadcast"', "key: has 3 @: it is unclear which one separates topic and group"),
        ('"T\\ud800@g"', "key: has half of a surrogate pair at position 1"),
    ],
)
def test_a_key_that_can_be_read_in_two_ways_is_a_reject(key: str, reason: str) -> None:
    """No guess is made."""
    row = only(broker(f'{{"offsetTable":{{{key}:{{0:5}}}}}}'))
    assert (row.text, row.reason) == ("{0:5}", reason)
    row.place.encode()
    row = only(broker(f'{{"lmqOffsetTable":{{{key}:5}}}}'))
    assert (row.text, row.reason) == ("5", reason)


@pytest.mark.parametrize("more", ["", ",{}:6"], ids=["last", "more"])
@pytest.mark.parametrize(
    "key",
    ["T", "[1]", "5", "{}", '{"brokerName":"b","topic":"T"}', '{"brokerName":5,"queueId":0,"topic":"T"}', '{"brokerName":"b",}'],
)
def test_a_key_that_is_no_queue_is_a_reject(key: str, more: str) -> None:
    """In a client's file."""
    for row in client(f'{{"offsetTable":{{{json.dumps(key)}:5{more}}}}}'):
        assert isinstance(row, Reject)
        assert row.reason == "key: is not a queue with brokerName, queueId and topic"


def test_half_of_a_surrogate_pair_in_a_queue_is_a_reject() -> None:
    """It could not be stored."""
    row = only(client('{"offsetTable":{{"brokerName":"\\udc00","queueId":0,"topic":"T"}:5}}'))
    assert row.reason == "key: has half of a surrogate pair at position 1"


@pytest.mark.parametrize("table", ["null", "[]", "5", '"x"'])
def test_a_table_that_is_no_object_is_a_reject(table: str) -> None:
    """The same holds for the queues of a key."""
    assert only(broker(f'{{"offsetTable":{table}}}')).reason == "is not an object"
    assert only(broker(f'{{"offsetTable":{{"T@g":{table}}}}}')).reason == "is not an object of queues and offsets"


def test_a_key_that_is_there_twice_is_read_twice() -> None:
    """A queue, a topic and group, or a whole table: the import keeps the larger offset."""
    rows = broker('{"offsetTable":{"T@g":{0:5,"0":7}, "T@g":{0:6}},\n"offsetTable":{"T@g":{0:4,0:3},"T@g":{0:2}}}')
    found = [offset for row in rows if isinstance(row, Queues) for _, offset in row.offsets]
    assert found == [5, 7, 6, 4, 3, 2]


NOT_READABLE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b" \n", "is empty"),
    "zeros": (b"\0" * 8, "is not JSON, or torn: line 1: '\\x00\\x00"),
    "torn": ((DATA / "broker-4x.json").read_bytes()[:100], "is not JSON, or torn: line 5: ends where "),
    "array": (b"[]", "is not a JSON object"),
    "nan": (b'{"offsetTable":{\n"T@g":{0:NaN}}}', "is not JSON, or torn: line 2: 'NaN}}}' stands where a value should"),
    "utf-8": (b'{"a":\n"\xff"}', "is not UTF-8 at byte 8, in line 2"),
    "utf-8-torn": (b'{"a":"\xe4', "is not UTF-8 at byte 7, in line 1"),
    "utf-16": ('{"a":5}'.encode("utf-16"), "is UTF-16; save it as UTF-8"),
    "deep-objects": (b'{"a":' * 100_000, f"is not JSON: line 1: is nested more than {DEPTH_MAX} levels deep"),
    "deep-arrays": (b'{"a":' + b"[" * 100_000, f"is not JSON: line 1: is nested more than {DEPTH_MAX} levels deep"),
    "deep-keys": (b"{" * 100_000, "is not JSON, or torn: line 1: '{{{{{{{{{{{{{{{{{{{{...' stands where a key should"),
    "long-key": (
        b'{{"a":"' + b"x" * KEY_MAX + b'"}:5}',
        "is not JSON as it should be: line 1: something there has over 8,192 char",
    ),
    "torn-key": (
        b'{{"a":"' + b"x" * KEY_MAX,
        'is not JSON, or torn: line 1: \'{"a":"xxxxxxxxxxxxxx...\' stands where a key should',
    ),
    "long-string": (
        b'{\n"a":"' + b"x" * STRING_MAX + b'"}',
        "is not JSON as it should be: line 2: something there has over 1,048",
    ),
    "long-number": (
        b'{"a":' + b"9" * (NUMBER_MAX + 1) + b"}",
        "is not JSON as it should be: line 1: something there has over 1,000 ",
    ),
    "more": (b"{0:5} {}", "is not JSON, or torn: line 1: '{}' stands where the end of the file should"),
    "comma": (b'{"a":5,}', "is not JSON, or torn: line 1: '}' stands where a key should"),
    "no-comma": (b'{"a":5 "b"}', "is not JSON, or torn: line 1: '\"b\"}' stands where , or } should"),
    "zero-before": (b'{"a":05}', "is not JSON, or torn: line 1: '05}' stands where a value should"),
    "zero-before-offset": (
        b'{"offsetTable":{"T@g":{0:05},"U@g":{}}}',
        "is not JSON, or torn: line 1: '05},\"U@g\":{}}}' stands where",
    ),
    "torn-number": (b'{"offsetTable":{"T@g":{0:1e', "is not JSON, or torn: line 1: '1e' stands where a value should"),
    "word": (b"{a:5}", "is not JSON, or torn: line 1: 'a:5}' stands where a key should"),
    "line-break": (b'{"a\nb":5}', "is not JSON, or torn: line 1: "),
}


@pytest.mark.parametrize(("data", "problem"), NOT_READABLE.values(), ids=NOT_READABLE)
def test_a_file_that_is_torn_or_foreign_says_so(data: bytes, problem: str) -> None:
    """The error names the line."""
    with pytest.raises(NotReadableError) as raised:
        broker(data)
    assert str(raised.value).startswith(problem)


@pytest.mark.parametrize("name", ["broker-4x.json", "broker-4x-two-groups.json"])
def test_every_torn_file_is_noticed(name: str) -> None:
    """Wherever it is cut, except in the white space after the last brace."""
    data = (DATA / name).read_bytes().rstrip()
    for size in range(len(data)):
        with pytest.raises(NotReadableError):
            broker(data[:size])


@pytest.mark.parametrize("text", ['{"key":"' + "x" * 10_000 + '"}', '"' + "\n\u00e4" * 300 + '"', "[" + "5,\n" * 10_000 + "5]"])
def test_what_is_shown_of_a_reject_is_short(text: str) -> None:
    """The rejected text may be a whole table."""
    row = only(broker(f'{{"more":{text.replace(chr(10), " ")}}}'))
    assert row.text.endswith("...")
    assert len(row.text) <= TEXT_SHOWN + len("...")


def test_a_byte_order_mark_is_no_trouble() -> None:
    """Some editors write one."""
    assert len(broker(b'\xef\xbb\xbf{"offsetTable":{"T@g":{0:5}}}')) == 1
