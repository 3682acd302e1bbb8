"""Offsets in files: what is written is read back, Kafka's tool would read it too, and every bad line is named."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import InvalidInputError
from adapter.formats.csv_and_json import (
    CSV_OFFSET_MAX,
    CSV_PARTITION_MAX,
    PROBLEMS_SHOWN,
    Format,
    OffsetRow,
    parse,
    split_shard,
    to_csv,
    to_json,
)
from adapter.model import U64_MAX
from tests.unit.helpers import NAMES, TEXTS, U64

N = "default"
NUMBERS = "0 to 9223372036854775807"

TOPICS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=58)
PARTITIONS = st.one_of(st.integers(0, 3), st.integers(0, CSV_PARTITION_MAX))
CSV_OFFSETS = st.one_of(st.integers(0, 3), st.integers(0, CSV_OFFSET_MAX))


@st.composite
def csv_rows(draw: st.DrawFn) -> OffsetRow:
    """A row that Kafka's CSV can hold."""
    topic, partition = draw(TOPICS), draw(PARTITIONS)
    return OffsetRow(N, draw(NAMES), f"{topic}/{partition}", draw(CSV_OFFSETS), topic=topic, partition=partition)


JSON_ROWS = st.builds(
    OffsetRow, NAMES, NAMES, NAMES, U64, metadata=TEXTS, committed_at_ms=U64, topic=NAMES, partition=PARTITIONS, epoch=U64
)


def lists(rows: st.SearchStrategy[OffsetRow]) -> st.SearchStrategy[list[OffsetRow]]:
    """Some rows, no key twice."""
    return st.lists(rows, min_size=1, max_size=8, unique_by=lambda row: row.key)


def read(data: bytes, kind: Format = Format.CSV, group: str = "") -> list[OffsetRow]:
    """As a command reads a file."""
    return parse(data, kind, source="f", namespace=N, group=group)


def problems(data: bytes, kind: Format = Format.CSV, group: str = "") -> list[str]:
    """What is said of a bad file, line by line."""
    with pytest.raises(InvalidInputError) as raised:
        read(data, kind, group)
    return str(raised.value).splitlines()


@given(lists(csv_rows()))
def test_csv_comes_back_as_it_was(rows: list[OffsetRow]) -> None:
    """Whatever the names hold: commas, quotes, blanks, every script."""
    assert read(to_csv(rows, with_group=True)) == rows


@given(lists(csv_rows()))
def test_csv_without_the_group_comes_back_with_the_group_that_is_named(rows: list[OffsetRow]) -> None:
    """The form for a single group."""
    of_one = list({row.shard: row._replace(group="g") for row in rows}.values())
    assert read(to_csv(of_one, with_group=False), group="g") == of_one


@given(lists(JSON_ROWS))
def test_json_comes_back_as_it_was(rows: list[OffsetRow]) -> None:
    """Every field of every offset."""
    assert read(to_json(rows), Format.JSON) == rows


def test_json_is_one_row_per_line() -> None:
    """So that two exports can be compared by line; numbers are numbers, also the largest."""
    row = OffsetRow(N, "g", "s", U64_MAX)
    assert json.loads(to_json([row, row])) == [row._asdict()] * 2
    assert len(to_json([row, row]).splitlines()) == 4
    assert b'"offset": 18446744073709551615,' in to_json([row])
    assert to_json([]) == b"[]\n"


@pytest.mark.parametrize(
    ("group", "line"),
    [
        ("g", "g,topic,0,5"),
        ("a-group.with_all:of~it", "a-group.with_all:of~it,topic,0,5"),
        ("a,b", '"a,b",topic,0,5'),
        ('say "g"', '"say ""g""",topic,0,5'),
        ("a group", '"a group",topic,0,5'),
        ("a+b", '"a+b",topic,0,5'),
        ("x" * 24, f"{'x' * 24},topic,0,5"),
        ("x" * 25, f'"{"x" * 25}",topic,0,5'),
    ],
)
def test_csv_is_quoted_as_kafka_quotes_it(group: str, line: str) -> None:
    """Jackson's CsvEncoder: quoted when over 24 characters, or with a character up to the comma."""
    assert to_csv([OffsetRow(N, group, "topic/0", 5)], with_group=True) == f"{line}\n".encode()


