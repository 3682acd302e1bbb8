"""The files of an import: which are read, how a CSV is divided, and what happens to a file that cannot be read."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import AdapterError, ConfigError
from adapter.pipeline.config import OffsetFormat
from adapter.pipeline.places import Place
from adapter.pipeline.transfer import import_files
from adapter.pipeline.transfer.import_entries import csv_entries, entries, json_entries
from adapter.pipeline.transfer.import_files import Piece, cut
from tests.pipeline.object_store import SECRET, s3_bucket

GOOD = b'{"offsetTable":{"T@g":{0:5}}}'


def made(path: Path, data: bytes = GOOD) -> Path:
    """Create a file with all directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def find_files(paths: list[Path], kind: OffsetFormat) -> list[Path]:
    """The files of an import by paths."""
    return [place.path for place in import_files.find_files(map(Place.of, paths), kind)]


def texts(path: Path, size: int) -> list[tuple[int, str, str | None]]:
    """The lines of a file that was divided: number, text, reason if the text is not UTF-8."""
    found = []
    for piece in cut(Place.of(path), size):
        data = path.read_bytes()[piece.start : piece.end]
        for row in csv_entries(piece, data).to_pylist():
            reason = row["reason"] if "UTF-8" in (row["reason"] or "") else None
            found.append((int(row["place"].removeprefix("line ")), row["text"], reason))
    return found


def read(path: Path, kind: OffsetFormat) -> list[dict[str, Any]]:
    """The entries of a JSON file."""
    return [row for batch in json_entries(Place.of(path), kind) for row in batch.to_pylist()]


def test_a_directory_is_searched_for_the_files_of_the_format(tmp_path: Path) -> None:
    """Recursively, with any name; also a file of which only the backup is left."""
    first = made(tmp_path / "a" / "config" / "consumerOffset.json")
    made(tmp_path / "a" / "config" / "topics.json")
    second = made(tmp_path / "_b" / ".config" / "lmqConsumerOffset.json.bak").with_suffix("")
    made(first.with_name("consumerOffset.json.bak"))
    assert find_files([tmp_path], "rocketmq") == sorted([first, second])
    assert find_files([tmp_path, first], "rocketmq") == sorted([first, second])
    client = made(tmp_path / "10.0.0.1@7" / "group" / "offsets.json")
    assert find_files([tmp_path], "rocketmq-client") == [client]


def test_a_brokers_file_that_is_not_in_use_is_told(tmp_path: Path) -> None:
    """Of a path by the time when each was written; behind a URL, where that is not known, if both are read."""
    alive, dead = made(tmp_path / "a" / "lmqConsumerOffset.json"), made(tmp_path / "a" / "consumerOffset.json")
    os.utime(dead, (1, 1))
    alone = made(tmp_path / "b" / "consumerOffset.json")
    (line,) = import_files.doubts([Place.of(path) for path in (alive, dead, alone)])
    assert line.startswith(f"{dead}: lmqConsumerOffset.json beside it was written later")
    assert import_files.doubts([Place.of(alive)]) == []
    urls = [
        Place.of(f"s3://bucket/{name}") for name in ("consumerOffset.json", "lmqConsumerOffset.json", "c/consumerOffset.json")
    ]
    (line,) = import_files.doubts(urls)
    assert line.startswith("s3://bucket/consumerOffset.json: lmqConsumerOffset.json beside it is read, too")
    assert import_files.doubts(urls[1:]) == []


def test_a_link_out_of_a_directory_is_refused_by_its_name(tmp_path: Path) -> None:
    """Whoever may write there must not choose other files to be read. Links within it, and named links, are read."""
    named, elsewhere = tmp_path / "named", tmp_path / "elsewhere.json"
    (named / "a").mkdir(parents=True)
    (named / "a" / "consumerOffset.json").write_text("{}")
    elsewhere.write_text("{}")
    (named / "consumerOffset.json").symlink_to(named / "a" / "consumerOffset.json")
    assert len(find_files([named], "rocketmq")) == 2
    link = named / "a" / "lmqConsumerOffset.json"
    link.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match=re.escape(f"{link}: links to {elsewhere}, out of {named}, and is not followed")):
        find_files([named], "rocketmq")
    assert find_files([link], "rocketmq") == [link]


