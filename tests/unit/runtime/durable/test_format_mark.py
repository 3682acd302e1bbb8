"""The mark of a durable form: what is refused, and that it is there whole or not at all."""

from pathlib import Path

import pytest

from adapter.errors import StoreDamagedError, StoreVersionError
from adapter.runtime.durable import format_mark
from adapter.runtime.durable.format_mark import FILE, Form

FORM = Form("test store", 3, "0.3.0")


def refused(directory: Path) -> str:
    """The error's text; it names the file."""
    with pytest.raises((StoreVersionError, StoreDamagedError)) as raised:
        format_mark.is_marked(FORM, directory)
    assert str(raised.value).startswith(f"{directory / FILE}: ")
    return f"{raised.type.__name__}: {str(raised.value).partition(': ')[2]}"


def test_a_mark_is_read_as_it_was_written(tmp_path: Path) -> None:
    """And a person can read it."""
    assert not format_mark.is_marked(FORM, tmp_path)
    format_mark.write(FORM, tmp_path)
    assert format_mark.is_marked(FORM, tmp_path)
    assert (tmp_path / FILE).read_text().splitlines()[0] == '{"name": "test store", "version": 3, "since": "0.3.0"}'
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_this_version_and_those_before_are_read(tmp_path: Path, version: int) -> None:
    """Which steps lie between them is the store's business."""
    format_mark.write(FORM._replace(version=version), tmp_path)
    assert format_mark.is_marked(FORM, tmp_path)


def test_a_later_version_is_refused_with_what_to_start(tmp_path: Path) -> None:
    """In one sentence: which version it has, which one this program reads, which release reads it."""
    format_mark.write(FORM._replace(version=4, since="0.7.0"), tmp_path)
    assert refused(tmp_path) == (
        "StoreVersionError: the test store has version 4, and this program reads version 3: start offset-adapter 0.7.0 or later; "
        "docs/upgrade.md tells how to go back"
    )


def test_another_form_is_refused(tmp_path: Path) -> None:
    """Two processes with each other's directories."""
    format_mark.write(FORM._replace(name="other store"), tmp_path)
    assert refused(tmp_path) == (
        "StoreVersionError: belongs to another form, 'other store', and this is for 'test store': give this process another place"
    )


def test_a_damaged_mark_is_not_taken_for_another_version(tmp_path: Path) -> None:
    """Wherever a bit is flipped, and wherever it is cut off."""
    whole = format_mark.encode(FORM)
    damaged = [whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at in range(len(whole)) for bit in range(8)]
    for data in (*damaged, *(whole[:size] for size in range(len(whole))), b"\0" * len(whole), whole * 2):
        (tmp_path / FILE).write_bytes(data)
        assert refused(tmp_path).startswith("StoreDamagedError: is damaged, so the version of what it marks is unknown. ")


@pytest.mark.parametrize("line", [b"1", b"{}", b"[]", b"null", b'{"name": "test store", "version": "4", "since": ""}'])
def test_a_mark_of_another_form_than_ours_is_damaged(line: bytes) -> None:
    """Its checksum is right, but it is not of this program."""
    with pytest.raises(StoreDamagedError):
        format_mark.check(FORM, format_mark.marked(line), "here", "")


@pytest.mark.parametrize("version", [0, -1, 1.5, True])
def test_no_version_is_below_the_first(version: int) -> None:
    """Only whole numbers from 1 on are versions."""
    with pytest.raises(StoreDamagedError):
        format_mark.check(FORM, format_mark.encode(FORM._replace(version=version)), "here", "")


def test_a_mark_with_more_fields_is_read() -> None:
    """A later version may say more, and must still be understood, to be refused."""
    line = b'{"name": "test store", "version": 9, "since": "2.0.0", "more": [1]}'
    with pytest.raises(StoreVersionError, match=r"has version 9, .* start offset-adapter 2\.0\.0"):
        format_mark.check(FORM, format_mark.marked(line), "here", "")


def test_what_a_killed_process_left_is_no_mark(tmp_path: Path) -> None:
    """The file appears by a rename."""
    (tmp_path / f"{FILE}.new").write_bytes(format_mark.encode(FORM)[:-3])
    assert not format_mark.is_marked(FORM, tmp_path)
    format_mark.write(FORM, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
