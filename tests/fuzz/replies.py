"""What the Meta Service and brokers answer to us.

The promises: whatever the Meta Service answers, an adapter answers its callers, or refuses them with a status that is not that of
a broken program; it stores nothing that no store may have, and goes on when the answers are good again. A broker's answer that
cannot be right is BrokerLogError. Packed rows are read as a second reader reads them, or are StoreDamagedError.
"""

import random
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import grpc
import grpc.aio
import pyarrow as pa
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError, Message

from adapter.client.broker_log import BrokerLogSection, GrpcBrokerLog
from adapter.errors import BrokerLogError, InvalidInputError, StoreDamagedError
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.metaservice.config import LimitsSection
from adapter.metaservice.limits import Limits
from adapter.metaservice.metadata_service import MetadataMetrics, MetadataService
from adapter.metaservice.metrics import MetaMetrics
from adapter.metaservice.offset_service import MetaService
from adapter.model.arrow import decode_packed, decode_records, decode_seqs
from adapter.model.records import LONG_MAX
from adapter.rpc import meta_pb, metadata_pb, offsets_pb
from adapter.sidecar.api.requests import parse_change_id
from tests.fuzz.messages import changed
from tests.fuzz.rpc_seeds import (
    EXAMPLES,
    META,
    METADATA,
    NAMES,
    OFFSET_ADMIN,
    OFFSET_STORE,
    STORE_ID,
    commit_groups,
    packed_entries,
)
from tests.fuzz.rpc_servers import Adapters, call, check_rows
from tests.fuzz.running import NOW_MS, wait
from tests.model.disk import Platter
from tests.model.engine import MemoryEngine
from tests.unit.calls import UNIX, AbortedError, context
from tests.unit.helpers import packed_rows
from tests.unit.metaservice.test_metadata_service import MemoryStore

Reset, Planned = offsets_pb.ResetOffsetsRequest, offsets_pb.PlannedReset

BEGIN = 3  # bytes in front of a reply of the Meta Service
TIMES = 3  # that a call is answered so
OURS = 99  # fields from here on are unknown to RobustMQ
HEAD = struct.Struct(">QQQQ?IBH")  # as in adapter/model/codec.py
WRONG = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS)

# The replies of the Meta Service that an adapter reads; False: of RobustMQ's, which has these calls alone.
META_REPLIES: Sequence[tuple[str, bool]] = (
    ("ReportStore", True),
    ("ListChangedGroups", True),
    ("BatchGetOffsetData", True),
    ("MergeOffsetData", True),
    ("SaveOffsetData", True),
    ("ListOffsetData", True),
    ("Get", True),
    ("Put", True),
    ("SaveOffsetData", False),
    ("GetOffsetData", False),
    ("DeleteOffsetData", False),
)
OTHER_REPLIES: Mapping[str, str] = {
    "Delete": "is only that it was done",
    "List": "names keys that were forgotten, of which those are deleted that are old",
    "ExpireOffsetData": "two numbers, of which any is right",
    "GetStoreStatus": "is only shown",
    **dict.fromkeys(
        ("SplitOffsetData", "ScanOffsetData", "SnapshotOffsetData"), "read by jobs: their packed rows are in peer_replies"
    ),
}
ROBUSTMQ = frozenset(name for name, epochs in META_REPLIES if not epochs)

# What an adapter asks its Meta Service for.
CALLS: Sequence[tuple[str, str, Message]] = [
    (service, name, request)
    for service, names in (
        (OFFSET_STORE, ("ReadOffsets", "CommitOffsets", "ReadBroadcast", "PersistOffsets", "RemoveOffsets")),
        (
            OFFSET_ADMIN,
            (
                "Flush",
                "DescribeGroup",
                "DescribeGroups",
                "ResetOffsets",
                "DeleteOffsets",
                "CloneGroup",
                "ExportOffsets",
                "ImportOffsets",
            ),
        ),
    )
    for name in names
    for request in EXAMPLES[service][name]
]


def meta_replies(data: bytes) -> None:
    """Three bytes: the reply, a call of the adapter, and whether the rest is the message, or a seed of changes of good ones."""
    if len(data) > BEGIN:
        name, epochs = META_REPLIES[data[0] % len(META_REPLIES)]
        rng = random.Random(data[BEGIN:]) if data[2] % 2 else None
        wait(_beside(_Channel(name, data[BEGIN:], rng, epochs=epochs), *CALLS[data[1] % len(CALLS)]))