def test_a_file_or_a_pattern_is_taken_whatever_its_name_is(tmp_path: Path) -> None:
    """The person who named it chose it."""
    one, two = made(tmp_path / "one.backup"), made(tmp_path / "sub" / "two.backup")
    assert find_files([one], "rocketmq") == [one]
    assert find_files([tmp_path / "**" / "*.backup"], "rocketmq") == [one, two]
    odd = made(tmp_path / "odd[1].json")
    assert find_files([odd], "rocketmq") == [odd]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none.json", "there is no such file or directory"),
        ("*.json", "no file matches"),
        ("", "has no file named consumerOffset.json or lmqConsumerOffset.json; name the files, or a pattern"),
    ],
)
def test_a_place_without_files_is_an_error(tmp_path: Path, name: str, problem: str) -> None:
    """Otherwise a wrong path would import nothing and report success."""
    with pytest.raises(ConfigError, match="files") as raised:
        find_files([tmp_path / name], "rocketmq")
    assert str(raised.value) == f"[import] files: {tmp_path / name}: {problem}"


@pytest.mark.parametrize("torn", [b"", GOOD[:20], None])
def test_the_backup_is_taken_for_a_file_that_is_torn(tmp_path: Path, torn: bytes | None) -> None:
    """As RocketMQ does, but with a warning."""
    path = tmp_path / "consumerOffset.json"
    made(tmp_path / "consumerOffset.json.bak")
    if torn is not None:
        made(path, torn)
    said, row = read(path, "rocketmq")
    assert said["place"] == ""
    assert said["reason"].endswith("; consumerOffset.json.bak is taken instead")
    assert (row["group"], row["offset"]) == ("g", 5)


def test_a_torn_file_without_a_good_backup_is_a_reject(tmp_path: Path) -> None:
    """With the problem of the file itself, not of the backup."""
    path = made(tmp_path / "offsets.json", b"")
    assert [row["reason"] for row in read(path, "rocketmq-client")] == ["is empty"]
    made(tmp_path / "offsets.json.bak", b"{")
    assert [row["reason"] for row in read(path, "rocketmq-client")] == ["is empty"]


def test_a_file_that_a_task_does_not_find_is_no_reject(tmp_path: Path) -> None:
    """The driver has found it: this machine may lack the mount, and the others' files must not be imported without its rows."""
    for kind in ("rocketmq", "rocketmq-client"):
        with pytest.raises(AdapterError, match=r"gone: is not seen by the machine \S+, or was deleted meanwhile"):
            read(tmp_path / "gone", kind)
    with pytest.raises(AdapterError, match=r"gone: is not seen by the machine"):
        list(entries(Piece(Place.of(tmp_path / "gone"), 1, 0, 9), "kafka-csv"))
    with pytest.raises(ConfigError, match=r"gone: cannot be read: No such file or directory"):
        cut(Place.of(tmp_path / "gone"))


@given(st.lists(st.text(st.sampled_from("ab,\u00e4\r "), max_size=5), max_size=12), st.booleans(), st.integers(1, 12))
def test_pieces_give_every_line_once_with_its_number(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], end: bool, size: int
) -> None:
    """Wherever the cuts are, with or without a final line end. Blank lines are counted and skipped."""
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes("\n".join(rows).encode() + (b"\n" if end else b""))
    wanted = [(number, row, None) for number, row in enumerate(rows, start=1) if row.strip()]
    assert texts(path, size) == wanted


def test_a_line_that_is_not_utf8_is_a_reject_and_the_others_are_not(tmp_path: Path) -> None:
    """The reject has the place in the line."""
    path = made(tmp_path / "a.csv", b"a\nb\xff\nc\n")
    assert texts(path, 100) == [(1, "a", None), (2, "b\ufffd", "is not UTF-8 at byte 2"), (3, "c", None)]


