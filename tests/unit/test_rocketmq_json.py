"""RocketMQ's offset files: every form of them is read, and what cannot be is told with its place and reason."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapter.formats.rocketmq_json import LONG_MAX, TEXT_SHOWN, NotReadableError, Row, broker_file, client_file, quoted_keys

DATA = Path(__file__).parents[1] / "data" / "rocketmq"
NUMBERS = f"0 to {LONG_MAX}"

# Among them such as look like keys without quotes.
ODD = ["{1:", ",2 :", '{"a":1}:', ",{3:4}:", '"', "\\", "{", "}", "\n"]
STRINGS = st.lists(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(ODD)), max_size=6).map("".join)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), STRINGS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(STRINGS, inner, max_size=4)),
    max_leaves=20,
)


def positions(rows: list[Row]) -> dict[tuple[str, str, int], int | None]:
    """(group, topic, queue) -> offset."""
    assert all(row.reason is None for row in rows)
    return {(row.group, row.topic, row.queue if row.queue is not None else -1): row.offset for row in rows}


def broker(text: str) -> list[Row]:
    """The rows of a broker's file."""
    return list(broker_file(text.encode()))


def client(text: str) -> list[Row]:
    """The rows of a client's file."""
    return list(client_file(text.encode()))


def only(rows: list[Row]) -> Row:
    """The one row."""
    (row,) = rows
    return row


def test_a_file_of_a_4x_broker_is_read() -> None:
    """fastjson's: numbers as keys, without quotes; one with two groups."""
    assert positions(list(broker_file((DATA / "broker-4x.json").read_bytes()))) == {
        ("lsqGroup", "%RETRY%lsqGroup", 0): 0,
        **{("lsqGroup", "lsqTopic1", queue): offset for queue, offset in enumerate((8, 15, 14, 12))},
    }
    found = positions(list(broker_file((DATA / "broker-4x-two-groups.json").read_bytes())))
    assert len(found) == 10
    assert found["please_rename_unique_group_name_4", "TopicTest", 3] == 543


def test_a_file_of_a_5x_broker_is_read() -> None:
    """With a version and a derived map, which are no offsets, and offsets of light message queues, which are."""
    rows = broker("""{
        "dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},
        "groupTopicMap":{"g":["T"]},
        "lmqOffsetTable":{"%LMQ%a@%LMQ%g":7},
        "offsetTable":{"T@g":{"0":5,1:6}, "T@g@broadcast":{0:4}}
    }""")
    assert positions(rows) == {
        ("%LMQ%g", "%LMQ%a", 0): 7,
        ("g", "T", 0): 5,
        ("g", "T", 1): 6,
        ("g@broadcast", "T", 0): 4,
    }


def test_what_rocketmq_rust_has_more_is_not_taken_for_offsets() -> None:
    """How far was pulled is not how far was consumed; a reset that waits is told, for somebody has to do it again."""
    rows = broker("""{"offsetTable":{}, "pullOffsetTable":{"T@g":{"0":9}}, "processedPullOffsetTable":{"T@g":{"0":9}},
        "resetOffsetTable":{"T@g":{"0":1}}, "dataVersion":null}""")
    row = only(rows)
    assert (row.place, row.text) == ('$.resetOffsetTable["T@g"]', '{"0": 1}')
    assert row.reason == "is a reset that no consumer has taken up yet, not an offset; do it again after the import"


def test_a_table_of_another_name_is_told() -> None:
    """Nobody knows what it holds."""
    assert (
        only(broker('{"offsetTables":{"T@g":{"0":9}}}')).reason == "'offsetTables' is not a table of offsets that is known here"
    )