class _Channel:
    """A channel to a Meta Service in this process, of RobustMQ's kind without `epochs`.

    The call `name` is answered by `answer` the first TIMES, or by changed replies if there is an `rng`.
    """

    def __init__(self, name: str, answer: bytes, rng: random.Random | None, *, epochs: bool) -> None:
        limits = Limits(LimitsSection(), _METRICS)
        self._services = {
            META: MetaService(MemoryEngine(lambda: NOW_MS), limits, _METRICS),
            METADATA: MetadataService(MemoryStore(), limits.metadata, _METADATA_METRICS),
        }
        self._name, self._answer, self._rng, self._epochs = name, answer, rng, epochs
        self._left = TIMES

    def unary_unary(self, path: str, **functions: Any) -> Callable[..., Awaitable[Message | None]]:
        """As grpc.aio's: it returns the reply, None where it is no message, or raises AioRpcError."""
        _, service, name = path.split("/")

        async def answered(request: Message, **_: object) -> Message | None:
            if not self._epochs and name not in ROBUSTMQ:
                raise _failed(grpc.StatusCode.UNIMPLEMENTED, "as RobustMQ, or as one without metadata")
            try:
                reply: Message = await getattr(self._services[service], name)(request, context(UNIX))
            except AbortedError as error:
                raise _failed(*error.args) from error
            if not self._epochs:
                _forget_ours(reply)
            try:
                found: Message = functions["response_deserializer"](self._instead(name, reply))
            except DecodeError:
                return None
            return found

        return answered

    unary_stream = unary_unary  # an adapter reads no stream of it

    def heal(self) -> None:
        """Answer as it should from now on."""
        self._left = 0

    def _instead(self, name: str, reply: Message) -> bytes:
        if name == self._name and self._left:
            self._left -= 1
            if self._rng is None:
                return self._answer
            return changed(reply, self._rng)
        return reply.SerializeToString()


async def _beside(channel: _Channel, service: str, name: str, request: Message) -> None:
    client = GrpcMetaClient(MetaSection(endpoints=("meta:1",)), {"meta:1": channel})  # type: ignore[dict-item]
    async with _ADAPTERS.running(Platter(), client) as (core, servicers):

        async def refusal(service: str, name: str, request: Message) -> str:
            """Why it was refused; empty if it was answered."""
            method = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
            try:
                await call(servicers[service], method, request)
            except AbortedError as error:
                code, text = error.args
                assert code not in WRONG, text
                return f"{code.name}: {text}"
            return ""

        await refusal(OFFSET_STORE, "CommitOffsets", offsets_pb.CommitOffsetsRequest(groups=commit_groups()))
        await refusal(OFFSET_ADMIN, "Flush", offsets_pb.FlushRequest())
        await refusal(service, name, request)
        check_rows((found.key, found.record) for found in core.ledger.store.scan())
        channel.heal()
        last = offsets_pb.GroupCommits(group="last", shard_names=["s"], offsets=[1])
        problem = await refusal(OFFSET_STORE, "CommitOffsets", offsets_pb.CommitOffsetsRequest(groups=[last]))
        problem = problem or await refusal(OFFSET_ADMIN, "Flush", offsets_pb.FlushRequest())
        assert not problem


def _failed(code: grpc.StatusCode, text: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)


def _forget_ours(message: Message) -> None:
    for field, value in message.ListFields():
        if field.number >= OURS:
            message.ClearField(field.name)
        elif field.message_type:
            for below in value if field.is_repeated else [value]:
                _forget_ours(below)


def peer_replies(data: bytes) -> None:
    """The first byte chooses the kind."""
    kind, read = _peer_reply(data)
    try:
        reply = kind.FromString(data[1:])
    except DecodeError:
        return
    read(reply)


def _peer_reply(data: bytes) -> tuple[type[Message], Callable[[Any], None]]:
    return PEER_REPLIES[data[0] % len(PEER_REPLIES)] if data else PEER_REPLIES[0]


def changed_reply(target: str, data: bytes, rng: random.Random) -> bytes:
    """An input with some fields of its message changed."""
    if target == "peer_replies":
        return data[:1] + changed(_peer_reply(data)[0].FromString(data[1:]), rng)
    if data[2] % 2:
        return data[:BEGIN] + rng.randbytes(8)
    name, _ = META_REPLIES[data[0] % len(META_REPLIES)]
    return data[:BEGIN] + changed(type(_EXAMPLES[name]).FromString(data[BEGIN:]), rng)


