"""`meta snapshot` of a real Meta Service: whole or not at all, with what stood at one instant."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from adapter.cli.connection import CallError
from adapter.cli.main import cli
from adapter.cli.meta import snapshot, snapshot_directory
from adapter.errors import AdapterError, InvalidInputError
from adapter.meta.blocking import MetaCalls
from adapter.meta.config import MetaSection
from adapter.metaservice.engine import Columns
from adapter.model.codec import encode_key, encode_record, pack_names
from adapter.model.schemas import RECORDS
from adapter.model.snapshots import MANIFEST, Manifest
from adapter.rpc import meta_grpc, meta_pb
from adapter.testing.processes import ServiceProcess, ended, free_port, meta_process
from adapter.testing.waiting import eventually
from tests.unit.helpers import key, packed_rows, record, tombstone

COUNT = 2_500
HEAD = meta_pb.SnapshotOffsetDataReply(taken_at_ms=1)
FIRST, LAST = key("00000"), key(f"{COUNT - 1:05}")


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A Meta Service with COUNT records, of which one is a tombstone."""
    service = meta_process(tmp_path_factory.mktemp("meta"))
    with ended(service):
        service.start()
        entries = {key(f"{at:05}"): record(at, committed_at_ms=1, metadata="\u00fc" * (at % 3)) for at in range(COUNT)}
        entries[LAST] = tombstone(1 << 32)
        section = MetaSection(endpoints=(service.address,))
        with closing(MetaCalls(section)) as calls:
            keys, records = map(encode_key, entries), map(encode_record, entries.values())
            calls.merge(packed_rows(section.cluster, [*keys], [*records]))
        yield service


def take(meta: ServiceProcess | str, output: Path, *more: str) -> str:
    """Run the command; what it prints."""
    address = meta if isinstance(meta, str) else meta.address
    arguments = ["meta", "snapshot", "--address", address, "--output", str(output), *more]
    return CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout


def page_of(count: int) -> meta_pb.SnapshotOffsetDataReply:
    """A reply with so many records."""
    columns = Columns()
    columns.add([pack_names("c", *key(f"{at:05}")) for at in range(count)], [encode_record(record(at)) for at in range(count)])
    return meta_pb.SnapshotOffsetDataReply(packed=columns.page().packed)


def rows_of(directory: Path) -> pa.Table:
    """What the files of a snapshot hold, in the order of its manifest."""
    manifest = Manifest.decode((directory / MANIFEST).read_bytes(), "manifest")
    assert {*manifest.files, MANIFEST} == {file.name for file in directory.iterdir()}
    return pa.concat_tables([pq.read_table(directory / name) for name in manifest.files])