def test_csv_without_the_group_is_what_kafka_writes_for_one() -> None:
    """`CsvRecordNoGroup`: topic, partition, offset."""
    assert to_csv([OffsetRow(N, "g", "a/b/12", 5)], with_group=False) == b"a/b,12,5\n"


@pytest.mark.parametrize(
    ("shard", "parts"),
    [
        ("t/0", ("t", 0)),
        ("a/b/7", ("a/b", 7)),
        ("//7", ("/", 7)),
        (f"t/{CSV_PARTITION_MAX}", ("t", CSV_PARTITION_MAX)),
        ("t", None),
        ("/7", None),
        ("t/", None),
        ("t/07", None),
        ("t/-1", None),
        ("t/+1", None),
        ("t/x", None),
        ("t/\u0663", None),
        (f"t/{CSV_PARTITION_MAX + 1}", None),
        (f"t/{10**200}", None),
    ],
)
def test_the_last_slash_separates_topic_and_partition(shard: str, parts: tuple[str, int] | None) -> None:
    """A name that would not come back the same has no such parts."""
    assert split_shard(shard) == parts


def test_what_csv_cannot_hold_is_named_with_what_to_do() -> None:
    """All of it, and nothing is written."""
    rows = [OffsetRow(N, "g", "s", 1), OffsetRow(N, "g", "t/0", 2**63), OffsetRow(N, "g", "t/1", CSV_OFFSET_MAX)]
    with pytest.raises(InvalidInputError) as raised:
        to_csv(rows, with_group=True)
    help_text = "Kafka's CSV cannot hold it; use --format json, or a file name that ends in .json"
    assert str(raised.value).splitlines() == [
        f"shard 's' of group 'g' is not of the form topic/partition: {help_text}",
        f"offset 9223372036854775808 of shard 't/0' of group 'g' is over 9223372036854775807: {help_text}",
    ]


@pytest.mark.parametrize(
    "data", [b"g,t,0,5", b"g,t,0,5\r\n", b"\xef\xbb\xbfg,t,0,5\n", b"\n\n  \r\ng,t,0,5\n\n", b'"g","t","0","5"\n']
)
def test_what_editors_make_of_csv_is_read(data: bytes) -> None:
    """A byte order mark, Windows' line ends, blank lines, no line end, quotes around everything."""
    assert read(data) == [OffsetRow(N, "g", "t/0", 5, topic="t", partition=0)]


