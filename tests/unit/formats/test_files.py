"""Files of offsets: the format is detected, a file is written completely or not at all, and a readable backup is mentioned."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.errors import InvalidInputError, NotReadyError
from adapter.formats import files
from adapter.formats.files import Format
from adapter.formats.rows import Naming, NotReadableError, OffsetRow
from adapter.model.records import U64_MAX, OffsetKey
from tests.unit.formats.samples import TEXTUAL, N

GOOD = b'{"offsetTable":{"T@g":{0:5}}}'
ROWS = [OffsetRow(N, "g", "b/T/0", 5, topic="T"), OffsetRow(N, "g", "b/T/1", 6, topic="T", partition=1)]
NAMING = Naming(group="g", broker="b")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("consumerOffset.json", Format.ROCKETMQ_BROKER),
        ("lmqConsumerOffset.json", Format.ROCKETMQ_BROKER),
        ("consumerOffset.json.bak", Format.ROCKETMQ_BROKER),
        ("offsets.json", Format.ROCKETMQ_CLIENT),
        ("offsets.json.bak", Format.ROCKETMQ_CLIENT),
        ("a.json", Format.JSON),
        ("A.JSON", Format.JSON),
        ("a.csv", Format.KAFKA_CSV),
        ("offsets", Format.KAFKA_CSV),
        ("-", Format.KAFKA_CSV),
        (".", Format.ROCKETMQ_ROCKSDB),
    ],
)
def test_the_name_says_the_format(tmp_path: Path, name: str, kind: Format) -> None:
    """Kafka's CSV if the name does not tell, RocksDB for a directory."""
    assert Format.of(tmp_path / name) is kind


def test_a_rows_key_is_what_it_is_stored_under() -> None:
    """Namespace, group and shard."""
    assert ROWS[0].key == OffsetKey(N, "g", "b/T/0")


@pytest.mark.parametrize("kind", TEXTUAL)
def test_what_is_written_is_read(tmp_path: Path, kind: Format) -> None:
    """For every format; the new file replaces the old one."""
    path = tmp_path / "file"
    path.write_bytes(b"before")
    rows = [row if kind is not Format.KAFKA_CSV else row._replace(topic="b/T") for row in ROWS]
    assert files.write(path, kind, rows, NAMING) == 2
    assert list(files.read(path, kind, NAMING)) == rows
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", [kind for kind in TEXTUAL if kind is not Format.JSON])
def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path, kind: Format) -> None:
    """One offset that the format cannot hold leaves the old file unchanged."""
    path = tmp_path / "file"
    path.write_bytes(b"before")
    rows = [*ROWS, ROWS[0]._replace(shard="b/T/2", offset=U64_MAX), ROWS[0]._replace(shard="b/T/3")]
    with pytest.raises(InvalidInputError, match=f"^shard 'b/T/2' of group 'g' has offset {U64_MAX}") as raised:
        files.write(path, kind, rows, NAMING)
    assert len(str(raised.value).splitlines()) == 1
    assert [(path, path.read_bytes()) for path in tmp_path.iterdir()] == [(path, b"before")]


def test_rows_that_fail_to_come_leave_the_file_as_it_was(tmp_path: Path) -> None:
    """The adapter that supplies the rows may stop in the middle."""
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def rows() -> Iterator[OffsetRow]:
        yield ROWS[0]
        raise NotReadyError("it went away")

    with pytest.raises(NotReadyError):
        files.write(path, Format.JSON, rows(), NAMING)
    assert [(path, path.read_bytes()) for path in tmp_path.iterdir()] == [(path, b"before")]


@pytest.mark.parametrize("kind", Format)
def test_without_rows_nothing_is_written(tmp_path: Path, kind: Format) -> None:
    """An empty file must not replace a good one."""
    assert files.write(tmp_path / "file", kind, [], NAMING) == 0
    assert list(tmp_path.iterdir()) == []


def test_rows_come_before_the_end_of_the_file_is_read(tmp_path: Path) -> None:
    """So memory does not grow with the file; a torn end is reported when it is reached."""
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(GOOD[:-3] + b",")
    rows = files.read(path, Format.ROCKETMQ_BROKER, Naming())
    assert next(rows) == OffsetRow(N, "g", "T/0", 5, topic="T")
    with pytest.raises(NotReadableError, match="is not JSON, or torn: line 1: ends where a key should stand"):
        next(rows)


@pytest.mark.parametrize("kind", TEXTUAL)
def test_a_file_that_cannot_be_opened_says_why(tmp_path: Path, kind: Format) -> None:
    """It does not exist, or is a directory."""
    with pytest.raises(NotReadableError, match=r"^cannot be read: No such file or directory$"):
        next(files.read(tmp_path / "gone", kind, Naming()))
    with pytest.raises(NotReadableError, match=r"^cannot be read: Is a directory$"):
        next(files.read(tmp_path, kind, Naming()))
    with pytest.raises(NotReadableError, match=r"^cannot be read: Is a directory$"):
        next(files.read(Path("/"), kind, Naming()))


@pytest.mark.parametrize("kind", [Format.ROCKETMQ_BROKER, Format.ROCKETMQ_CLIENT])
@pytest.mark.parametrize("torn", [b"", GOOD[:20], b"\xff"])
def test_a_torn_file_says_that_its_backup_can_be_read(tmp_path: Path, kind: Format, torn: bytes) -> None:
    """A person has to choose between them (RocketMQ: ConfigManager.load). Only a complete backup is mentioned."""
    path, backup = tmp_path / "offsets.json", tmp_path / "offsets.json.bak"
    path.write_bytes(torn)

    def said() -> str:
        with pytest.raises(NotReadableError) as raised:
            list(files.read(path, kind, Naming()))
        return str(raised.value)

    alone = said()
    assert "bak" not in alone
    backup.write_bytes(b'{"offsetTable":{}')
    assert said() == alone
    backup.write_bytes(b'{"offsetTable":{}}')
    assert said() == f"{alone}; offsets.json.bak beside it can be read"


BY_CONTENT = {
    Format.ROCKETMQ_BROKER: GOOD,
    Format.ROCKETMQ_CLIENT: b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"t"}:42}}',
    Format.KAFKA_CSV: b"g,t,3,42\n",
    Format.JSON: b'[{"group":"g","shard":"t/3","offset":42}]',
}


@pytest.mark.parametrize("kind", BY_CONTENT)
@pytest.mark.parametrize("read_as", [kind for kind in Format if kind is not Format.ROCKETMQ_ROCKSDB])
def test_a_file_that_was_read_in_another_format_is_recognised_by_its_content(
    tmp_path: Path, kind: Format, read_as: Format
) -> None:
    """Only as another one than it was read in, and only as one: what does not look like any format is not guessed."""
    path = tmp_path / "offsets"
    path.write_bytes(BY_CONTENT[kind])
    assert files.recognised(path, read_as) is (None if kind is read_as else kind)
    path.write_bytes(b"hello\n")
    assert files.recognised(path, read_as) is None
