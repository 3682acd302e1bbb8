"""What each release wrote is read by this program, every value of it; then it says its version, and is read again."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adapter.client.offset_store.local_file import LocalFileOffsetStore
from adapter.client.offset_store.store import ReadOffsetType
from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.metaservice.engine import Engine
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.engine import EtcdEngine
from adapter.metaservice.etcd.keys import Keys
from adapter.metaservice.etcd.metadata import EtcdMetadata
from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.model.queues import MessageQueue
from adapter.model.records import DEFAULT_NAMESPACE, GroupKey, Member, OffsetKey, OffsetRecord
from adapter.model.schemas import SNAPSHOT
from adapter.pipeline.journal.listing import Lister
from adapter.pipeline.journal.segment import UNREADABLE, read_segment
from adapter.pipeline.places import Place
from adapter.pipeline.reconcile.snapshots import find_snapshots
from adapter.runtime.durable import format_mark
from adapter.runtime.durable.format_mark import ADAPTER_STORE, META_ETCD, META_STORE, OFFSET_FILE, Form
from adapter.sidecar.config import JournalSection
from adapter.sidecar.journal.notes import Counts
from adapter.sidecar.journal.segments import SegmentFiles
from adapter.sidecar.ledger.store import LocalStore
from tests.archives import unpack
from tests.durability.etcd_cluster import OFFSETS, etcd
from tests.durability.machine import require
from tests.upgrade.fill import CLIENT_ID, GROUP
from tests.upgrade.fixtures import BROKER, TURNS, dump, load, running_etcd
from tests.upgrade.releases import Release, releases

CLUSTER = "default"
Records = dict[OffsetKey, OffsetRecord]


@pytest.fixture(params=releases(), ids=lambda release: release.name)
def release(request: pytest.FixtureRequest) -> Release:
    """Each release."""
    found: Release = request.param
    return found


@pytest.fixture
def written(release: Release, tmp_path: Path) -> Path:
    """A directory with what it wrote."""
    unpack(release.data / "written.tar.gz", tmp_path)
    return tmp_path


@pytest.fixture
def expected(release: Release) -> Records:
    """What stands, as the release answered."""
    rows = json.loads((release.data / "expected.json").read_text())
    return {
        OffsetKey(namespace, group, shard): OffsetRecord(epoch, offset, live, at_ms, metadata, topic, partition)
        for namespace, group, shard, epoch, offset, live, at_ms, metadata, topic, partition in rows
    }


def test_the_fixtures_hold_values_of_all_kinds(expected: Records) -> None:
    """Else the tests below would compare little."""
    default = DEFAULT_NAMESPACE
    assert expected[OffsetKey(default, "group-07", "2")].position == (1, TURNS * 1000 + 7)
    assert expected[OffsetKey(default, "numbers", "largest")].offset == 2**64 - 1
    assert expected[OffsetKey("日本", "größe-消费者", "队列")].offset == TURNS
    assert expected[OffsetKey("n" * 255, "n" * 255, "n" * 255)].offset == TURNS
    assert expected[OffsetKey("other", "labelled", "q")][3:] == (1_700_000_000_002, '{"position": "é\0"}', "orders", 7)
    assert expected[OffsetKey(default, "rewound", "0")].position == (3, 50)
    assert not expected[OffsetKey(default, "deleted", "gone")].live


def test_the_store_of_an_adapter_is_read(written: Path, expected: Records) -> None:
    """After a kill -9 of its process: all records, the fencing member, no loss; and it is marked by the open."""
    path = written / "adapter"
    for _ in range(2):
        with closing(LocalStore.open(path, "interval")) as store:
            assert {found.key: found.record for found in store.scan()} == expected
            assert store.member(GroupKey(DEFAULT_NAMESPACE, "fenced")) == Member(TURNS, f"member-{TURNS}")
            assert (store.loss, store.loss_at_open) == (None, False)
            expect_mark(path, ADAPTER_STORE)


async def test_the_store_of_a_meta_service_is_read(written: Path, expected: Records) -> None:
    """After a kill -9 of its process."""
    path = written / "meta"
    for _ in range(2):
        engine = RocksDbEngine.open(path)
        try:
            assert engine.loss() is None
            assert await listed(engine) == expected
            expect_mark(path, META_STORE)
        finally:
            engine.close()


async def test_what_is_in_etcd_is_read(release: Release, tmp_path: Path, expected: Records) -> None:
    """Offsets with their times aside, metadata and layout; and all Raft groups are marked."""
    require("a release's keys in etcd", etcd)
    stored = json.loads((release.data / "etcd.json").read_text())
    with running_etcd(tmp_path) as (metadata, offsets):
        load(metadata, stored["metadata"])
        load(offsets, stored["offsets"])
        for _ in range(2):
            async with opened(metadata.endpoints, offsets.endpoints) as (engine, entries):
                found = await listed(engine)
                entry = await entries.get(CLUSTER, "jobs/compaction")
            assert {key: (record.position, record.live, record[4:]) for key, record in found.items()} == {
                key: (record.position, record.live, record[4:]) for key, record in expected.items()
            }
            assert entry is not None
            assert entry.value == b"node3"
        for cluster in (metadata, offsets):
            assert format_mark.decode(bytes.fromhex(dump(cluster)[Keys(EtcdSection().prefix).format.hex()])) == META_ETCD


def test_segments_of_a_journal_are_read(written: Path, expected: Records) -> None:
    """A finished one, and one that kill -9 left open, which this program finishes."""
    root = written / "journal"
    files = SegmentFiles(root, BROKER, JournalSection(path=root), Counts(str(root)), started_ms=0)
    files.open()
    files.close()
    rows = [row for batch in segments_of(root) for row in batch.to_pylist()]
    assert UNREADABLE not in {row["kind"] for row in rows}
    numbers = {run: [row["seq"] for row in rows if row["run"] == run] for run in {row["run"] for row in rows}}
    assert [seqs == list(range(len(seqs))) for seqs in numbers.values()] == [True] * TURNS
    last = {OffsetKey(row["namespace"], row["group"], row["shard"]): row for row in rows if row["kind"] != "heartbeat"}
    for key, record in expected.items():
        largest = record.offset == 2**64 - 1  # no number of Arrow's, so that the column `problem` has it
        assert (last[key]["epoch"], last[key]["offset"]) == (record.epoch, None if largest else record.offset), key


def test_a_snapshot_is_read(written: Path, expected: Records) -> None:
    """Its version, its columns, and every record."""
    found = find_snapshots([Place.of(written / "snapshot")])
    assert ([file.broker for file in found.newest], found.unreadable) == ([BROKER], [])
    table = pq.read_table(found.newest[0].place.path)
    assert table.schema.equals(SNAPSHOT)
    rows = {OffsetKey(row["namespace"], row["group"], row["shard"]): row for row in table.to_pylist()}
    assert rows.keys() == expected.keys()
    for key, record in expected.items():
        row = rows[key]
        offset = None if record.offset == 2**64 - 1 else record.offset
        assert (row["epoch"], row["offset"], row["live"], row["metadata"], row["topic"], row["partition"]) == (
            record.epoch, offset, record.live, record.metadata, record.topic, record.partition
        )  # fmt: skip


async def test_the_offset_file_of_a_client_is_read(release: Release, written: Path) -> None:
    """It is marked when it is written the next time, and the program before still reads it: its form is RocketMQ's."""
    directory = written / "offset-file"
    store = LocalFileOffsetStore(directory, CLIENT_ID, GROUP)
    queues = [MessageQueue("TopicTest", number, "broker-a") for number in range(4)]
    await store.load()
    assert [await store.read_offset(queue, ReadOffsetType.READ_FROM_STORE) for queue in queues] == [200, 201, 202, 203]
    assert (store.path.parent / format_mark.FILE).exists() == (release.name != "before-0.1.0")
    store.update_offset(queues[0], 300)
    await store.persist(queues[0])
    expect_mark(store.path.parent, OFFSET_FILE)
    again = LocalFileOffsetStore(directory, CLIENT_ID, GROUP)
    assert [await again.read_offset(queue, ReadOffsetType.READ_FROM_STORE) for queue in queues] == [300, 201, 202, 203]