BAD_LINES = [
    (b"t,0", "has 2 columns, not 3 (topic,partition,offset) or 4 (group,topic,partition,offset)"),
    (b"g,t,0,5,6", "has 5 columns, not 3 (topic,partition,offset) or 4 (group,topic,partition,offset)"),
    (b"GROUP,TOPIC,PARTITION,OFFSET", "partition: 'PARTITION' is not a whole number from 0 to 2147483647"),
    (b"g,t,-1,5", "partition: '-1' is not a whole number from 0 to 2147483647"),
    (b"g,t,2147483648,5", "partition: '2147483648' is not a whole number from 0 to 2147483647"),
    (b"g,t,0,-5", f"offset: '-5' is not a whole number from {NUMBERS}"),
    (b"g,t,0,+5", f"offset: '+5' is not a whole number from {NUMBERS}"),
    (b"g,t,0, 5", f"offset: ' 5' is not a whole number from {NUMBERS}"),
    (b"g,t,0,5.0", f"offset: '5.0' is not a whole number from {NUMBERS}"),
    (b"g,t,0,1_0", f"offset: '1_0' is not a whole number from {NUMBERS}"),
    ("g,t,0,\u0663".encode(), f"offset: '\u0663' is not a whole number from {NUMBERS}"),
    (b"g,t,0,", f"offset: '' is not a whole number from {NUMBERS}"),
    (b"g,t,0,9223372036854775808", f"offset: '9223372036854775808' is not a whole number from {NUMBERS}"),
    (b"g,t,0," + b"9" * 300, f"offset: '{'9' * 49}... is not a whole number from {NUMBERS}"),
    (b",t,0,5", "group is empty"),
    (b"g,,0,5", "topic is empty"),
    (b"g\x07,t,0,5", "group has the control character U+0007 at position 1"),
    (b"g," + b"t" * 256 + b",0,5", "topic is 256 bytes long; at most 255 are allowed"),
    (b"g," + b"t" * 254 + b",0,5", "shard is 256 bytes long; at most 255 are allowed"),
    (b"g" * 5_000, "is 5,000 bytes long; no line of offsets is over 4,096"),
    (b'"g,t,0,5', "is not CSV: unexpected end of data"),
    (b"g,\xff,0,5", "is not UTF-8 at byte 3"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES, ids=[reason[:40] for _, reason in BAD_LINES])
def test_a_bad_line_of_csv_is_named(line: bytes, reason: str) -> None:
    """By its number, between good ones: it takes the whole file with it."""
    assert problems(b"g,t,1,5\n" + line + b"\ng,t,2,5\n") in (
        [f"f: line 2: {reason}"],
        [f"f: line 2: {reason.replace('3 (topic,partition,offset) or ', '')}, as before"],
    )
    assert problems(line + b"\n") == [f"f: line 1: {reason}"]


def test_every_bad_line_is_named() -> None:
    """Blank lines count, the first problem of each line is told."""
    assert problems(b"g,t,0,x\n\n,t,0,x\ng,t,0,5\n") == [
        f"f: line 1: offset: 'x' is not a whole number from {NUMBERS}",
        "f: line 3: group is empty",
    ]


def test_thousands_of_bad_lines_do_not_flood_the_screen() -> None:
    """The first hundred, and how many more."""
    shown = problems(b"x\n" * 10_000)
    assert len(shown) == PROBLEMS_SHOWN + 1
    assert shown[-1] == "... and 9,900 more"


def test_the_number_of_columns_is_the_same_in_the_whole_file() -> None:
    """The first good line decides, so that a group named like a topic is not mistaken."""
    assert problems(b"t,0,5\ng,t,1,5\n", group="g") == ["f: line 2: has 4 columns, not 3 (topic,partition,offset), as before"]
    assert problems(b"g,t,0,5\nt,1,5\n") == ["f: line 2: has 3 columns, not 4 (group,topic,partition,offset), as before"]


def test_the_same_shard_twice_is_refused_with_both_places() -> None:
    """Also where only the digits differ; another group's is another one."""
    assert problems(b"g,t,0,5\nh,t,0,5\ng,t,00,6\n") == ["f: line 3: shard: 't/0' of group 'g' is already in line 1"]
    rows = b'[{"group": "g", "shard": "s", "offset": 1}, {"group": "g", "shard": "s", "offset": 1, "namespace": "default"}]'
    assert problems(rows, Format.JSON) == ["f: row 2: shard: 's' of group 'g' is already in row 1"]


def test_a_file_without_groups_needs_one() -> None:
    """In both formats; the option is named."""
    assert problems(b"t,0,5\n") == ["f: line 1: group is missing; --group names it for the whole file"]
    row = b'[{"shard": "s", "offset": 1}]'
    assert problems(row, Format.JSON) == ["f: row 1: group is missing; --group names it for the whole file"]
    assert read(row, Format.JSON, group="g") == [OffsetRow(N, "g", "s", 1)]


def test_a_file_for_one_group_must_not_hold_another() -> None:
    """A plan for one group is not applied to another by mistake."""
    assert problems(b"g,t,0,5\nh,t,0,5\n", group="g") == [
        "f: line 2: group: 'h' is not 'g', of which alone the offsets are taken"
    ]
    row = b'[{"namespace": "team", "group": "g", "shard": "s", "offset": 1}]'
    assert problems(row, Format.JSON, group="g") == ["f: row 1: namespace: 'team' is not 'default'; --namespace names another"]
    assert read(row, Format.JSON) == [OffsetRow("team", "g", "s", 1)]


@pytest.mark.parametrize("data", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_told(data: bytes) -> None:
    """It would otherwise look like success."""
    assert problems(data) == ["f: holds no offsets"]


def test_utf_16_is_told() -> None:
    """PowerShell writes it when output is redirected."""
    assert problems("g,t,0,5\n".encode("utf-16")) == ["f: is UTF-16; save it as UTF-8"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not JSON: Expecting value: line 1 column 1 (char 0); --format csv reads Kafka's CSV"),
        (b"g,t,0,5", "is not JSON: Expecting value: line 1 column 1 (char 0); --format csv reads Kafka's CSV"),
        (b"[{]", "is not JSON: Expecting property name enclosed in double quotes: line 1 column 3 (char 2); --format csv reads"),
        (b"[" * 100_000, "is not JSON: maximum recursion depth exceeded"),
        (b'[{"offset": ' + b"9" * 5_000 + b"}]", "is not JSON: Exceeds the limit (4300 digits)"),
        (b"{}", "is not a JSON array of offsets"),
        (b"[]", "holds no offsets"),
        (b'["\xff"]', "is not UTF-8 at byte 3"),
    ],
    ids=["empty", "csv", "syntax", "deep", "digits", "object", "none", "utf-8"],
)
def test_a_file_that_is_not_json_is_told(data: bytes, reason: str) -> None:
    """Where, and what else it could be."""
    (shown,) = problems(data, Format.JSON)
    assert shown.startswith(f"f: {reason}")


def _without(*fields: str) -> dict[str, Any]:
    return {name: value for name, value in {"group": "g", "shard": "s", "offset": 1}.items() if name not in fields}


U64_TEXT = f"is not a whole number from 0 to {U64_MAX}"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (5, "is not an object"),
        (_without("shard"), "shard is missing"),
        (_without("offset"), "offset is missing"),
        (_without() | {"ofset": 1}, "'ofset' is not a field of an offset"),
        (_without() | {"offset": -1}, f"offset: -1 {U64_TEXT}"),
        (_without() | {"offset": U64_MAX + 1}, f"offset: {U64_MAX + 1} {U64_TEXT}"),
        (_without() | {"offset": 5.0}, f"offset: 5.0 {U64_TEXT}"),
        (_without() | {"offset": "5"}, f"offset: '5' {U64_TEXT}"),
        (_without() | {"offset": True}, f"offset: True {U64_TEXT}"),
        (_without() | {"offset": None}, f"offset: None {U64_TEXT}"),
        (_without() | {"partition": 2**32}, f"partition: {2**32} is not a whole number from 0 to {2**32 - 1}"),
        (_without() | {"group": 5}, "group: 5 is not a string"),
        (_without() | {"shard": ""}, "shard is empty"),
        (_without() | {"shard": "\ud800"}, "shard: has half of a surrogate pair at position 0"),
        (_without() | {"metadata": "x" * 4_097}, "metadata is 4097 bytes long; at most 4096 are allowed"),
        (_without() | {"topic": "\n"}, "topic has the control character U+000A at position 0"),
    ],
    ids=str,
)
def test_a_bad_row_of_json_is_named(row: object, reason: str) -> None:
    """By its place in the array, and the field."""
    data = json.dumps([{"group": "g", "shard": "other", "offset": 1}, row]).encode()
    assert problems(data, Format.JSON) == [f"f: row 2: {reason}"]


def test_what_list_prints_as_json_can_be_read() -> None:
    """Its `dirty` means nothing elsewhere."""
    assert read(json.dumps([_without() | {"dirty": True}]).encode(), Format.JSON) == [OffsetRow(N, "g", "s", 1)]


@pytest.mark.parametrize("kind", Format)
@given(data=st.one_of(st.binary(max_size=200), st.text(alphabet='g,t/0159"\\\n\r{}[]:', max_size=60).map(str.encode)))
def test_no_file_is_a_surprise(kind: Format, data: bytes) -> None:
    """Rows that can be committed, or an error that is told."""
    try:
        rows = read(data, kind)
    except InvalidInputError:
        return
    assert rows == read(_writer(kind)(rows), kind)


def _writer(kind: Format) -> Callable[[Sequence[OffsetRow]], bytes]:
    return to_json if kind is Format.JSON else lambda rows: to_csv(rows, with_group=True)


@pytest.mark.parametrize(
    ("path", "kind"), [("a.json", Format.JSON), ("A.JSON", Format.JSON), ("a.csv", Format.CSV), ("-", Format.CSV)]
)
def test_the_name_says_the_format(path: str, kind: Format) -> None:
    """CSV where it says nothing."""
    assert Format.of(path) is kind
