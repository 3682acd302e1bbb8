"""The parsers against a simple reference that reads the whole file at once, and against random bytes.

No input raises anything but NotReadableError, loses an entry silently, or gives another result in other chunks.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import InvalidInputError
from adapter.formats.files import Format
from adapter.formats.rocketmq_json import IGNORED
from adapter.formats.rows import Naming, NotReadableError, OffsetRow, Reject
from adapter.model.queues import QUEUE_MAX, MessageQueue, key_of
from adapter.model.records import LONG_MAX
from tests.unit.formats.samples import TEXTUAL, each

BROKER, CLIENT = Format.ROCKETMQ_BROKER, Format.ROCKETMQ_CLIENT
CHUNKS = (2, 3, 7, 64, 2**18)
NAMINGS = {CLIENT: Naming(group="g")}

# What looks like more than it is, when it stands in a string.
ODD = ["{1:", ",2 :", '{"a":1}:', ",{3:4}:", '"', "\\", "{", "}", "\n", "@", "/", "\ufeff"]
STRINGS = st.lists(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(ODD)), max_size=4).map("".join)
NAMES = st.one_of(st.sampled_from(["T", "g", "%LMQ%g", "\u8bdd\u9898", "", "x" * 250, "g@broadcast"]), STRINGS)
EDGES = [-1, QUEUE_MAX, QUEUE_MAX + 1, 10**9, 10**18, LONG_MAX, LONG_MAX + 1, 10**19]
NUMBERS = st.one_of(st.integers(0, 9), st.sampled_from(EDGES), st.integers())
SCALARS = st.one_of(
    NUMBERS, NUMBERS, NUMBERS.map(str), st.none(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), STRINGS
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(STRINGS, inner, max_size=3)), max_leaves=6
)
SPACES = st.sampled_from(["", "", "", " ", "\n\t\t", " \r\n"])


class Pairs(list[tuple[str, Any]]):
    """A JSON object as a list of its members, in order, including duplicates."""


@st.composite
def broker_texts(draw: st.DrawFn) -> str:
    """A broker's file as fastjson could write it, with good and bad entries and any white space."""
    queues = st.lists(st.tuples(NUMBERS, st.booleans(), st.one_of(NUMBERS, NUMBERS, SCALARS)), max_size=4)
    entries = st.lists(st.tuples(NAMES, NAMES, st.one_of(queues, queues, VALUES)), max_size=4)
    tables = draw(
        st.lists(st.tuples(st.sampled_from(["offsetTable"] * 3 + ["lmqOffsetTable", "groupTopicMap", "more"]), entries))
    )
    members = []
    for name, table in tables:
        inner = [f"{_text(f'{topic}@{group}')}{draw(SPACES)}:{_queues(value)}{draw(SPACES)}" for topic, group, value in table]
        members.append(f'"{name}":{_object(inner, draw(SPACES))}')
    return _object(members, draw(SPACES))


def _queues(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, tuple) for item in value):
        return _object(
            [f'"{queue}":{_text(offset)}' if quoted else f"{queue}:{_text(offset)}" for queue, quoted, offset in value]
        )
    return _text(value)


def _object(members: list[str], space: str = "") -> str:
    return "{" + space + f",{space}".join(members) + space + "}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@st.composite
def client_texts(draw: st.DrawFn) -> str:
    """A client's file, with queues as objects or in strings, and bad entries."""
    members = []
    for broker, topic, queue, offset in draw(st.lists(st.tuples(NAMES, NAMES, SCALARS, SCALARS), max_size=4)):
        fields = draw(st.permutations([("brokerName", broker), ("queueId", queue), ("topic", topic)]))
        key = json.dumps(dict(fields[: draw(st.sampled_from([3, 3, 3, 2]))]), ensure_ascii=draw(st.booleans()))
        members.append(f"{draw(SPACES)}{_text(key) if draw(st.booleans()) else key}{draw(SPACES)}:{_text(offset)}")
    return '{"offsetTable":' + _object(members, draw(SPACES)) + "}"