def test_marks_at_the_beginning_of_a_file_are_known() -> None:
    """A byte order mark is not part of a name; UTF-16 is reported as such."""
    whole = Piece(Place("f"), 1, 0, 9)
    (row,) = csv_entries(whole, b"\xef\xbb\xbfg,t,0,1\n").to_pylist()
    assert (row["file"], row["place"], row["group"], row["reason"]) == ("f", "line 1", "g", None)
    (row,) = csv_entries(whole, b"\xff\xfea\0").to_pylist()
    assert (row["place"], row["reason"]) == ("", "is UTF-16; save it as UTF-8")
    (row,) = csv_entries(Piece(Place("f"), 5, 100, 109), b"\xef\xbb\xbfg,t,0,1\n").to_pylist()
    assert (row["place"], row["group"]) == ("line 5", "\ufeffg")


def test_files_behind_a_url_are_found_and_read_as_those_of_a_path() -> None:
    """By name, by directory, by pattern, by backup; no name of a file has the credentials of the URL."""
    with s3_bucket() as bucket:
        for name in ("a/consumerOffset.json", "b/c d/consumerOffset.json.bak", "b/c d/topics.json", "b/x.csv"):
            (bucket / name).write(b"g,t,0,1\n" if name.endswith("csv") else GOOD)

        def found(url: str, kind: OffsetFormat = "rocketmq") -> list[str]:
            return [str(place).partition("?")[0] for place in import_files.find_files([Place.of(url)], kind)]

        both = ["s3a://bucket/a/consumerOffset.json", "s3a://bucket/b/c%20d/consumerOffset.json"]
        assert found(bucket.url) == both
        assert found(bucket.url.replace("bucket?", "bucket/**/consumerOffset.json*?")) == both
        assert found(bucket.url.replace("bucket?", "bucket/[b]/*/consumer*?")) == both[1:]
        assert found((bucket / "b/c d/consumerOffset.json").url) == both[1:]
        assert found((bucket / "b").url, "kafka-csv") == ["s3a://bucket/b/x.csv"]
        (piece,) = import_files.pieces([bucket / "b/x.csv"], "kafka-csv")
        assert [(row["group"], row["offset"]) for batch in entries(piece, "kafka-csv") for row in batch.to_pylist()] == [("g", 1)]
        rejected, row = [
            row for batch in json_entries(bucket / "b/c d/consumerOffset.json", "rocketmq") for row in batch.to_pylist()
        ]
        assert rejected["reason"].endswith("; consumerOffset.json.bak is taken instead")
        assert (row["group"], row["offset"]) == ("g", 5)
        assert SECRET not in rejected["reason"] + rejected["file"] + row["file"]
        for url, problem in (((bucket / "none").url, "there is no such file or directory"), ((bucket / "b").url, "has no file")):
            with pytest.raises(ConfigError, match=f"^\\[import\\] files: s3a://bucket/.*: {problem}") as raised:
                found(url, "rocketmq-client")
            assert SECRET not in str(raised.value)


def test_a_url_that_cannot_be_read_is_an_error_with_its_name() -> None:
    """The setting and the place, without credentials: here the bucket is not there."""
    with s3_bucket() as bucket:
        url = bucket.url.replace("@bucket", "@nobody")
        with pytest.raises(ConfigError, match=r"^\[import\] files: s3a://nobody") as raised:
            import_files.find_files([Place.of(url)], "rocketmq")
        assert SECRET not in str(raised.value)
        (bucket / "a.csv").write(b"g,t,0,1\n")
        (gone,) = import_files.pieces([bucket / "a.csv"], "kafka-csv")
        (bucket / "a.csv").delete()
        with pytest.raises(AdapterError, match=r"^s3a://bucket/a\.csv\?\S+: is not seen by the machine") as unseen:
            list(entries(gone, "kafka-csv"))
        assert SECRET not in str(unseen.value)


def test_a_last_line_without_a_line_end_is_a_reject(tmp_path: Path) -> None:
    """The file may be cut in its number. However it is divided."""
    path = made(tmp_path / "a.csv", b"g,t,0,1\ng,t,1,1234")
    for size in (4, 8, 1_000):
        rows = [
            row
            for piece in cut(Place.of(path), size)
            for row in csv_entries(piece, path.read_bytes()[piece.start : piece.end]).to_pylist()
        ]
        assert [(row["place"], row["reason"]) for row in rows] == [
            ("line 1", None),
            ("line 2", "has no line end: the file may be cut here; if it is whole, end the line"),
        ]
