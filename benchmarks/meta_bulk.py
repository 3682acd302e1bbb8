"""The Meta Service's cost of a row: bulk calls on packed records, compared to calls with a message for each record.

Only the Meta Service's CPU time counts, its sync and RocksDB's background work included. Requests are prepared before.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import grpc
from rich.progress import Progress

from adapter.meta.wire import save_request
from adapter.metaservice.engine import Columns
from adapter.model.codec import encode_key, encode_record, pack_names
from adapter.model.records import SaveEntry
from adapter.rpc import meta_grpc, meta_pb
from adapter.testing.processes import ended, meta_process
from benchmarks.keyspace import key_of, record_of
from benchmarks.machine import cpu_s
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "CPU time of the Meta Service for a row of a bulk call"
KEYS, KEYS_SHORT = 200_000, 2_000
ROUNDS = 3
CLUSTER = "default"
CHUNK = 10_000  # rows of a request or page
MERGE_LIMIT_US = 4.0
SCAN_LIMIT_US = 1.5
LARGE = [("grpc.max_receive_message_length", -1)]

Stub = meta_grpc.MetaServiceServiceStub
Call = tuple[str, Callable[[], int]]


class Requests(NamedTuple):
    """Requests with the same records in each form."""

    saves: list[meta_pb.SaveOffsetDataRequest]
    merges: list[meta_pb.MergeOffsetDataRequest]
    columns: list[meta_pb.MergeOffsetDataRequest]


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure every call once in each round, with three new Meta Services, one for each kind; results are medians."""
    keys, rounds = (KEYS_SHORT, 1) if scale.short else (KEYS, ROUNDS)
    requests = [await _requests(keys, more) for more in range(2)]
    took: dict[str, list[float]] = defaultdict(list)
    task = progress.add_task("meta_bulk", total=3 * rounds)
    for number in range(rounds):
        for kind in (_by_rows, _packed, _as_columns):
            service = meta_process(directory / f"{kind.__name__}-{number}")
            with ended(service):
                service.start()
                with grpc.insecure_channel(service.address, LARGE) as channel:
                    for name, call in kind(meta_grpc.MetaServiceServiceStub(channel), *requests):
                        before = cpu_s(service.pid)
                        rows = call()
                        took[name].append((cpu_s(service.pid) - before) / keys * 1e6)
                        assert rows == keys, f"{name}: {rows} rows"
            progress.advance(task)
    return _result({name: median(each) for name, each in took.items()}, keys, rounds)


def _by_rows(stub: Stub, new: Requests, raised: Requests) -> list[Call]:
    """The calls with a message for each record, in order; each returns its number of rows."""
    return [
        ("save, new keys", lambda: _save(stub, new)),
        ("save, higher offsets", lambda: _save(stub, raised)),
        ("list", lambda: _list(stub)),
    ]


def _packed(stub: Stub, new: Requests, raised: Requests) -> list[Call]:
    """The bulk calls, in order; each returns its number of rows."""
    keys = sum(len(request.keys) for request in new.merges)
    return [
        ("merge, new keys", lambda: _merge(stub, new.merges)),
        ("merge, higher offsets", lambda: _merge(stub, raised.merges)),
        ("merge, the same again", lambda: _merge(stub, raised.merges)),
        ("scan", lambda: _scan(stub)),
        ("scan, as columns", lambda: _scan(stub, as_packed=True)),
        ("split", lambda: _split(stub, keys)),
    ]


def _as_columns(stub: Stub, new: Requests, raised: Requests) -> list[Call]:
    """Merges of rows as columns, in key order; each returns its number of rows."""
    return [
        ("merge as columns, new keys", lambda: _merge(stub, new.columns)),
        ("merge as columns, higher offsets", lambda: _merge(stub, raised.columns)),
        ("merge as columns, the same again", lambda: _merge(stub, raised.columns)),
    ]