JSON_FIELDS = ["namespace", "group", "shard", "offset", "epoch", "dirty", "x"]
JSON_ROWS = st.one_of(
    st.fixed_dictionaries({"group": NAMES, "shard": NAMES, "offset": NUMBERS}),
    st.dictionaries(st.sampled_from(JSON_FIELDS), VALUES, max_size=5),
    VALUES,
)
JSON_TEXTS = st.lists(JSON_ROWS, max_size=5).map(lambda rows: json.dumps(rows, ensure_ascii=False))
CSV_FIELDS = st.one_of(NAMES, NUMBERS.map(str)).map(lambda text: '"' + text.replace('"', '""') + '"' if '"' in text else text)
CSV_TEXTS = st.lists(st.lists(CSV_FIELDS, min_size=1, max_size=5).map(",".join), max_size=5).map("\n".join)
FILES = {BROKER: broker_texts(), CLIENT: client_texts(), Format.JSON: JSON_TEXTS, Format.KAFKA_CSV: CSV_TEXTS}


@st.composite
def mutated(draw: st.DrawFn, kind: Format) -> bytes:
    """A damaged file: parts are lost, doubled or replaced."""
    data = draw(FILES[kind]).encode()
    for _ in range(draw(st.integers(1, 3))):
        start, size = draw(st.integers(0, len(data))), draw(st.integers(0, 9))
        piece = draw(
            st.one_of(st.binary(max_size=3), st.sampled_from([b"", b"{", b"}", b"[", b",", b":", b'"', b"\\", b"0", b"-"]))
        )
        data = data[:start] + piece + data[start + size :]
    return data


def outcome(data: bytes, kind: Format, chunk_bytes: int) -> tuple[list[OffsetRow | Reject], str]:
    """The entries of a file up to the first error, and that error."""
    rows: list[OffsetRow | Reject] = []
    try:
        for row in each(data, kind, NAMINGS.get(kind, Naming()), chunk_bytes):
            rows.append(row)  # noqa: PERF402 - what came before an error counts
    except NotReadableError as error:
        return rows, str(error)
    return rows, ""


# The reference: all keys in quotes first, then json.loads.

_ODD_KEY = re.compile(rb'"(?:[^"\\]|\\.)*"|([{,]\s*)(?:(-?\d+)|(\{(?:"(?:[^"\\]|\\.)*"|[^{}"])*\}))(?=\s*:)', re.DOTALL)


def _quoted_key(match: re.Match[bytes]) -> bytes:
    before, number, whole = match.groups()
    if whole:
        json.loads(_ODD_KEY.sub(_quoted_key, whole))
    key = number or whole
    return before + json.dumps(key.decode(), ensure_ascii=False).encode() if key else match[0]


def _document(data: bytes) -> Any:
    """Raises ValueError."""

    def no_number(text: str) -> None:
        raise ValueError(text)

    text = _ODD_KEY.sub(_quoted_key, data.removeprefix(b"\xef\xbb\xbf")).decode()
    return json.loads(text, object_pairs_hook=Pairs, parse_constant=no_number)


def _entries(data: bytes, kind: Format) -> Iterator[tuple[str, str, Any, Any] | None]:
    """Each (group, topic, queue, offset) of the tables; None for an entry that is no queue. Raises ValueError."""
    document = _document(data)
    if not isinstance(document, Pairs):
        raise ValueError  # noqa: TRY004 - as json.loads does for a file that is none
    for name, table in document:
        if name in IGNORED:
            continue
        known = {"offsetTable", "lmqOffsetTable", "resetOffsetTable"} if kind is BROKER else {"offsetTable"}
        if name not in known or not isinstance(table, Pairs):
            yield None
        elif kind is CLIENT:
            yield from ((f"{key}", "", 0, value) for key, value in table)
        else:
            for key, value in table:
                topic, _, group = key.partition("@")
                if name != "offsetTable":
                    yield (group, topic, 0, value) if name == "lmqOffsetTable" else None
                elif not isinstance(value, Pairs) or not _can_be_parted(key):
                    yield None
                else:
                    yield from ((group, topic, queue, offset) for queue, offset in value)


def _can_be_parted(key: str) -> bool:
    rest = key.split("@")[1:]
    return len(rest) == 1 or rest[1:] == ["broadcast"]


