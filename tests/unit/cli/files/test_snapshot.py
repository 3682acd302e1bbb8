"""`offset-adapter snapshot` with adapters that send too few, too many or invalid records: it never leaves an incomplete file."""

import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import grpc
import grpc.aio
import pyarrow.parquet as pq
import pytest

from adapter.cli.connection import CallError, Target
from adapter.cli.files import snapshot
from adapter.cli.files.snapshot import take
from adapter.cli.files.snapshot_file import ROW_GROUP
from adapter.errors import AdapterError, InvalidInputError, StoreDamagedError
from adapter.model.codec import encode_key, encode_record
from adapter.model.records import U64_MAX
from adapter.model.schemas import BROKER, SNAPSHOT, TAKEN_AT_MS, VERSION_OF_SNAPSHOT
from adapter.rpc import offsets_pb
from adapter.runtime.serving.statuses import Context
from tests.unit.helpers import key, record, tombstone

Reply = offsets_pb.SnapshotOffsetsReply
HEAD = Reply.Head(taken_at_ms=1_700_000_000_123, records=3, flushed_seq=2, broker="a/b 1")
KEYS = [encode_key(key(name)) for name in "abc"]
RECORDS = [
    encode_record(record(7, 4, metadata="m", topic="t", partition=3, committed_at_ms=1_700_000_000_001), 1),
    encode_record(tombstone(1 << 32), 2),
    encode_record(record(U64_MAX), 3),
]
WHOLE = [Reply(head=HEAD), Reply(keys=KEYS[:2], records=RECORDS[:2]), Reply(keys=KEYS[2:], records=RECORDS[2:])]


class Adapter:
    """An adapter that sends these replies, and then ends the call, fails it, or leaves it open."""

    def __init__(self, replies: Sequence[Reply], end: grpc.StatusCode | None = None, *, hangs: bool = False) -> None:
        self._replies = replies
        self._end = end
        self._hangs = hangs

    async def snapshot(self, _: object, context: Context) -> AsyncIterator[Reply]:
        """The method."""
        for reply in self._replies:
            yield reply
        if self._hangs:
            await anyio.sleep_forever()
        if self._end:
            await context.abort(self._end, "by the test")


@asynccontextmanager
async def serving(adapter: Adapter, directory: Path) -> AsyncIterator[Target]:
    """Serve it on a Unix socket."""
    server = grpc.aio.server()
    method = grpc.unary_stream_rpc_method_handler(
        adapter.snapshot,
        request_deserializer=offsets_pb.SnapshotOffsetsRequest.FromString,
        response_serializer=Reply.SerializeToString,
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("offsets.v1.OffsetAdmin", {"SnapshotOffsets": method})])
    address = f"unix:{directory / 'a.sock'}"
    server.add_insecure_port(address)
    await server.start()
    try:
        yield Target(address)
    finally:
        await server.stop(0)


def entries(directory: Path) -> list[Path]:
    """The content of a snapshot."""
    return list(directory.iterdir())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An empty directory for the output."""
    path = tmp_path / "out"
    path.mkdir()
    return path


async def test_a_snapshot_becomes_a_file_named_after_broker_and_time(out: Path, tmp_path: Path) -> None:
    """The file has every column and the metadata that readers check; the directory has no other file."""
    async with serving(Adapter(WHOLE), tmp_path) as target:
        await take(target, str(out), as_json=False)
    (path,) = entries(out)
    assert path.name == "a%2Fb%201-1700000000123.parquet"
    table = pq.read_table(path)
    metadata = table.schema.metadata
    assert table.schema.equals(SNAPSHOT)
    assert {name: metadata[name] for name in (VERSION_OF_SNAPSHOT, BROKER, TAKEN_AT_MS)} == {
        VERSION_OF_SNAPSHOT: b"1",
        BROKER: b"a/b 1",
        TAKEN_AT_MS: b"1700000000123",
    }
    first, second, third = table.to_pylist()
    assert first["committed_at"].timestamp() == 1_700_000_000.001
    assert {name: first[name] for name in ("shard", "topic", "partition", "epoch", "offset", "live", "metadata", "dirty")} == {
        "shard": "a", "topic": "t", "partition": 3, "epoch": 4, "offset": 7, "live": True, "metadata": "m", "dirty": False,
    }  # fmt: skip
    assert (second["live"], second["epoch"], second["committed_at"], second["dirty"]) == (False, 1 << 32, None, False)
    assert (third["offset"], third["problem"], third["dirty"]) == (None, f"offset {U64_MAX} is over {2**63 - 1}", True)


async def test_a_slash_at_the_end_means_a_directory(out: Path, tmp_path: Path) -> None:
    """It is made with those above it, so that a second adapter's snapshot is a second file; a file of that name is an error."""
    async with serving(Adapter(WHOLE), tmp_path) as target:
        await take(target, f"{out}/new/one/", as_json=False)
        (path,) = entries(out / "new" / "one")
        assert path.name == "a%2Fb%201-1700000000123.parquet"
        for place, problem in (
            (path, "is a file, and the slash at its end means a directory"),
            (path / "x", "cannot be made: Not"),
        ):
            with pytest.raises(InvalidInputError, match=f"^--output {place}/: {problem}"):
                await take(target, f"{place}/", as_json=False)
    assert entries(path.parent) == [path]


