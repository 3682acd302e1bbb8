"""An open database stays with its directory, even if its path is replaced; it is opened once; a scan is whole or an error."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import Rdict

from adapter.errors import StorageFailedError, StoreDamagedError, StoreLockedError
from adapter.runtime.durable import rocks

FAMILIES = ("default", "more")


def opened(path: Path) -> rocks.Database:
    """A database of two column families."""
    return rocks.open_store(path, FAMILIES, "")


def contents(directory: Path) -> dict[str, bytes]:
    """The bytes of each file in a directory."""
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def descriptors() -> list[Path]:
    """The open descriptors of this process."""
    return sorted(Path("/proc/self/fd").iterdir())


def rows(path: Path) -> dict[bytes, bytes]:
    """All rows of a database, which is opened and closed for it."""
    store = opened(path)
    found = dict(rocks.scan(store.db, b"\0", b""))
    store.close()
    return found


def test_another_store_at_the_path_is_left_as_it_is(tmp_path: Path) -> None:
    """Files opened by path would be written into that store, and RocksDB would delete files it does not know (1)."""
    path, away = tmp_path / "db", tmp_path / "away"
    other = opened(tmp_path / "other")
    for number in range(3):  # tables, which a database that has other numbers for its own takes for left over
        other.db.put(b"other", b"%d" % number)
        other.db.flush()
    other.close()
    store = opened(path)
    store.db.put(b"before", b"1")
    path.rename(away)
    (tmp_path / "other").rename(path)
    was = contents(path)
    store.db.put(b"after", b"2")
    store.db.flush()
    store.db.compact_range(None, None)
    store.close()
    assert contents(path) == was
    assert rows(away) == {b"before": b"1", b"after": b"2"}
    assert rows(path) == {b"other": b"2"}


def test_an_empty_directory_at_the_path_stays_empty(tmp_path: Path) -> None:
    """As when a volume is unmounted under the process."""
    path = tmp_path / "db"
    store = opened(path)
    store.db.put(b"before", b"1")
    path.rename(tmp_path / "away")
    path.mkdir()
    store.close()
    assert contents(path) == {}
    assert rows(tmp_path / "away") == {b"before": b"1"}


def test_a_database_is_opened_once_whatever_its_name(tmp_path: Path) -> None:
    """Two instances would overwrite each other's files. The second open fails until the first is completely released."""
    path = tmp_path / "db"
    store = opened(path)
    store.db.put(b"a", b"1")
    reading = rocks.scan(store.db, b"\0", b"")
    assert next(reading) == (b"a", b"1")
    path.rename(tmp_path / "moved")
    with pytest.raises(StoreLockedError, match="has not yet closed"):
        opened(tmp_path / "moved")
    store.close()
    with pytest.raises(StoreLockedError, match="has not yet closed"):
        opened(tmp_path / "moved")
    del reading
    assert rows(tmp_path / "moved") == {b"a": b"1"}


def test_a_closed_database_leaves_no_descriptor(tmp_path: Path) -> None:
    """A long-lived process opens its store again after each disk failure."""
    before = descriptors()
    for _ in range(3):
        rows(tmp_path / "db")
    assert set(descriptors()) <= set(before)  # a collection may close what others left


def test_the_descriptor_stays_while_something_still_uses_the_database(tmp_path: Path) -> None:
    """Otherwise another file could get its number, and RocksDB would write there when it closes."""
    store = opened(tmp_path / "db")
    store.db.put(b"a", b"1")
    reading = rocks.scan(store.db, b"\0", b"")
    next(reading)
    store.close()
    assert Path(f"/proc/self/fd/{store.directory}").readlink() == tmp_path / "db"
    del reading


def test_errors_name_the_path_of_the_directory(tmp_path: Path) -> None:
    """The number of a file descriptor would not help an operator."""
    path = tmp_path / "db"
    opened(path).close()
    (manifest,) = path.glob("MANIFEST-*")
    manifest.write_bytes(b"")
    with pytest.raises(StoreDamagedError) as caught:
        opened(path)
    assert str(path) in str(caught.value)
    assert "/proc" not in str(caught.value)


def test_errors_of_an_open_database_name_where_it_is_now(tmp_path: Path) -> None:
    """If the directory was moved after the open, they have the new path."""
    path = tmp_path / "db"
    store = opened(path)
    store.db.put(b"a", b"1")
    path.rename(tmp_path / "away")
    shutil.rmtree(tmp_path / "away")
    with pytest.raises((StorageFailedError, StoreDamagedError)) as caught:
        rocks.guarded(store.db.flush)
    assert str(tmp_path / "away") in str(caught.value)
    with pytest.raises((StorageFailedError, StoreDamagedError)):
        store.close()