def test_a_snapshot_has_every_record_once(meta: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In key order, over several files and row groups; the counts are told."""
    monkeypatch.setattr(snapshot_directory, "FILE_ROWS", 1_000)
    monkeypatch.setattr(snapshot_directory, "ROW_GROUP", 400)
    told = json.loads(take(meta, tmp_path / "s", "--json"))
    rows = rows_of(tmp_path / "s")
    assert rows.schema.remove_metadata() == RECORDS
    assert rows["shard"].to_pylist() == [f"{at:05}" for at in range(COUNT)]
    assert rows["offset"].to_pylist()[:-1] == list(range(COUNT - 1))
    assert rows["live"].to_pylist() == [True] * (COUNT - 1) + [False]
    assert told == {
        "path": str(tmp_path / "s"),
        "cluster": "default",
        "taken_at_ms": told["taken_at_ms"],
        "records": COUNT,
        "tombstones": 1,
        "files": len(list((tmp_path / "s").glob("*.parquet"))),
    }
    assert sorted(file.name for file in tmp_path.iterdir()) == ["s"]


def test_an_empty_cluster_is_a_snapshot_without_rows(meta: ServiceProcess, tmp_path: Path) -> None:
    """With one file, which says the columns."""
    assert "0 records of the cluster nobody" in take(meta, tmp_path / "s", "--cluster", "nobody")
    assert rows_of(tmp_path / "s").schema.remove_metadata() == RECORDS


def test_an_existing_directory_is_refused(meta: ServiceProcess, tmp_path: Path) -> None:
    """And stays as it is; also a file, and a link that leads nowhere."""
    (tmp_path / "s").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("s", "file", "link"):
        with pytest.raises(InvalidInputError, match="exists; a snapshot needs a new directory"):
            take(meta, tmp_path / name)
    with pytest.raises(InvalidInputError, match="cannot be written: No such file or directory"):
        take(meta, tmp_path / "no" / "s")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "link", "s"]
    assert list((tmp_path / "s").iterdir()) == []


def test_what_fails_in_the_middle_leaves_nothing(meta: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, say."""

    def full(_directory: snapshot_directory.SnapshotDirectory) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot_directory.SnapshotDirectory, "_close_file", full)
    with pytest.raises(AdapterError, match="cannot be written: No space left on device"):
        take(meta, tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_a_meta_service_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Nothing is written."""
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(CallError, match=f"{address}: UNAVAILABLE.*nothing was written"):
        take(address, tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


class Short(meta_grpc.MetaServiceServiceServicer):
    """Sends what it is given; `sent` counts."""

    def __init__(self, *replies: meta_pb.SnapshotOffsetDataReply, hangs: bool = False) -> None:
        self._replies = replies
        self._hangs = hangs
        self._ended = Event()
        self.sent = 0

    def SnapshotOffsetData(self, _request: object, context: grpc.ServicerContext) -> Iterator[meta_pb.SnapshotOffsetDataReply]:
        """The replies, and if it hangs no end before the client's."""
        for reply in self._replies:
            self.sent += 1
            yield reply
        if self._hangs:
            context.add_callback(self._ended.set)
            self._ended.wait()


@contextmanager
def serving(short: Short) -> Iterator[str]:
    """The address at which it serves."""
    server = grpc.server(ThreadPoolExecutor(1))
    meta_grpc.add_MetaServiceServiceServicer_to_server(short, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ([meta_pb.SnapshotOffsetDataReply(records=2)], "sent 0 of 2 records; nothing was written"),
        ([], "ended before the snapshot was complete; nothing was written"),
        ([meta_pb.SnapshotOffsetDataReply(packed=meta_pb.PackedRows(keys=b"damaged"))], "7 bytes, though 0 should have come"),
    ],
)
def test_a_stream_that_is_not_whole_leaves_nothing(tmp_path: Path, end: list[meta_pb.SnapshotOffsetDataReply], told: str) -> None:
    """As when a proxy ends it."""
    short = Short(HEAD, *end)  # type: ignore[abstract] # the other calls are not made
    with serving(short) as address, pytest.raises(AdapterError, match=told):
        take(address, tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_command_leaves_no_directory_of_that_name(tmp_path: Path) -> None:
    """Beside it is one with a name of its own, which has no manifest and can be deleted."""
    short = Short(HEAD, hangs=True)  # type: ignore[abstract]
    with serving(short) as address:
        command = [sys.executable, "-m", "adapter", "meta", "snapshot", "--address", address, "--output", str(tmp_path / "s")]
        with subprocess.Popen(command) as process:
            asyncio.run(eventually(lambda: any(tmp_path.iterdir())))
            process.kill()
    (left,) = tmp_path.iterdir()
    assert left.name == f".s.{process.pid}"
    assert not (left / MANIFEST).exists()


def test_what_has_come_and_is_not_written_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk does not fill the memory: the server waits, and then everything is there."""
    monkeypatch.setattr(snapshot, "AHEAD_BYTES", 100_000)
    pages = [page_of(5_000)] * 150  # of 400 KB
    short = Short(HEAD, *pages, meta_pb.SnapshotOffsetDataReply(records=750_000))  # type: ignore[abstract]
    sent: list[int] = []
    add = snapshot_directory.SnapshotDirectory.add

    def is_held_up() -> bool:
        sent.append(short.sent)
        return sent[-50:].count(short.sent) == 50

    def slow(directory: snapshot_directory.SnapshotDirectory, rows: meta_pb.PackedRows) -> None:
        if not sent:
            asyncio.run(eventually(is_held_up))
        add(directory, rows)

    monkeypatch.setattr(snapshot_directory.SnapshotDirectory, "add", slow)
    with serving(short) as address:
        assert "750,000 records" in take(address, tmp_path / "s")
    assert sent[-1] < 100