async def test_a_snapshot_takes_the_place_of_a_file(out: Path, tmp_path: Path) -> None:
    """The file gets the default permissions of the user, because Spark may run as another user."""
    path = out / "x.parquet"
    path.write_text("before")
    async with serving(Adapter(WHOLE), tmp_path) as target:
        await take(target, str(path), as_json=False)
    assert pq.read_metadata(path).num_rows == 3
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


async def test_a_large_snapshot_has_row_groups_of_some_size(out: Path, tmp_path: Path) -> None:
    """Spark reads row groups in parallel; one for each page would be slow."""
    size, pages = 1_000, ROW_GROUP // 1_000 + 2
    names = [[encode_key(key(f"{page:04}-{row}")) for row in range(size)] for page in range(pages)]
    replies = [Reply(keys=page, records=RECORDS[:1] * size) for page in names]
    head = Reply(head=Reply.Head(taken_at_ms=1, records=size * pages, broker="b"))
    async with serving(Adapter([head, *replies]), tmp_path) as target:
        await take(target, str(out), as_json=True)
    found = pq.read_metadata(entries(out)[0])
    assert (found.num_rows, found.num_row_groups) == (size * pages, 2)


async def test_an_empty_store_is_a_file_without_rows(out: Path, tmp_path: Path) -> None:
    """Readers of the empty file learn that the broker has no records."""
    head = Reply(head=Reply.Head(taken_at_ms=1, broker="b"))
    async with serving(Adapter([head]), tmp_path) as target:
        await take(target, str(out), as_json=False)
    assert pq.read_table(out / "b-1.parquet").num_rows == 0


TORN = {
    "ends early": (Adapter(WHOLE[:2]), CallError, "sent 2 of 3 records; nothing was written"),
    "sends too much": (Adapter([*WHOLE, WHOLE[1]]), CallError, "sent 5 of 3 records"),
    "aborts": (Adapter(WHOLE[:2], grpc.StatusCode.DATA_LOSS), CallError, "DATA_LOSS: by the test"),
    "aborts behind the last record": (Adapter(WHOLE, grpc.StatusCode.UNAVAILABLE), CallError, "UNAVAILABLE: by the test"),
    "has no head": (Adapter(WHOLE[1:]), CallError, "did not begin with the snapshot's head"),
    "sends nothing": (Adapter([]), CallError, "did not begin with the snapshot's head"),
    "hangs": (Adapter(WHOLE, hangs=True), CallError, "sent nothing for 0.2 s; nothing was written"),
    "sends a damaged key": (Adapter([WHOLE[0], Reply(keys=[b"\5"], records=RECORDS[:1])]), StoreDamagedError, "key 05"),
    "sends fewer records than keys": (Adapter([WHOLE[0], Reply(keys=KEYS, records=RECORDS[:1])]), InvalidInputError, "3 keys"),
}


@pytest.mark.parametrize("fault", TORN)
async def test_a_torn_stream_leaves_no_file(fault: str, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An existing file is not changed."""
    adapter, kind, text = TORN[fault]
    if fault == "hangs":
        monkeypatch.setattr(snapshot, "TIMEOUT_S", 0.2)
    (out / "x.parquet").write_text("before")
    async with serving(adapter, tmp_path) as target:
        for place in (out, out / "x.parquet"):
            with pytest.raises(kind, match=text):
                await take(target, str(place), as_json=False)
    assert [(path.name, path.read_text()) for path in entries(out)] == [("x.parquet", "before")]


async def test_a_place_that_cannot_be_written_is_named(out: Path, tmp_path: Path) -> None:
    """With the reason."""
    os.mkfifo(out / "pipe")
    async with serving(Adapter(WHOLE), tmp_path) as target:
        for place, reason in (("no/x.parquet", "cannot be written: No such file"), ("pipe", "neither a regular file nor")):
            with pytest.raises(InvalidInputError, match=reason):
                await take(target, str(out / place), as_json=False)
    assert [path.name for path in entries(out)] == ["pipe"]


async def test_a_full_disk_is_an_error_of_one_line(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow writes through our file, so its errors are the kernel's."""
    monkeypatch.setattr("adapter.runtime.durable.files.os.fsync", _no_space)
    async with serving(Adapter(WHOLE), tmp_path) as target:
        with pytest.raises(AdapterError, match="cannot be written: No space left on device"):
            await take(target, str(out / "x.parquet"), as_json=False)
    assert entries(out) == []


def _no_space(_: int) -> None:
    raise OSError(28, os.strerror(28))


@pytest.mark.parametrize("missing", ["pyarrow", "numpy"])
def test_without_the_extra_it_says_what_to_install(missing: str) -> None:
    """The check comes before any call."""
    code = f"import sys; sys.modules[{missing!r}] = None; sys.argv[1:] = ['snapshot', '--output', 'x', '--address', 'unix:no']"
    code += "; from adapter.cli.main import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: snapshots need ")
    assert ended.stderr.endswith("not installed: pip install 'pyarrow<27,>=22'\n")