ROWS = [(b"%05d" % number, bytes(40)) for number in range(20_000)]
Reading = Callable[[Rdict, bytes, bytes], list[bytes]]
READINGS: dict[str, Reading] = {
    "scan": lambda db, start, end: [key for key, _ in rocks.scan(db, start, end)],
    "slices": lambda db, start, end: [key for rows in rocks.scan_slices(db, start, end, 300) for key, _ in rows],
    "keys": lambda db, start, end: [key for keys in rocks.key_slices(db, start, end, 300) for key in keys],
}


def filled(path: Path) -> rocks.Database:
    """A database whose rows are in a table."""
    store = opened(path)
    for key, value in ROWS:
        store.db.put(key, value)
    store.db.flush()
    return store


@pytest.mark.parametrize("name", READINGS)
def test_a_range_is_read_from_its_start_up_to_its_end(tmp_path: Path, name: str) -> None:
    """Without the end; an empty end is that of the database, an empty range has no rows."""
    store = filled(tmp_path / "db")
    keys = [key for key, _ in ROWS]
    for start, end in (
        (b"", b""),
        (b"00007", b"00951"),
        (b"19990", b""),
        (b"00300", b"00600"),
        (b"7", b""),
        (b"00001", b"00001"),
    ):
        wanted = [key for key in keys if start <= key and (not end or key < end)]
        assert READINGS[name](store.db, start, end) == wanted
    assert [len(rows) for rows in rocks.scan_slices(store.db, b"", b"00700", 300)] == [300, 300, 100]
    store.close()


@pytest.mark.parametrize("name", READINGS)
def test_a_damaged_table_is_an_error_and_never_a_short_read(tmp_path: Path, name: str) -> None:
    """Rocksdict's own iterators end at a block that cannot be read, as if nothing followed."""
    filled(tmp_path / "db").close()
    (table,) = (tmp_path / "db").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    store = opened(tmp_path / "db")
    assert len(list(store.db.keys())) < len(ROWS)
    with pytest.raises(StoreDamagedError, match="block checksum mismatch"):
        READINGS[name](store.db, b"", b"")
    store.close()


def test_slices_show_one_instant(tmp_path: Path) -> None:
    """What is written after the first of them is not in the others, and does not end them with an error."""
    store = filled(tmp_path / "db")
    slices = rocks.scan_slices(store.db, b"", b"", 300)
    found = dict(next(slices))
    store.db.put(b"19999", b"changed")
    store.db.put(b"20000", b"new")
    store.db.delete(b"10000")
    for rows in slices:
        found.update(rows)
    assert found == dict(ROWS)
    del slices
    store.close()


def keys_between(db: Rdict, *keys: str) -> list[str] | None:
    """The keys that `rows_between` finds, without their zeros in front."""
    found = rocks.rows_between(db, [f"{key:>05}".encode() for key in keys])
    assert not found or all(dict(ROWS)[key] == value for key, value in found.items())
    return None if found is None else sorted(key.decode() for key in found)


def test_the_rows_at_some_keys_are_found_with_one_look(tmp_path: Path) -> None:
    """All that are there from the first to the last key, also if some of the keys are not."""
    store = filled(tmp_path / "db")
    assert keys_between(store.db, "00007", "00008", "00009") == ["00007", "00008", "00009"]
    assert keys_between(store.db, "00007", "00007x", "00007y") == ["00007"]
    assert keys_between(store.db, "00007a", "00007x") == []
    assert keys_between(store.db, "x", "y") == []
    assert keys_between(store.db, "00007") == ["00007"]
    store.close()


def test_rows_that_are_not_worth_a_look_are_not_read(tmp_path: Path) -> None:
    """More rows than keys, another row in front, or many deleted ones: the look ends, and has not read on."""
    store = filled(tmp_path / "db")
    assert keys_between(store.db, "00007", "00009") is None
    assert keys_between(store.db, "00006x", "00007", "00008") is None
    for key, _ in ROWS[:2_000]:
        store.db.delete(key)
    assert keys_between(store.db, "00007", "00008") == []
    assert keys_between(store.db, "00000", "01500") is None
    store.close()


def test_a_damaged_table_is_never_taken_for_an_empty_one(tmp_path: Path) -> None:
    """Rows that cannot be read may be there."""
    filled(tmp_path / "db").close()
    (table,) = (tmp_path / "db").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    store = opened(tmp_path / "db")
    lost = ROWS[len(list(store.db.keys()))][0].decode()
    assert keys_between(store.db, lost, f"{lost}x") is None
    assert keys_between(store.db, f"{lost}x", f"{lost}y") is None
    store.close()