def test_a_clients_file_is_read() -> None:
    """Its keys are objects, with the fields in any order; or the same in a string."""
    rows = client("""{"offsetTable":{{
            "brokerName":"broker-a",
            "queueId":3,
            "topic":"TopicTest"
        }:29,{"topic":"b{r}a,c\\"es:","queueId":"0","brokerName":"b"}:30,
        "{\\"brokerName\\":\\"c\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":31}}""")
    assert [(row.broker, row.topic, row.queue, row.offset) for row in rows] == [
        ("broker-a", "TopicTest", 3, 29),
        ("b", 'b{r}a,c"es:', 0, 30),
        ("c", "T", 1, 31),
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("null", "null"),
        ("-1", "-1"),
        (str(LONG_MAX + 1), str(LONG_MAX + 1)),
        ("1.5", "1.5"),
        ("1e3", "1000.0"),
        ("true", "true"),
        ('"12x"', '"12x"'),
        ('""', '""'),
        ('"-1"', '"-1"'),
        ('"\u0663"', '"\u0663"'),
        ("[1]", "[1]"),
        ('{"a":{"b":{"c":{"d":1}}}}', '{"a": {"b": {"c": "..."}}}'),
    ],
)
def test_an_offset_that_is_none_is_a_reject(value: str, shown: str) -> None:
    """With the field, and what it is; absent is not 0."""
    first, second = broker(f'{{"offsetTable":{{"T@g":{{0:{value},1:5}}}}}}')
    assert first == Row('$.offsetTable["T@g"]["0"]', text=shown, reason=f"offset: {shown} is not a whole number from {NUMBERS}")
    assert (second.queue, second.offset) == (1, 5)


def test_the_largest_long_is_an_offset_also_in_quotes() -> None:
    """So fastjson writes it when it writes for browsers."""
    rows = broker(f'{{"offsetTable":{{"T@g":{{0:{LONG_MAX},1:"{LONG_MAX}"}}}}}}')
    assert [row.offset for row in rows] == [LONG_MAX, LONG_MAX]


@pytest.mark.parametrize("queue", ["-1", "2147483648", '"x"', '""'])
def test_a_queue_that_is_none_is_a_reject(queue: str) -> None:
    """Java's int from 0."""
    row = only(broker(f'{{"offsetTable":{{"T@g":{{{queue}:5}}}}}}'))
    assert row.reason == f'queueId: "{queue.strip(chr(34))}" is not a whole number from 0 to 2147483647'


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("T", "key: is not topic@group"),
        ("T@g@other", "key: has 2 @: which of them parts topic and group cannot be known"),
        ("a@T@g@broadcast", "key: has 3 @: which of them parts topic and group cannot be known"),
        ("T\\ud800@g", "key: has half of a surrogate pair at position 1"),
    ],
)
def test_a_key_that_can_be_read_in_two_ways_is_a_reject(key: str, reason: str) -> None:
    """Never guessed."""
    row = only(broker(f'{{"offsetTable":{{"{key}":{{0:5}}}}}}'))
    assert (row.text, row.reason) == ('{"0": 5}', reason)
    row.place.encode()
    row = only(broker(f'{{"lmqOffsetTable":{{"{key}":5}}}}'))
    assert (row.text, row.reason) == ("5", reason)


@pytest.mark.parametrize(
    "key",
    ["T", "[1]", "5", "{}", '{"brokerName":"b","topic":"T"}', '{"brokerName":5,"queueId":0,"topic":"T"}', '{"brokerName":"b",}'],
)
def test_a_key_that_is_no_queue_is_a_reject(key: str) -> None:
    """In a client's file."""
    row = only(client(f'{{"offsetTable":{{{json.dumps(key)}:5}}}}'))
    assert row.reason == "key: is not a queue with brokerName, queueId and topic"


def test_half_of_a_surrogate_pair_in_a_queue_is_a_reject() -> None:
    """It could not be stored."""
    row = only(client('{"offsetTable":{{"brokerName":"\\udc00","queueId":0,"topic":"T"}:5}}'))
    assert row.reason == "key: has half of a surrogate pair at position 1"


@pytest.mark.parametrize("table", ["null", "[]", "5", '"x"'])
def test_a_table_that_is_no_object_is_a_reject(table: str) -> None:
    """And so are queues."""
    assert only(broker(f'{{"offsetTable":{table}}}')).reason == "is not an object"
    assert only(broker(f'{{"offsetTable":{{"T@g":{table}}}}}')).reason == "is not an object of queues and offsets"


