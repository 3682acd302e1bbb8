"""Kafka's CSV: a written file reads back the same, Kafka's tool can read it, and every bad line is a reject."""

import io

import pytest
from hypothesis import given

from adapter.errors import InvalidInputError
from adapter.formats import kafka_csv
from adapter.formats.files import Format
from adapter.formats.kafka_csv import LINE_MAX_BYTES, split_shard
from adapter.formats.problems import PROBLEMS_SHOWN
from adapter.formats.rows import TEXT_SHOWN, Naming, NotReadableError, OffsetRow, Reject
from adapter.model.queues import QUEUE_MAX
from adapter.model.records import LONG_MAX
from tests.unit.formats import samples
from tests.unit.formats.samples import NUMBERS, N, csv_rows, found, lists, read, written

CSV = Format.KAFKA_CSV
OF_G = Naming(group="g")


def rejects(data: bytes, group: str = "") -> list[tuple[int, str]]:
    """(line, reason) of the bad lines."""
    return samples.rejects(data, CSV, group)


@given(lists(csv_rows()))
def test_csv_comes_back_as_it_was(rows: list[OffsetRow]) -> None:
    """With any names: commas, quotes, spaces, every script."""
    assert read(written(rows, CSV), CSV) == rows


@given(lists(csv_rows()))
def test_csv_without_the_group_comes_back_with_the_group_that_is_named(rows: list[OffsetRow]) -> None:
    """The form for a single group."""
    of_one = list({row.shard: row._replace(group="g") for row in rows}.values())
    assert read(written(of_one, CSV, OF_G), CSV, group="g") == of_one


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
    """Jackson's CsvEncoder quotes strings over 24 characters, or with a character up to and including the comma."""
    assert written([OffsetRow(N, group, "topic/0", 5)], CSV) == f"{line}\n".encode()


def test_csv_without_the_group_is_what_kafka_writes_for_one() -> None:
    """`CsvRecordNoGroup`: topic, partition, offset."""
    assert written([OffsetRow(N, "g", "a/b/12", 5)], CSV, OF_G) == b"a/b,12,5\n"


@pytest.mark.parametrize(
    ("shard", "parts"),
    [
        ("t/0", ("t", 0)),
        ("a/b/7", ("a/b", 7)),
        ("//7", ("/", 7)),
        (f"t/{QUEUE_MAX}", ("t", QUEUE_MAX)),
        ("t", None),
        ("/7", None),
        ("t/", None),
        ("t/07", None),
        ("t/-1", None),
        ("t/+1", None),
        ("t/x", None),
        ("t/\u0663", None),
        (f"t/{QUEUE_MAX + 1}", None),
        (f"t/{10**200}", None),
    ],
)
def test_the_last_slash_separates_topic_and_partition(shard: str, parts: tuple[str, int] | None) -> None:
    """A shard that a CSV could not restore has no topic and partition."""
    assert split_shard(shard) == parts


def test_what_csv_cannot_hold_is_named_with_what_to_do() -> None:
    """All bad rows are named, not only the first."""
    rows = [
        OffsetRow(N, "g", "s", 1),
        OffsetRow(N, "g", "t/0", 2**63),
        OffsetRow(N, "g", "t/1", LONG_MAX),
        OffsetRow("team", "g", "t/2", 1),
        OffsetRow(N, "h", "t/3", 1),
    ]
    with pytest.raises(InvalidInputError) as raised:
        written(rows, CSV, OF_G)
    use_json = "use --format json, or a file name that ends in .json"
    assert str(raised.value).splitlines() == [
        f"shard 's' of group 'g' is not of the form topic/partition, which Kafka's CSV is made of; {use_json}",
        "shard 't/0' of group 'g' has offset 9223372036854775808, and the format's largest is 9223372036854775807; " + use_json,
        f"shard 't/2' of group 'g' is in namespace 'team', not 'default', and the format has none; {use_json}",
        "shard 't/3' of group 'h' is not of group 'g', the only group of the file",
    ]


def test_thousands_of_problems_do_not_flood_the_screen() -> None:
    """The first hundred are shown, then the number of the others."""
    with pytest.raises(InvalidInputError) as raised:
        written([OffsetRow(N, "g", f"s{number}", 1) for number in range(10_000)], CSV)
    shown = str(raised.value).splitlines()
    assert len(shown) == PROBLEMS_SHOWN + 1
    assert shown[-1] == "... and 9,900 more"


@pytest.mark.parametrize(
    "data", [b"g,t,0,5", b"g,t,0,5\r\n", b"\xef\xbb\xbfg,t,0,5\n", b"\n\n  \r\ng,t,0,5\n\n", b'"g","t","0","5"\n']
)
def test_what_editors_make_of_csv_is_read(data: bytes) -> None:
    """Byte order mark, CRLF, blank lines, no final line end, quotes around everything."""
    assert read(data, CSV) == [OffsetRow(N, "g", "t/0", 5, topic="t", partition=0)]


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
    (b"g" * 4_097, "is 4,097 bytes long; no line of offsets is over 4,096"),
    (b"g" * 1_000_000, "is 1,000,000 bytes long; no line of offsets is over 4,096"),
    (b" " * 5_000 + b"g,t,0,5", "is 5,007 bytes long; no line of offsets is over 4,096"),
    (b'"g,t,0,5', "is not CSV: unexpected end of data"),
    (b"g,\xff,0,5", "is not UTF-8 at byte 3"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES, ids=[reason[:40] for _, reason in BAD_LINES])
