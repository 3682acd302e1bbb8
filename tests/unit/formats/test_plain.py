"""The fast parsers of plain rows (CSV and JSON) give the same result as the complete parsers, or none."""

import json
from io import BytesIO

from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import InvalidInputError
from adapter.formats import kafka_csv, offsets_json
from adapter.formats.rows import Naming, OffsetRow, Reject, with_names

NAMES = st.text(st.characters(min_codepoint=0x1F, max_codepoint=0x80), max_size=101) | st.sampled_from(["g", "t", "n", "n" * 201])
NUMBERS = st.integers(0, 10**20) | st.sampled_from([0, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1, 10**18, 10**18 - 1, 10**9])
NAMINGS = st.sampled_from([Naming("n"), Naming("n", "g"), Naming("m", "g")])


def _short_way(text: str, naming: Naming) -> OffsetRow | None:
    found = offsets_json._ROW.match(f"{text},")
    return offsets_json._plain_row(found, naming) if found else None


@given(NAMES, NAMES, NAMES, NAMES, NUMBERS, NUMBERS, NUMBERS, NAMINGS)
def test_a_row_of_json_is_the_same_either_way(
    namespace: str, group: str, shard: str, text: str, offset: int, partition: int, epoch: int, naming: Naming
) -> None:
    """Everything that the fast parser accepts, the complete one accepts with the same result."""
    row = OffsetRow(namespace, group, shard, offset, text, offset, text, partition, epoch)
    whole = json.dumps(row._asdict(), ensure_ascii=False)
    short = _short_way(whole, naming)
    if short:
        assert short == with_names(offsets_json._row(offsets_json._value(whole, 1)), naming)


def test_most_rows_of_json_go_the_short_way() -> None:
    """Otherwise the fast parser would be useless."""
    row = OffsetRow("n", "g", "t/0", 5, "some text", 1_700_000_000_000, "t", 0, 1)
    assert _short_way(json.dumps(row._asdict()), Naming("n")) == row


def _long_way(line: bytes, columns: int, naming: Naming) -> OffsetRow | None:
    try:
        return with_names(kafka_csv._row(kafka_csv._fields(line, len(line), columns)), naming)
    except InvalidInputError:
        return None


@given(NAMES, NAMES, NUMBERS, NUMBERS, st.sampled_from([3, 4]), st.booleans(), NAMINGS)
def test_a_line_of_csv_is_the_same_either_way(
    group: str, topic: str, partition: int, offset: int, columns: int, named: bool, naming: Naming
) -> None:
    """Everything that the fast parser accepts, the complete one accepts with the same result."""
    line = ",".join([*([group] if named else []), topic, str(partition), str(offset)]).encode()
    short = kafka_csv._plain_row(line, columns, naming)
    if short:
        assert short == _long_way(line, columns, naming)


def test_most_lines_of_csv_go_the_short_way() -> None:
    """All but the first, which determines the number of columns."""
    row = OffsetRow("n", "g", "t/0", 5, topic="t")
    assert kafka_csv._plain_row(b"g,t,0,5", 4, Naming("n")) == row
    assert kafka_csv._plain_row(b"t,0,5", 3, Naming("n", "g")) == row


def test_a_line_with_another_number_of_columns_is_still_told() -> None:
    """The fast parser does not accept it, so it is reported."""
    rows = list(kafka_csv.read(BytesIO(b"g,t,0,5\nt,1,6\ng,t,2,7\n"), Naming("n")))
    assert [type(row) for row in rows] == [OffsetRow, Reject, OffsetRow]