def test_a_key_that_is_there_twice_is_read_twice() -> None:
    """The import takes the larger one, and says so."""
    rows = broker('{"offsetTable":{"T@g":{0:5,"0":7}, "T@g":{0:6}}}')
    assert [row.offset for row in rows] == [5, 7, 6]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\0" * 8, "is not JSON, or torn: "),
        ((DATA / "broker-4x.json").read_bytes()[:100], "is not JSON, or torn: "),
        (b"[]", "is not a JSON object"),
        (b'{"offsetTable":{"T@g":{0:NaN}}}', "is not JSON, or torn: NaN is not a number"),
        (b'{"a":"\xff"}', "is not UTF-8 at byte 7"),
        (b'{"a":' * 100_000, "is not JSON: is nested too deeply"),
        (b"{0:5} {}", "is not JSON, or torn: "),
        (b"{a:5}", "is not JSON, or torn: "),
    ],
)
def test_a_file_that_is_torn_or_foreign_says_so(data: bytes, problem: str) -> None:
    """Nothing of it is taken."""
    with pytest.raises(NotReadableError) as raised:
        list(broker_file(data))
    assert str(raised.value).startswith(problem)


def test_every_torn_file_is_noticed() -> None:
    """Wherever it was cut, but at its last brace's spaces."""
    data = (DATA / "broker-4x.json").read_bytes().rstrip()
    for size in range(len(data)):
        with pytest.raises(NotReadableError):
            list(broker_file(data[:size]))


def test_what_is_shown_of_a_reject_is_short() -> None:
    """A whole table may stand there."""
    row = only(broker('{"more":{"key":"' + "x" * 10_000 + '"}}'))
    assert len(row.text) == TEXT_SHOWN + len("...")


def test_a_byte_order_mark_is_no_trouble() -> None:
    """Some editors leave one."""
    assert len(list(broker_file(b'\xef\xbb\xbf{"offsetTable":{"T@g":{0:5}}}'))) == 1


@given(VALUES)
@example({"{1:": ",2:", '"{3:4}:': [',{"5":6}:']})
def test_json_is_left_as_it_is(value: object) -> None:
    """Whatever stands in its strings."""
    text = json.dumps(value, ensure_ascii=False).encode()
    assert quoted_keys(text) == text


@given(
    st.dictionaries(STRINGS, st.dictionaries(st.integers(), st.one_of(st.integers(), STRINGS))),
    st.sampled_from(["", " ", "\n\t"]),
)
def test_numbers_as_keys_are_put_into_quotes(table: dict[str, dict[int, int | str]], space: str) -> None:
    """As fastjson writes them, with any space between."""
    inner = {
        key: "{" + ",".join(f"{space}{number}{space}:{json.dumps(value)}" for number, value in row.items()) + "}"
        for key, row in table.items()
    }
    text = "{" + ",".join(f"{json.dumps(key)}:{row}" for key, row in inner.items()) + "}"
    wanted = {key: {str(number): value for number, value in row.items()} for key, row in table.items()}
    assert json.loads(quoted_keys(text.encode())) == wanted


@given(st.lists(st.tuples(STRINGS, st.integers(0, 2**31 - 1), STRINGS, st.integers(0, LONG_MAX)), max_size=5), st.booleans())
def test_objects_as_keys_are_read_back(queues: list[tuple[str, int, str, int]], pretty: bool) -> None:
    """As fastjson writes a map of MessageQueue."""
    pairs = [
        json.dumps({"brokerName": broker, "queueId": queue, "topic": topic}, ensure_ascii=False, indent=2 if pretty else None)
        + f":{offset}"
        for broker, queue, topic, offset in queues
    ]
    rows = client('{"offsetTable":{' + ",".join(pairs) + "}}")
    assert [(row.broker, row.queue, row.topic, row.offset) for row in rows] == queues