def _is_good(group: str, topic: str, queue: Any, offset: Any) -> bool:
    if not (_is_whole(queue, QUEUE_MAX) and _is_whole(offset, LONG_MAX)):
        return False
    try:
        key_of(group, MessageQueue(topic, int(queue)))
    except InvalidInputError:
        return False
    return _can_be_parted(f"{topic}@{group}")


def _is_whole(value: Any, largest: int) -> bool:
    if isinstance(value, str):
        return value.isascii() and value.isdecimal() and len(value) <= 20 and int(value) <= largest
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= largest


@pytest.mark.parametrize("kind", [BROKER, CLIENT])
@given(data=st.data())
def test_nothing_is_lost_of_rocketmqs_files(kind: Format, data: st.DataObject) -> None:
    """As many rows and rejects as entries in the document, in order; the rows have the entries' values."""
    text = data.draw(FILES[kind]).encode()
    entries, (rows, failure) = list(_entries(text, kind)), outcome(text, kind, data.draw(st.sampled_from(CHUNKS)))
    assert (len(rows), failure) == (len(entries), "")
    for row, entry in zip(rows, entries, strict=True):
        if isinstance(row, OffsetRow):
            assert entry is not None
            group, topic, queue, offset = entry
            assert row.offset == int(offset)
            if kind is BROKER:
                assert (row.group, row.topic, row.partition) == (group, topic, int(queue))
                assert row.shard == f"{topic}/{int(queue)}"
        elif kind is BROKER:
            assert entry is None or not _is_good(*entry)


@given(text=JSON_TEXTS, chunk=st.sampled_from(CHUNKS))
def test_nothing_is_lost_of_our_json(text: str, chunk: int) -> None:
    """A row or a reject for each element."""
    rows, failure = outcome(text.encode(), Format.JSON, chunk)
    values = json.loads(text)
    assert (len(rows), failure) == (len(values), "")
    for row, value in zip(rows, values, strict=True):
        if isinstance(row, OffsetRow):
            assert (row.group, row.shard, row.offset) == (value["group"], value["shard"], value["offset"])


@given(text=CSV_TEXTS)
def test_nothing_is_lost_of_a_csv(text: str) -> None:
    """A row or a reject for each line that is not blank; the rejects have its number."""
    lines = {
        number: line for number, line in enumerate(text.encode().removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1) if line.strip()
    }
    rows, failure = outcome(text.encode(), Format.KAFKA_CSV, 2)
    assert (len(rows), failure) == (len(lines), "")
    assert {row.line for row in rows if isinstance(row, Reject)} <= lines.keys()


@pytest.mark.parametrize("kind", TEXTUAL)
@given(data=st.data())
def test_no_file_is_a_surprise(kind: Format, data: st.DataObject) -> None:
    """Damaged or random files: the same result for all chunk sizes, and no error but NotReadableError."""
    text = data.draw(st.one_of(mutated(kind), mutated(kind), st.binary(max_size=60)))
    rows, failure = outcome(text, kind, CHUNKS[-1])
    assert outcome(text, kind, data.draw(st.sampled_from(CHUNKS[:-1]))) == (rows, failure)
    if kind in {BROKER, CLIENT}:
        try:
            entries = list(_entries(text, kind))
        except (ValueError, RecursionError):
            assert failure
        else:
            assert (len(rows), failure) == (len(entries), "")


@pytest.mark.parametrize("kind", [BROKER, Format.JSON])
def test_a_file_is_read_alike_wherever_it_is_cut(kind: Format) -> None:
    """Inside of names, numbers, escapes and characters."""
    table = '{"T@g":{12345:67890,2:1.5e+3,3:false,"1":"6"},"\u00e4\u8bdd@g":{0:7}}'
    data = f'{{"offsetTable":{table},"more":[1.5e3,null,"\\u00e4\\n",{{"a":{{}}}}]}}\n '.encode()
    if kind is Format.JSON:
        data = '[{"group":"g","shard":"\u00e4\\n","offset":12},\n{"group":"\u8bdd","shard":"s","offset":0.5}, [{}], 5 ]'.encode()
    whole = outcome(data, kind, CHUNKS[-1])
    assert not whole[1]
    assert all(outcome(data, kind, size) == whole for size in range(1, len(data)))