def expect_mark(directory: Path, form: Form) -> None:
    """The directory says its version."""
    assert format_mark.decode((directory / format_mark.FILE).read_bytes()) == form


def segments_of(root: Path) -> Iterator[pa.RecordBatch]:
    """The rows of all segments, in order."""
    listing = Lister([str(root)]).list()
    assert listing.failures == {}
    for run in sorted(listing.runs):
        for _, segment in sorted(listing.runs[run].items()):
            yield from read_segment(segment)


async def listed(engine: Engine) -> Records:
    """All records."""
    found: Records = {}
    after = b""
    while True:
        page, after = await engine.list_page(CLUSTER, (), 50, after)
        found.update(page)
        if not after:
            return found


@asynccontextmanager
async def opened(metadata: tuple[str, ...], offsets: tuple[str, ...]) -> AsyncIterator[tuple[EtcdEngine, EtcdMetadata]]:
    """Both stores of a Meta Service on etcd."""
    section = EtcdSection(timeout_ms=5_000)
    async with AsyncExitStack() as stack:
        clusters = [
            await stack.enter_async_context(EtcdCluster.open(name, MembersSection(endpoints=endpoints), section))
            for name, endpoints in (("metadata", metadata), (OFFSETS, offsets))
        ]
        engine, entries = EtcdEngine(clusters[0], clusters[1:], section), EtcdMetadata(clusters[0], section.prefix)
        await engine.open()
        await entries.open()
        yield engine, entries
