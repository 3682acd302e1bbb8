"""The watermark file: the value that is read after each way in which a write of it can end."""

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.runtime.durable.watermark import Watermark

SLOT = 32


def reopened(path: Path) -> int:
    """The value that the next process reads; it creates a new file if this one is not readable."""
    with closing(Watermark.open(path)) as mark:
        mark.establish()
        return mark.value


def written(path: Path, *values: int) -> bytes:
    """The bytes of the file after these writes."""
    with closing(Watermark.open(path)) as mark:
        mark.establish()
        for value in values:
            mark.advance(value)
    return path.read_bytes()


def test_a_missing_file_is_made_and_says_0(tmp_path: Path) -> None:
    """A new store has acknowledged nothing; space for both slots is allocated at once."""
    path = tmp_path / "watermark"
    assert reopened(path) == 0
    assert path.stat().st_size == 2 * SLOT
    assert path.stat().st_mode & 0o777 == 0o600
    with closing(Watermark.open(path)) as mark:
        assert mark.intact


def test_a_file_that_says_nothing_stays_until_a_new_one_is_put_in_its_place(tmp_path: Path) -> None:
    """If the process is killed before it records the loss, the next start sees the damage again."""
    path = tmp_path / "watermark"
    for content in (None, b"", b"\0" * 64, b"garbage" * 9):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        for _ in range(2):
            with closing(Watermark.open(path)) as mark:
                assert (mark.intact, mark.value) == (False, 0)
            assert (path.read_bytes() if path.exists() else None) == content
        assert reopened(path) == 0
        with closing(Watermark.open(path)) as mark:
            assert mark.intact


def test_a_file_that_was_unlinked_or_replaced_is_not_in_place(tmp_path: Path) -> None:
    """Values written to it would never be read."""
    path = tmp_path / "watermark"
    with closing(Watermark.open(path)) as mark:
        mark.establish()
        assert mark.is_in_place()
        path.rename(tmp_path / "away")
        assert not mark.is_in_place()
        path.write_bytes((tmp_path / "away").read_bytes())
        assert not mark.is_in_place()
        (tmp_path / "away").rename(path)
        assert mark.is_in_place()


@pytest.mark.parametrize("values", [[1], [1, 2], [1, 2, 3], [7, 2**64 - 1]])
def test_the_newest_value_survives_without_a_sync_or_a_close(tmp_path: Path, values: list[int]) -> None:
    """The page cache keeps it when the process is killed (1)."""
    path = tmp_path / "watermark"
    mark = Watermark.open(path)
    mark.establish()
    for value in values:
        mark.advance(value)
    assert mark.value == values[-1]
    assert reopened(path) == values[-1]
    mark.close()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_torn_write_leaves_the_value_before(tmp_path: Path, count: int) -> None:
    """Slots alternate, so damage of one leaves the previous value; the write behind that counts as acknowledged."""
    path = tmp_path / "watermark"
    values = [300 + at for at in range(count)]
    before = written(path, *values)
    after = written(path, 2**63 + 77)
    at = next(index for index in range(2 * SLOT) if before[index] != after[index]) // SLOT * SLOT
    for keep in range(SLOT):
        torn = before[:at] + after[at : at + keep] + before[at + keep :]
        path.write_bytes(torn)
        # The padding at the end carries nothing: without it the new value is there.
        assert reopened(path) == (2**63 + 77 if torn == after else values[-1] + (torn != before)), keep


@pytest.mark.parametrize("slot", [0, 1])
def test_a_damaged_slot_reads_as_a_write_behind_the_other_one_and_is_overwritten_first(tmp_path: Path, slot: int) -> None:
    """It may have been the newer one: read as the other one, it hid the loss of what it had acknowledged."""
    path = tmp_path / "watermark"
    data = bytearray(written(path, 8, 9))
    data[slot * SLOT + 9] ^= 0x40
    path.write_bytes(data)
    with closing(Watermark.open(path)) as mark:
        intact = (9, 8)[slot]
        assert mark.value == intact + 1
        mark.advance(10)
    assert reopened(path) == 10
    torn = bytearray(path.read_bytes())
    torn[slot * SLOT : slot * SLOT + SLOT] = bytes(SLOT)
    path.write_bytes(torn)
    assert reopened(path) == intact + 1


@pytest.mark.parametrize(("size", "whole"), [(0, 0), (1, 0), (19, 0), (20, 6), (32, 6), (51, 6), (52, 6), (63, 6)])
def test_a_short_file_says_what_is_whole_in_it_and_is_filled_up(tmp_path: Path, size: int, whole: int) -> None:
    """A file whose first write was cut short reads as 0, and can be written again."""
    path = tmp_path / "watermark"
    path.write_bytes(written(path, 5, 6)[:size])
    with closing(Watermark.open(path)) as mark:
        assert mark.value == whole
        mark.advance(7)
    assert reopened(path) == 7
    assert path.stat().st_size == 2 * SLOT


@given(data=st.binary(max_size=80))
def test_garbage_says_0(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Only slots with the magic number and a valid checksum count."""
    path = tmp_path_factory.getbasetemp() / "garbage-watermark"
    path.write_bytes(data)
    assert reopened(path) == 0


def test_a_sync_keeps_the_value(tmp_path: Path) -> None:
    """A sync makes the value durable and does not change it."""
    with closing(Watermark.open(tmp_path / "watermark")) as mark:
        mark.advance(3)
        mark.sync()
        assert mark.value == 3
    assert reopened(tmp_path / "watermark") == 3


def test_a_write_that_fails_is_told(tmp_path: Path) -> None:
    """The exception lets the store fail."""
    mark = Watermark.open(tmp_path / "watermark")
    mark.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        mark.advance(1)
