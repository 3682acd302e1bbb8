"""A Meta Service for bulk calls, in memory, with the rules of the real one and with faults that a test chooses."""

import os
import signal
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import psutil

from adapter.metaservice.engine import decide_save
from adapter.metaservice.scan_replies import values
from adapter.model.codec import decode_record, encode_record, pack_names, unpack_names
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry, Status
from adapter.rpc import meta_pb

# Gets what merges the request; may merge it or not, then raise, or end the call by the context.
Fault = Callable[[Callable[[], None], grpc.ServicerContext], None]


class BulkMeta:
    """Counts calls; each fault that a test adds affects one merge."""

    def __init__(self) -> None:
        self.records: dict[OffsetKey, OffsetRecord] = {}
        self.merges: list[int] = []
        self.bytes: list[int] = []
        self.faults: deque[Fault] = deque()
        self.refuses: set[str] = set()  # shards
        self.down = False
        self.knows_columns = True
        self.claims = 0  # not 0: so many records, says a split
        self._lock = threading.Lock()

    def MergeOffsetData(self, request: meta_pb.MergeOffsetDataRequest, context: Any) -> meta_pb.MergeOffsetDataReply:
        """Merge as the real one does."""
        reply = meta_pb.MergeOffsetDataReply()
        with self._lock:
            self._check(context)
            if not self.knows_columns:
                request.ClearField("packed")
            self.merges.append(len(request.packed.key_sizes) // 2)
            self.bytes.append(request.ByteSize())
            if self.faults:
                self.faults.popleft()(lambda: self._merge(request, meta_pb.MergeOffsetDataReply()), context)
            self._merge(request, reply)
        return reply

    def ScanOffsetData(self, request: meta_pb.ScanOffsetDataRequest, context: Any) -> meta_pb.ScanOffsetDataReply:
        """Return a page."""
        self._check(context)
        rows = [(pack_names("c", *key), encode_record(record)) for key, record in self._named(request)]
        rows = [row for row in rows if row[0] > request.page_token and (not request.until_token or row[0] <= request.until_token)]
        page, rest = rows[: request.page_size], rows[request.page_size :]
        keys, records = [key for key, _ in page], [value for _, value in page]
        if not self.knows_columns:
            return meta_pb.ScanOffsetDataReply(keys=keys, records=records)
        packed = meta_pb.PackedRows(
            keys=b"".join(keys), key_sizes=_sizes(keys), records=b"".join(records), record_sizes=_sizes(records)
        )
        return meta_pb.ScanOffsetDataReply(packed=packed, next_page_token=keys[-1] if rest else b"")

    def SplitOffsetData(self, request: meta_pb.SplitOffsetDataRequest, context: Any) -> meta_pb.SplitOffsetDataReply:
        """Each key ends a part, up to the number that was asked for."""
        self._check(context)
        keys = [pack_names("c", *key) for key, _ in self._named(request)]
        return meta_pb.SplitOffsetDataReply(tokens=keys[: request.parts - 1], records=self.claims or len(keys))

    def _named(self, request: Any) -> list[tuple[OffsetKey, OffsetRecord]]:
        """The records below the names of a request, in key order."""
        names = [name for name in (request.namespace, request.group) if name]
        found = [(key, record) for key, record in self.records.items() if list(key[: len(names)]) == names]
        return sorted(found, key=lambda row: pack_names(*row[0]))

    def _check(self, context: Any) -> None:
        if self.down:
            context.abort(grpc.StatusCode.UNAVAILABLE, "down by the test")

    def _merge(self, request: meta_pb.MergeOffsetDataRequest, reply: meta_pb.MergeOffsetDataReply) -> None:
        rows = request.packed
        columns = zip(values(rows.keys, rows.key_sizes), values(rows.records, rows.record_sizes), strict=True)
        for at, (raw_key, raw) in enumerate(columns):
            cluster, *names = unpack_names(raw_key)
            assert cluster == (request.cluster_name or "default")
            key = OffsetKey(*names)
            if key.shard in self.refuses:
                reply.rejected.add(index=at, message="refused by the test")
                continue
            outcome = decide_save(SaveEntry(key, decode_record(raw)), self.records.get(key))
            assert outcome.standing is not None
            self.records[key] = outcome.standing
            if outcome.status is Status.APPLIED:
                reply.applied += 1
            else:
                reply.superseded += 1


def _sizes(values: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(values)}H", *map(len, values))


@contextmanager
def serving(servicer: BulkMeta | None, credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    """Serve it; yields the address. None: a server that knows no call."""
    server = grpc.server(ThreadPoolExecutor(4))
    if servicer:
        server.add_generic_rpc_handlers([_handlers(servicer)])
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def _handlers(servicer: BulkMeta) -> grpc.GenericRpcHandler:
    service = meta_pb.DESCRIPTOR.services_by_name["MetaServiceService"]
    handlers = {}
    for name in ("MergeOffsetData", "ScanOffsetData", "SplitOffsetData"):
        method = service.methods_by_name[name]
        handlers[name] = grpc.unary_unary_rpc_method_handler(
            getattr(servicer, name),
            getattr(meta_pb, method.input_type.name).FromString,
            getattr(meta_pb, method.output_type.name).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def answer_lost(merge: Callable[[], None], context: grpc.ServicerContext) -> None:
    """The merge is applied, but the caller gets no reply."""
    merge()
    context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost by the test")


def never_came(_merge: Callable[[], None], context: grpc.ServicerContext) -> None:
    """The merge is not applied."""
    context.abort(grpc.StatusCode.UNAVAILABLE, "the request is lost by the test")


def no_fault(_merge: Callable[[], None], _context: grpc.ServicerContext) -> None:
    """The merge succeeds, so that the next one gets the next fault."""


def kill_the_caller(_merge: Callable[[], None], context: grpc.ServicerContext) -> None:
    """Send SIGKILL to the process at the other end of the connection."""
    port = int(context.peer().rpartition(":")[2])
    caller = next(found.pid for found in psutil.net_connections("tcp") if found.pid and found.laddr and found.laddr.port == port)
    assert caller != os.getpid()
    os.kill(caller, signal.SIGKILL)