def test_a_bad_line_of_csv_is_a_reject(line: bytes, reason: str) -> None:
    """With its line number; the good lines around it are read."""
    first, bad, last = found(b"g,t,1,5\n" + line + b"\r\ng,t,2,5\n", CSV)
    assert (first[2], last[2]) == ("t/1", "t/2")
    assert isinstance(bad, Reject)
    assert bad.line == 2
    assert bad.reason in (reason, f"{reason.replace('3 (topic,partition,offset) or ', '')}, as before")
    assert rejects(line + b"\n") == rejects(line) == [(1, reason)]


def test_a_line_is_as_long_as_it_may_be() -> None:
    """The limit does not count the line end."""
    line = b"g,t,0," + b"0" * (LINE_MAX_BYTES - 6)
    ((_, reason),) = rejects(line + b"\r\n")
    assert reason.startswith("offset: '000")


def test_what_is_shown_of_a_bad_line_is_its_beginning() -> None:
    """A limited number of characters, also of a line that is not UTF-8."""
    row = found(b"\xff" + b"x" * 1_000, CSV)[0]
    assert isinstance(row, Reject)
    assert row.text == "\ufffd" + "x" * (TEXT_SHOWN - 1) + "..."


def test_blank_lines_are_counted() -> None:
    """Line numbers include blank lines; the first problem of each line is reported."""
    assert rejects(b"g,t,0,x\n\n,t,0,x\ng,t,0,5\n") == [
        (1, f"offset: 'x' is not a whole number from {NUMBERS}"),
        (3, "group is empty"),
    ]


def test_the_number_of_columns_is_the_same_in_the_whole_file() -> None:
    """The first good line decides, so that a topic is not mistaken for a group."""
    assert rejects(b"t,0,5\ng,t,1,5\n", group="g") == [(2, "has 4 columns, not 3 (topic,partition,offset), as before")]
    assert rejects(b"g,t,0,5\nt,1,5\n") == [(2, "has 3 columns, not 4 (group,topic,partition,offset), as before")]


def test_a_shard_that_is_there_twice_is_read_twice() -> None:
    """The import keeps the larger offset; also if only the spelling of the number differs."""
    assert [(row.shard, row.offset) for row in read(b"g,t,0,5\nh,t,0,5\ng,t,00,6\n", CSV)] == [("t/0", 5), ("t/0", 5), ("t/0", 6)]


def test_a_file_without_groups_needs_one() -> None:
    """The message names the option."""
    assert rejects(b"t,0,5\n") == [(1, "group is missing; --group names it for the whole file")]


def test_a_file_for_one_group_must_not_hold_another() -> None:
    """A plan for one group is not applied to another by mistake."""
    assert rejects(b"g,t,0,5\nh,t,0,5\n", group="g") == [(2, "group: 'h' is not 'g', the only group whose offsets are read")]


@pytest.mark.parametrize("data", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_rows(data: bytes) -> None:
    """The caller decides whether that is an error."""
    assert found(data, CSV) == []


def test_utf_16_is_told() -> None:
    """UTF-16 is reported: PowerShell writes it when output is redirected."""
    with pytest.raises(NotReadableError, match="is UTF-16; save it as UTF-8"):
        found("g,t,0,5\n".encode("utf-16"), CSV)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", 0),
        (b"t,0,1\n", 0),
        (b"t,0,1\r\n", 0),
        (b"t,0,1\n\n", 0),
        (b"t,0,1\n  ", 0),
        (b"t,0,1234", 1),
        (b"t,0,1\nt,1,1234", 2),
        (b"t,0,1\nt,1,1234\r", 2),
        (b"t,0,1\n" + b"x" * 10_000, 2),
    ],
)
@pytest.mark.parametrize("chunk", [1, 7, 2**20])
def test_a_last_line_without_a_line_end_is_told(monkeypatch: pytest.MonkeyPatch, data: bytes, line: int, chunk: int) -> None:
    """A file that was cut in a number looks so; blank lines do not count. Wherever the chunks end."""
    monkeypatch.setattr(kafka_csv, "CHUNK_BYTES", chunk)
    found = kafka_csv.unterminated(io.BytesIO(data))
    assert (found.line if found else 0) == line
    if found:
        assert data.decode().splitlines()[-1].startswith(found.text.removesuffix("...").strip())


def test_a_file_that_is_written_ends_with_a_line_end() -> None:
    """So that an import of it can see a cut."""
    assert written([OffsetRow("default", "g", "t/0", 1)], CSV).endswith(b"\n")