def _bounds(reply: offsets_pb.GetBoundsReply) -> None:
    found = _of_broker(lambda log: log.bounds("default", NAMES), reply)
    assert set(found) <= set(NAMES)
    assert all(bounds.low <= bounds.high for bounds in found.values())


def _offsets_for_time(reply: offsets_pb.GetOffsetsForTimeReply) -> None:
    assert set(_of_broker(lambda log: log.offsets_for_time("default", NAMES, 1), reply)) <= set(NAMES)


def _of_broker(ask: Callable[[GrpcBrokerLog], Any], reply: Message) -> Mapping[str, Any]:
    class Channel:
        def unary_unary(self, *_: object, **__: object) -> Callable[..., Awaitable[Message]]:
            async def answered(*_: object, **__: object) -> Message:
                return reply

            return answered

    try:
        found: Mapping[str, Any] = wait(ask(GrpcBrokerLog(BrokerLogSection(address="broker:1"), Channel())))  # type: ignore[arg-type]
    except BrokerLogError:
        return {}
    return found


def _columns(rows: meta_pb.PackedRows) -> None:
    """A page of a scan, or of a snapshot of the Meta Service."""
    found = _decoded(lambda: decode_packed(rows.keys, rows.key_sizes, rows.records, rows.record_sizes))
    keys, records = _cut(rows.keys, rows.key_sizes), _cut(rows.records, rows.record_sizes)
    assert found == (None if keys is None or records is None else _rows(keys, records, 4))


def _pages(reply: offsets_pb.SnapshotOffsetsReply) -> None:
    """A page of a snapshot of an adapter."""
    rows = _rows(reply.keys, reply.records, 3)
    assert _decoded(lambda: decode_records(reply.keys, reply.records)) == rows
    if rows is not None:
        assert decode_seqs(reply.records).tolist() == [HEAD.unpack_from(record)[0] for record in reply.records]


PEER_REPLIES: Sequence[tuple[type[Message], Callable[[Any], None]]] = (
    (offsets_pb.GetBoundsReply, _bounds),
    (offsets_pb.GetOffsetsForTimeReply, _offsets_for_time),
    (meta_pb.PackedRows, _columns),
    (offsets_pb.SnapshotOffsetsReply, _pages),
)

Row = tuple[object, ...]


def _decoded(decode: Callable[[], pa.RecordBatch]) -> list[Row] | None:
    """The rows; None if they are damaged."""
    try:
        batch = decode()
    except (StoreDamagedError, InvalidInputError):
        return None
    batch.validate(full=True)
    names = ("namespace", "group", "shard", "epoch", "offset", "live", "partition", "topic", "metadata")
    return list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))


def _rows(keys: Sequence[bytes], records: Sequence[bytes], names: int) -> list[Row] | None:
    """The same, read a second time."""
    if len(keys) != len(records):
        return None
    found: list[Row] = []
    for key, record in zip(keys, records, strict=True):
        parts, at = [], 0
        while at < len(key):
            parts.append(key[at + 1 : at + 1 + key[at]])
            at += 1 + key[at]
        head = _head(record)
        if head is None or at != len(key) or len(parts) != names:
            return None
        _, epoch, offset, _, live, partition, topic_size, _ = head
        end = HEAD.size + topic_size
        try:
            *key_names, topic, metadata = (part.decode() for part in (*parts[-3:], record[HEAD.size : end], record[end:]))
        except UnicodeDecodeError:
            return None
        numbers = (number if number <= LONG_MAX else None for number in (epoch, offset))
        found.append((*key_names, *numbers, live, partition, topic, metadata))
    return found


def _head(record: bytes) -> tuple[Any, ...] | None:
    head = HEAD.unpack_from(record) if len(record) >= HEAD.size else None
    return head if head and len(record) == HEAD.size + head[-2] + head[-1] else None


def _cut(joined: bytes, sizes: bytes) -> list[bytes] | None:
    """The values of a column; None if the sizes are of another one."""
    if len(sizes) % 2:
        return None
    ends = [0]
    for (size,) in struct.iter_unpack("<H", sizes):
        ends.append(ends[-1] + size)
    return [joined[start:end] for start, end in pairwise(ends)] if ends[-1] == len(joined) else None


