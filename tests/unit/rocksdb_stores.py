"""RocketMQ's RocksDB stores for tests: real ones, unpacked, and made ones."""

import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from adapter.formats import rocksdb_copy
from adapter.formats import rocksdb_layouts as layouts
from adapter.formats.rocketmq_rocksdb import Layout, read
from adapter.formats.rocksdb_layouts import Entry
from adapter.formats.rows import Naming, OffsetRow, Reject
from adapter.model.queues import QUEUE_MAX
from adapter.model.records import LONG_MAX
from adapter.runtime.durable import rocks

DATA = Path(__file__).parents[1] / "data/rocketmq"
TABLE = sorted(
    (group, f"{topic}/{queue}", int(offset))
    for group, topic, queue, offset in (line.split("\t") for line in (DATA / "offsets-5x.tsv").read_text().splitlines())
)
REAL = ["store-v1", "store-v2", "store-v2-killed", "store-single"]
V1_KEY, V1_VALUE = b"T@g", b'{"offsetTable":{"3":42}}'
V2_KEY, V2_VALUE = bytes.fromhex("0100010200016701000154010000" + "0003"), bytes.fromhex("000000000000002a")
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="@/", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
ENTRIES = st.builds(Entry, NAMES, NAMES, st.integers(0, QUEUE_MAX), st.integers(0, LONG_MAX))

each_layout = pytest.mark.parametrize("layout", get_args(Layout))
each_real = pytest.mark.parametrize("name", REAL)


def real(name: str, directory: Path) -> Path:
    """A broker's store, unpacked."""
    (directory / name).mkdir()
    with tarfile.open(DATA / f"{name}.tar.gz") as tar:
        for member in tar:
            part = tar.extractfile(member)
            assert part is not None
            (directory / name / member.name).write_bytes(part.read())
    return directory / name


def made(
    path: Path, rows: Mapping[bytes, bytes], families: tuple[str, ...] = ("default",), options: Options | None = None
) -> Path:
    """A store with these rows, in tables."""
    with Rdict(str(path), options=options or rocks.options(), column_families={name: rocks.options() for name in families}) as db:
        for key, value in rows.items():
            db[key] = value
        db.flush()
    return path


def read_all(path: Path, naming: Naming = Naming()) -> tuple[list[tuple[str, str, int]], list[Reject]]:  # noqa: B008 - frozen
    """Offsets as (group, shard, offset), sorted, and rejects."""
    found = list(read(path, naming))
    rows = sorted((row.group, row.shard, row.offset) for row in found if isinstance(row, OffsetRow))
    return rows, [reject for reject in found if isinstance(reject, Reject)]


def content(path: Path) -> dict[bytes, bytes]:
    """All rows of a store, without the version of its data."""
    with rocksdb_copy.opened(path) as db:
        return {key: value for key, value in rocks.scan(db, b"", b"") if not key.endswith(b"data_version")}


def decoded_v2(key: bytes, value: bytes) -> Entry:
    """A row as an entry."""
    return Entry(*layouts.names_v2(key[: -layouts.QUEUE_BYTES]), *layouts.queue_v2(key, value))


def files(directory: Path) -> dict[str, tuple[bytes, int]]:
    """The files of a directory with their times of change."""
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in directory.iterdir()}
