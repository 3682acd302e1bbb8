"""Rows on standard output: complete, in order, printed as they arrive, without control characters."""

import csv
import json
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.cli.table import LEFT, PAGE, RIGHT, CsvRows, JsonRows, Side, Table, json_text, print_json, print_table
from adapter.cli.terminal import visible

COLUMNS: dict[str, Side] = {"group": LEFT, "offset": RIGHT, "note": LEFT}
LONG = "a-group-of-which-only-the-end-differs-" * 10


class Terminal(StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        """It claims to be a terminal."""
        return True


KINDS = pytest.mark.parametrize("kind", [Terminal, StringIO], ids=["terminal", "pipe"])


def standard_output(monkeypatch: pytest.MonkeyPatch, kind: type[StringIO]) -> StringIO:
    """Standard output of either kind, on a terminal of 80 columns."""
    made = kind()
    monkeypatch.setattr("sys.stdout", made)
    monkeypatch.setenv("COLUMNS", "80")
    return made


def test_a_pipe_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups that differ in their last letter look different, whatever the width."""
    output = standard_output(monkeypatch, StringIO)
    print_table(COLUMNS, [(LONG + "a", "1", "m" * 4_096), (LONG + "b", "2", "")])
    lines = output.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[1].split() == [LONG + "a", "1", "m" * 4_096]
    assert lines[2].split() == [LONG + "b", "2"]


def test_a_narrow_terminal_gets_a_record_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole cells below each other, with the names of their columns, and nothing for an empty cell."""
    output = standard_output(monkeypatch, Terminal)
    print_table(COLUMNS, [(LONG + "a", "1", "m" * 4_096), (LONG + "b", "2", "")])
    records = [["group", LONG + "a"], ["offset", "1"], ["note", "m" * 4_096], [], ["group", LONG + "b"], ["offset", "2"], []]
    assert [line.split() for line in output.getvalue().splitlines()] == records


def test_a_narrow_terminal_first_leaves_out_what_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later row with a value there begins a new part with that column: nothing is lost."""
    output = standard_output(monkeypatch, Terminal)
    monkeypatch.setenv("COLUMNS", "20")
    columns: dict[str, Side] = {"group": LEFT, "a column nobody filled": LEFT, "offset": RIGHT}
    rows = [*([("g", "", "1")] * PAGE), ("h", "x", "2"), ("i", "", "3")]
    print_table(columns, rows)
    lines = output.getvalue().splitlines()
    assert lines[:3] == ["group  offset", "g           1", "g           1"]
    assert lines[PAGE + 1 :] == [
        *("group                   h", "a column nobody filled  x", "offset                  2", ""),
        *("group                   i", "offset                  3", ""),
    ]
    monkeypatch.setenv("COLUMNS", "80")
    output.truncate(0)
    output.seek(0)
    print_table(columns, [("g", "", "1")])
    assert output.getvalue().splitlines()[0].split() == ["group", *["a", "column", "nobody", "filled"], "offset"]


def test_prose_in_the_last_column_is_folded_at_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below itself, at a terminal; a pipe has one line. No word is broken."""
    text = " ".join(f"word{number}" for number in range(30)) + " /a/path/that-is-longer/than-all-the-room/that-there-is/here"
    output = standard_output(monkeypatch, Terminal)
    monkeypatch.setenv("COLUMNS", "40")
    print_table({"what": LEFT, "value": LEFT}, [("first", text), ("second", "")], prose=True)
    first, *lines = output.getvalue().splitlines()
    assert first.split() == ["what", "value"]
    assert " ".join(" ".join(lines).split()) == f"first {text} second"
    assert {len(line) - len(line.lstrip()) for line in lines[1:-1]} == {8}
    assert all(len(line) <= 40 for line in lines if "/a/path" not in line)
    output = standard_output(monkeypatch, StringIO)
    print_table({"what": LEFT, "value": LEFT}, [("first", text)], prose=True)
    assert output.getvalue() == f"what\tvalue\nfirst\t{text}\n"


def test_csv_is_quoted_as_others_read_it_and_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of the fields also without rows; an absent value is an empty cell; a number has no commas; an object is JSON."""
    monkeypatch.setattr("sys.stdout", made := StringIO())
    with CsvRows[dict[str, object]](("group", "offset", "dirty", "of"), dict) as rows:
        rows.add({"group": 'a "b", c', "offset": 2**64 - 1, "dirty": True, "of": {"x": [1]}})
        assert made.getvalue().count("\n") == 2  # each row as it comes
        rows.add({"group": "\x1b[31m\n", "offset": None})
    assert list(csv.reader(StringIO(made.getvalue()))) == [
        ["group", "offset", "dirty", "of"],
        ['a "b", c', str(2**64 - 1), "true", '{"x": [1]}'],
        ["\\x1b[31m\\n", "", "", ""],
    ]
    monkeypatch.setattr("sys.stdout", made := StringIO())
    with CsvRows[dict[str, object]](("group", "offset"), dict):
        pass
    assert made.getvalue() == "group,offset\n"


def test_a_pipe_gets_tabs_below_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are printed also without rows, since a script expects them."""
    monkeypatch.setattr("sys.stdout", made := StringIO())
    print_table(COLUMNS, [("g", "1", ""), ("a b", "2", "x")])
    assert made.getvalue() == "group\toffset\tnote\ng\t1\t\na b\t2\tx\n"
    monkeypatch.setattr("sys.stdout", made := StringIO())
    print_table(COLUMNS, [])
    assert made.getvalue() == "group\toffset\tnote\n"


def test_a_terminal_gets_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers to the right; a letter that takes two places counts as two; nothing at all for no rows."""
    monkeypatch.setattr("sys.stdout", made := Terminal())
    print_table(COLUMNS, [("g", "1", "x"), ("\u6d88\u8d39", "1000", "y")])
    assert made.getvalue().splitlines() == ["group  offset  note", "g           1  x", "\u6d88\u8d39     1000  y"]
    monkeypatch.setattr("sys.stdout", made := Terminal())
    print_table(COLUMNS, [])
    assert made.getvalue() == ""


@KINDS
def test_rows_are_out_before_the_last_has_come(monkeypatch: pytest.MonkeyPatch, kind: type[StringIO]) -> None:
    """A pipe has each at once, a terminal after the first page; memory does not grow with them."""
    output = standard_output(monkeypatch, kind)
    table: Table[list[str]] = Table(COLUMNS, list)
    with table:
        for number in range(3 * PAGE):
            table.add([f"g{number}", str(number), ""])
            lines = output.getvalue().count("\n")
            assert lines >= (number - PAGE if isinstance(output, Terminal) else number)
    assert output.getvalue().count("\n") == 3 * PAGE + 1
    assert table.count == 3 * PAGE


@KINDS
def test_a_cell_after_the_first_page_may_be_wider(monkeypatch: pytest.MonkeyPatch, kind: type[StringIO]) -> None:
    """A wide cell in a later row is printed completely."""
    output = standard_output(monkeypatch, kind)
    print_table(COLUMNS, [*([("g", "1", "x")] * PAGE), (LONG, "10000000", "last")])
    assert output.getvalue().splitlines()[-1].split() == [LONG, "10000000", "last"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("two\nlines\tand\r", "two\\nlines\\tand\\r"),
        ("\x9b2J", "\\u009b2J"),
        ("a\u202eb\u200b", "a\\u202eb\\u200b"),
        ("\U000e0041", "\\U000e0041"),
        (b"\xff\xfea".decode(errors="surrogateescape"), "\\xff\\xfea"),
        ("\u6d88\u8d39 back\\slash", "\u6d88\u8d39 back\\slash"),
    ],
)
@KINDS
def test_what_a_terminal_would_obey_or_hide_is_shown_by_its_number(
    monkeypatch: pytest.MonkeyPatch, kind: type[StringIO], text: str, shown: str
) -> None:
    """Escape sequences, line ends, what turns the order of letters, what has no width."""
    output = standard_output(monkeypatch, kind)
    assert visible(text) == shown
    print_table(COLUMNS, [("g", "1", text)])
    assert shown in output.getvalue()
    assert len(output.getvalue().splitlines()) == 2


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans(), max_size=3), max_size=5))
def test_json_is_what_was_given_and_harmless(rows: list[dict[str, object]]) -> None:
    """For any text: a terminal obeys control characters in JSON too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.stdout", made := StringIO())
        listed: JsonRows[dict[str, object]] = JsonRows(dict)
        with listed:
            for row in rows:
                listed.add(row)
        print_json(rows)
    for text in (made.getvalue(), json_text(rows)):
        assert text.replace("\n", "").isprintable()
    first, end = json.JSONDecoder().raw_decode(made.getvalue())
    assert first == rows == json.loads(made.getvalue()[end:]) == json.loads(json_text(rows))


def test_json_that_an_error_ended_is_no_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error the JSON is invalid, so that a partial list is not taken for a complete one."""
    monkeypatch.setattr("sys.stdout", made := StringIO())
    rows: JsonRows[dict[str, int]] = JsonRows(dict)
    with pytest.raises(KeyError), rows:  # noqa: PT012
        rows.add({"a": 1})
        raise KeyError
    with pytest.raises(json.JSONDecodeError):
        json.loads(made.getvalue())