_METRICS = MetaMetrics()
_METADATA_METRICS = MetadataMetrics(_METRICS.registry)
_ADAPTERS = Adapters()
REPLIES: dict[str, Callable[[bytes], None]] = {"meta_replies": meta_replies, "peer_replies": peer_replies}


def reply_seeds(target: str) -> Iterator[bytes]:
    """One whole example of each, and of the Meta Service's changed ones."""
    if target == "meta_replies":
        for at, (name, _) in enumerate(META_REPLIES):
            for call_at in range(len(CALLS)):
                yield bytes([at, call_at, 0]) + _EXAMPLES[name].SerializeToString()
                yield bytes([at, call_at, 1, at])
        return
    keys, records = packed_entries()
    bounds = [offsets_pb.GetBoundsReply.Bounds(shard=name, low=1, high=2) for name in NAMES]
    times = [offsets_pb.GetOffsetsForTimeReply.Found(shard=name, offset=at or None) for at, name in enumerate(NAMES)]
    examples: Sequence[Message] = (
        offsets_pb.GetBoundsReply(bounds=bounds),
        offsets_pb.GetOffsetsForTimeReply(found=times),
        packed_rows("default", keys, records),
        offsets_pb.SnapshotOffsetsReply(keys=keys, records=records),
    )
    yield from (bytes([at]) + example.SerializeToString() for at, example in enumerate(examples))


_OFFSET = meta_pb.GetOffsetDataReplyOffset(
    namespace="default", shard_name="s", offset=9, epoch=2, topic="t", metadata="m", committed_at_ms=NOW_MS
)
_MARK = meta_pb.StoreMark(store_id=STORE_ID, incarnation=1, revision=9, starts=[meta_pb.StoreMark.Start(id=1, revision=1)])


def _planned() -> bytes:
    """What is remembered of the reset among the examples that has an ID."""
    request = next(one for one in EXAMPLES[OFFSET_ADMIN]["ResetOffsets"] if isinstance(one, Reset) and one.change_id)
    change = parse_change_id(request)
    assert change
    row = Planned.Row(shard="s", before=packed_entries()[1][0], after=packed_entries()[1][0])
    return Planned(request=change.request, namespace="default", group="g", rows=[row], planned_at_ms=NOW_MS).SerializeToString()


_EXAMPLES: Mapping[str, Message] = {
    "ReportStore": meta_pb.ReportStoreReply(
        known=meta_pb.LocalStore(broker="b", path="/p", store_id=STORE_ID, flushed_seq=5),
        known_at_ms=NOW_MS,
        marks=[_MARK],
        now_ms=NOW_MS,
    ),
    "ListChangedGroups": meta_pb.ListChangedGroupsReply(
        groups=[meta_pb.ListChangedGroupsReply.Group(namespace="default", group="g")], places=[_MARK]
    ),
    "BatchGetOffsetData": meta_pb.BatchGetOffsetDataReply(
        groups=[meta_pb.BatchGetOffsetDataReply.Group(offsets=[_OFFSET])], next_page_token=b"s"
    ),
    "MergeOffsetData": meta_pb.MergeOffsetDataReply(
        applied=1,
        superseded=1,
        standing=[
            meta_pb.MergeOffsetDataReply.Standing(
                index=0, status=meta_pb.SaveOffsetResult.SUPERSEDED, record=packed_entries()[1][0]
            )
        ],
        marks=[_MARK],
        now_ms=NOW_MS,
    ),
    "SaveOffsetData": meta_pb.SaveOffsetDataReply(
        committed=True,
        results=[
            meta_pb.SaveOffsetResult(
                group="g", namespace="default", shard_name="s", status=meta_pb.SaveOffsetResult.SUPERSEDED, epoch=5, offset=7
            )
        ],
    ),
    "ListOffsetData": meta_pb.ListOffsetDataReply(
        entries=[meta_pb.ListOffsetDataReply.Entry(group="g", offset=_OFFSET)], next_page_token=b"t"
    ),
    "Get": metadata_pb.GetReply(entry=metadata_pb.Entry(key="k", value=_planned(), revision=3)),
    "Put": metadata_pb.PutReply(revision=3),
    "GetOffsetData": meta_pb.GetOffsetDataReply(offsets=[_OFFSET]),
    "DeleteOffsetData": meta_pb.DeleteOffsetDataReply(),
}