async def _requests(keys: int, more: int) -> Requests:
    """Requests for all keys, with offsets raised by `more`."""
    requests = Requests([], [], [])
    for at in range(0, keys, CHUNK):
        pairs = [(key_of(number), record_of(number, more)) for number in range(at, min(at + CHUNK, keys))]
        requests.saves.append(await save_request(CLUSTER, [SaveEntry(*pair) for pair in pairs]))
        requests.merges.append(
            meta_pb.MergeOffsetDataRequest(
                cluster_name=CLUSTER,
                keys=[encode_key(key) for key, _ in pairs],
                records=[encode_record(record) for _, record in pairs],
            )
        )
    prefix = pack_names(CLUSTER)
    merges = requests.merges
    rows = sorted((prefix + key, value) for merge in merges for key, value in zip(merge.keys, merge.records, strict=True))
    for at in range(0, keys, CHUNK):
        columns = Columns()
        columns.add(*zip(*rows[at : at + CHUNK], strict=True))
        requests.columns.append(meta_pb.MergeOffsetDataRequest(cluster_name=CLUSTER, packed=columns.page().packed))
    return requests


def _save(stub: Stub, requests: Requests) -> int:
    return sum(len(stub.SaveOffsetData(request).results) for request in requests.saves)


def _merge(stub: Stub, requests: Sequence[meta_pb.MergeOffsetDataRequest]) -> int:
    return sum(stub.MergeOffsetData(request).applied for request in requests)


def _list(stub: Stub) -> int:
    request = meta_pb.ListOffsetDataRequest(cluster_name=CLUSTER, page_size=CHUNK)
    rows = 0
    while not rows or request.page_token:
        page = stub.ListOffsetData(request)
        rows += len(page.entries)
        request.page_token = page.next_page_token
    return rows


def _scan(stub: Stub, *, as_packed: bool = False) -> int:
    request = meta_pb.ScanOffsetDataRequest(cluster_name=CLUSTER, page_size=CHUNK, as_packed=as_packed)
    rows = 0
    while not rows or request.page_token:
        page = stub.ScanOffsetData(request)
        rows += len(page.packed.key_sizes) // 2 if as_packed else len(page.keys)
        request.page_token = page.next_page_token
    return rows


def _split(stub: Stub, keys: int) -> int:
    """Divide all keys; their number is an estimate."""
    found = stub.SplitOffsetData(meta_pb.SplitOffsetDataRequest(cluster_name=CLUSTER, parts=8)).records
    return keys if abs(found - keys) < keys / 100 else found


def _result(took: Mapping[str, float], keys: int, rounds: int) -> Result:
    """A table of microseconds per row, with each bulk call compared to the call that it replaces."""
    beside = {
        "merge, new keys": "save, new keys",
        "merge, higher offsets": "save, higher offsets",
        "merge, the same again": "save, higher offsets",
        "merge as columns, new keys": "merge, new keys",
        "merge as columns, higher offsets": "merge, higher offsets",
        "merge as columns, the same again": "merge, the same again",
        "scan": "list",
        "scan, as columns": "list",
    }
    result = Result("meta_bulk", TITLE)
    rows: list[list[str | float]] = []
    for name, us in took.items():
        other = beside.get(name)
        rows.append([name, us, 1e6 / max(us, 1e-3), f"{took[other] / max(us, 1e-3):.3g} x {other}" if other else ""])
    result.tables.append(Table(f"{keys:,} rows, {CHUNK:,} in a call", ("call", "CPU us a row", "rows per CPU s", "rows/s"), rows))
    merge = max(us for name, us in took.items() if name.startswith("merge"))
    result.bars.append(Bar("CPU us of the Meta Service a merged row", merge, MERGE_LIMIT_US))
    result.bars.append(Bar("CPU us of the Meta Service a scanned row", took["scan"], SCAN_LIMIT_US))
    result.notes.append(f"Medians of {rounds} rounds, each with new Meta Services.")
    return result
