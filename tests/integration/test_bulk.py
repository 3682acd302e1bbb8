"""The bulk calls of a Meta Service process: round trips, what is refused, and what is counted."""

import re
import urllib.request
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.message import Message

from adapter.model.arrow import decode_packed, decode_records
from adapter.model.codec import decode_record, encode_key, encode_record, pack_names
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.rpc import meta_grpc, meta_pb
from adapter.testing.processes import ServiceProcess, ended, free_port, meta_process
from tests.integration.helpers import PATIENCE_S, key, meta_rpc
from tests.unit.helpers import packed_rows

BAD = grpc.StatusCode.INVALID_ARGUMENT
LONG = "x" * 256
FULL = OffsetRecord(3, 7, live=False, committed_at_ms=5, metadata="m", topic="t", partition=4)

Stub = meta_grpc.MetaServiceServiceStub


class Service(NamedTuple):
    """A Meta Service, and the port of its metrics."""

    process: ServiceProcess
    metrics: int


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One process that has to survive everything here."""
    port = free_port()
    process = meta_process(tmp_path_factory.mktemp("bulk"))
    process.settings = process.settings.replace("[metrics]\nlisten = ''", f"[metrics]\nlisten = '127.0.0.1:{port}'")
    with ended(process):
        process.start()
        yield Service(process, port)
        assert process.stop() == 0
        assert "Traceback" not in process.log


@pytest.fixture
def stub(service: Service) -> Iterator[Stub]:
    """A stub of it."""
    with meta_rpc(service.process.address) as made:
        yield made


def merge(
    stub: Stub, cluster: str, entries: Sequence[tuple[OffsetKey, OffsetRecord]], **fields: Any
) -> meta_pb.MergeOffsetDataReply:
    """Merge records."""
    packed: dict[str, Any] = {
        "keys": [encode_key(where) for where, _ in entries],
        "records": [encode_record(found) for _, found in entries],
    }
    reply: meta_pb.MergeOffsetDataReply = stub.MergeOffsetData(
        meta_pb.MergeOffsetDataRequest(cluster_name=cluster, **{**packed, **fields}), timeout=PATIENCE_S
    )
    return reply


def scan(stub: Stub, **fields: Any) -> list[tuple[bytes, bytes]]:
    """All rows of a scan."""
    rows: list[tuple[bytes, bytes]] = []
    token = fields.pop("page_token", b"")
    while token or not rows:
        page = stub.ScanOffsetData(meta_pb.ScanOffsetDataRequest(page_token=token, **fields), timeout=PATIENCE_S)
        rows += zip(page.keys, page.records, strict=True)
        token = page.next_page_token
        if not token:
            break
    return rows


def test_what_was_merged_is_scanned_in_parts_and_read_by_the_other_calls(stub: Stub) -> None:
    """The same bytes; and what a save wrote is scanned."""
    entries = [(key(f"{at:04}", f"g{at % 3}"), FULL._replace(offset=at, live=at % 2 == 0)) for at in range(2_500)]
    reply = merge(stub, "trip", entries)
    assert (reply.applied, reply.superseded, list(reply.rejected)) == (2_500, 0, [])
    wanted = sorted((encode_key(where), encode_record(found)) for where, found in entries)
    split = stub.SplitOffsetData(meta_pb.SplitOffsetDataRequest(cluster_name="trip", parts=7), timeout=PATIENCE_S)
    assert (split.records, len(split.tokens)) == (2_500, 6)
    bounds = pairwise([b"", *split.tokens, b""])
    parts = [scan(stub, cluster_name="trip", page_size=300, page_token=begin, until_token=end) for begin, end in bounds]
    assert [row for part in parts for row in part] == wanted
    assert scan(stub, cluster_name="trip", namespace="default", group="g1") == [row for row in wanted if b"\2g1" in row[0]]
    page = stub.ScanOffsetData(meta_pb.ScanOffsetDataRequest(cluster_name="trip", as_packed=True), timeout=PATIENCE_S)
    rows = page.packed
    columns = decode_packed(rows.keys, rows.key_sizes, rows.records, rows.record_sizes)
    assert columns.equals(decode_records([packed for packed, _ in wanted], [packed for _, packed in wanted]))
    assert not page.keys
    assert not page.records
    listed = stub.GetOffsetData(meta_pb.GetOffsetDataRequest(cluster_name="trip", namespace="default", group="g0"))
    assert len(listed.offsets) == 417
    offset = meta_pb.SaveOffsetDataRequestOffset(namespace="default", shard_name="saved", offset=8, epoch=2, committed_at_ms=6)
    stub.SaveOffsetData(
        meta_pb.SaveOffsetDataRequest(cluster_name="trip", offsets=[meta_pb.SaveOffsetData(group="h", offsets=[offset])])
    )
    saved = (encode_key(key("saved", "h")), encode_record(OffsetRecord(2, 8, committed_at_ms=6)))
    assert scan(stub, cluster_name="trip", namespace="default", group="h") == [saved]


def test_a_bad_entry_is_rejected_in_words_and_its_neighbours_are_merged(stub: Stub) -> None:
    """In its row; nothing of it is stored (10)."""
    good = encode_record(OffsetRecord(1, 5, committed_at_ms=1))
    keys = [encode_key(key("a")), pack_names("default", "g", ""), encode_key(key("b")), b"\xff", encode_key(key("c"))]
    records = [good, good, good, good, encode_record(OffsetRecord(2**63, 5))]
    reply = merge(stub, "bad", [], keys=keys, records=records)
    assert (reply.applied, [(row.index, row.message) for row in reply.rejected]) == (
        2,
        [
            (1, "shard is empty"),
            (3, "key: is not a namespace, a group and a shard, each in UTF-8 behind its length in one byte"),
            (4, "epoch 9223372036854775808 is over 9223372036854775807"),
        ],
    )
    assert scan(stub, cluster_name="bad") == [(keys[0], good), (keys[2], good)]


def test_a_retry_gives_the_same_and_a_lower_value_changes_nothing(stub: Stub) -> None:
    """Applied is also what stood already (2)."""
    entries = [(key("a"), OffsetRecord(1, 5, committed_at_ms=1)), (key("b"), OffsetRecord(0, 6, committed_at_ms=1))]
    lower = [(key("a"), OffsetRecord(1, 4, committed_at_ms=9))]
    replies = [merge(stub, "retry", sent) for sent in (entries, entries, lower)]
    assert [(reply.applied, reply.superseded) for reply in replies] == [(2, 0), (2, 0), (0, 1)]
    assert not any(reply.rejected or reply.standing for reply in replies)
    assert [record[16:24] for _, record in scan(stub, cluster_name="retry")] == [bytes(7) + b"\5", bytes(7) + b"\6"]


def test_rows_as_columns_are_merged_as_rows_are(stub: Stub) -> None:
    """New ones, the same again, higher and lower ones, in key order and not; bad ones are rejected in their rows (2, 10)."""
    entries = [(key(f"{at:04}"), OffsetRecord(1, at + 1, committed_at_ms=1, topic="t" * (at % 3))) for at in range(2_500)]
    higher = [(where, found._replace(offset=found.offset + 1)) for where, found in entries[::2]]
    for sent, answer in ((entries, (2_500, 0)), (entries, (2_500, 0)), (higher[::-1], (1_250, 0)), (entries, (1_250, 1_250))):
        replies = [merge(stub, "rows", sent), merge_columns(stub, "columns", sent)]
        assert [(reply.applied, reply.superseded) for reply in replies] == [answer] * 2
    assert scan(stub, cluster_name="columns") == scan(stub, cluster_name="rows")
    bad = [*entries[:2], (key("a\nb"), OffsetRecord(1, 5)), (key("x"), OffsetRecord(2**63, 5)), (key("new"), OffsetRecord(1, 5))]
    found = merge_columns(stub, "columns", bad)
    assert (found.applied, found.superseded, [row.index for row in found.rejected]) == (2, 1, [2, 3])
    told = merge_columns(stub, "columns", entries[:3], tell_standing=True)
    assert [(row.index, decode_record(row.record).offset) for row in told.standing] == [(0, 2), (2, 4)]


def merge_columns(stub: Stub, cluster: str, entries: Sequence[tuple[OffsetKey, OffsetRecord]], **fields: Any) -> Any:
    """Merge records as columns."""
    keys, records = [encode_key(where) for where, _ in entries], [encode_record(found) for _, found in entries]
    request = meta_pb.MergeOffsetDataRequest(cluster_name=cluster, packed=packed_rows(cluster, keys, records), **fields)
    return stub.MergeOffsetData(request, timeout=PATIENCE_S)


class Row(NamedTuple):
    """A request that is bad as a whole."""

    name: str
    method: str
    request: Message
    message: str


def _merge_of(keys: int, records: int) -> Message:
    return meta_pb.MergeOffsetDataRequest(keys=[encode_key(key())] * keys, records=[encode_record(FULL)] * records)


ALONE = "namespace: is empty, but a group is named; name both"
FOREIGN = "is not the next_page_token of a page of this list"
OTHER = b"\x05other\x07default\x01g\x01s"
ROWS = [
    Row("parts_0", "Split", meta_pb.SplitOffsetDataRequest(), "parts: 0 is not between 1 and 1000"),
    Row("parts_1001", "Split", meta_pb.SplitOffsetDataRequest(parts=1001), "parts: 1001 is not between 1 and 1000"),
    Row("split_group", "Split", meta_pb.SplitOffsetDataRequest(parts=1, group="g"), ALONE),
    Row(
        "split_cluster",
        "Split",
        meta_pb.SplitOffsetDataRequest(parts=1, cluster_name=LONG),
        "cluster_name is 256 bytes long; at most 255 are allowed",
    ),
    Row("page_size", "Scan", meta_pb.ScanOffsetDataRequest(page_size=20_001), "page_size: 20001 is over 20000"),
    Row("scan_group", "Scan", meta_pb.ScanOffsetDataRequest(group="g"), ALONE),
    Row("page_token", "Scan", meta_pb.ScanOffsetDataRequest(page_token=b"x"), f"page_token: {FOREIGN}"),
    Row("other_cluster", "Scan", meta_pb.ScanOffsetDataRequest(page_token=OTHER), f"page_token: {FOREIGN}"),
    Row("until_token", "Scan", meta_pb.ScanOffsetDataRequest(until_token=b"\7default"), f"until_token: {FOREIGN}"),
    Row(
        "until_other_group",
        "Scan",
        meta_pb.ScanOffsetDataRequest(until_token=pack_names("default", "n", "h", "s"), namespace="n", group="g"),
        f"until_token: {FOREIGN}",
    ),
    Row("merge_uneven", "Merge", _merge_of(2, 1), "records: are 1, for 2 keys"),
    Row("merge_many", "Merge", _merge_of(20_001, 20_001), "keys: are 20001, over 20000; send several requests"),
    Row(
        "merge_both",
        "Merge",
        meta_pb.MergeOffsetDataRequest(keys=[encode_key(key())], packed=meta_pb.PackedRows()),
        "packed: come in place of keys and records, not beside them",
    ),
    Row(
        "merge_torn",
        "Merge",
        meta_pb.MergeOffsetDataRequest(packed=meta_pb.PackedRows(keys=b"x", key_sizes=b"\1")),
        "packed.key_sizes: are 1 bytes, not 16-bit integers",
    ),
    Row(
        "merge_cluster",
        "Merge",
        meta_pb.MergeOffsetDataRequest(cluster_name="a\0"),
        "cluster_name has the control character U+0000 at position 1",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_request_that_is_bad_as_a_whole_is_refused(stub: Stub, row: Row) -> None:
    """INVALID_ARGUMENT by the name of the field (10)."""
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stub, f"{row.method}OffsetData")(row.request, timeout=PATIENCE_S)
    assert (caught.value.code(), caught.value.details()) == (BAD, row.message)


def test_a_page_may_have_20000_rows_and_has_10000_unless_asked(stub: Stub) -> None:
    """And a merge may have 20,000 entries."""
    entries = [(key(f"{at:05}"), OffsetRecord(1, at, committed_at_ms=1)) for at in range(20_000)]
    assert merge(stub, "large", entries).applied == 20_000
    for size, rows, more in ((0, 10_000, True), (20_000, 20_000, True), (19_999, 19_999, True)):
        page = stub.ScanOffsetData(meta_pb.ScanOffsetDataRequest(cluster_name="large", page_size=size), timeout=PATIENCE_S)
        assert (len(page.keys), bool(page.next_page_token)) == (rows, more)


def scrape(port: int) -> dict[str, float]:
    """Samples of /metrics by name with labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as reply:
        text = reply.read().decode()
    return {name: float(value) for name, value in re.findall(r"^([a-z]\S*) (\S+)$", text, re.MULTILINE)}


def test_calls_and_results_are_counted(service: Service, stub: Stub) -> None:
    """As those of the other calls."""
    before = scrape(service.metrics)
    entries = [(key("a"), OffsetRecord(1, 5, committed_at_ms=1)), (key("a"), OffsetRecord(1, 4, committed_at_ms=1))]
    merge(stub, "counted", entries)
    merge(stub, "counted", [], keys=[b""], records=[b""])
    scan(stub, cluster_name="counted")
    stub.SplitOffsetData(meta_pb.SplitOffsetDataRequest(cluster_name="counted", parts=1), timeout=PATIENCE_S)
    after = scrape(service.metrics)
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    assert {name: grown[f'offset_meta_calls_total{{rpc="{name}OffsetData"}}'] for name in ("Merge", "Scan", "Split")} == {
        "Merge": 2,
        "Scan": 1,
        "Split": 1,
    }
    results = ("applied", "superseded", "invalid", "conflict")
    assert [grown[f'offset_meta_save_results_total{{status="{name}"}}'] for name in results] == [1, 1, 1, 0]
    assert grown["offset_meta_save_seconds_count"] == 2
