"""A Meta Service as RobustMQ has it: only its three calls, only its fields, only offsets. In memory; survives `stop` and `start`.

Its messages are built here from RobustMQ's own field numbers, so that it cannot see anything of ours: what is unknown is skipped.
What it does was read in RobustMQ at 8bd49dc5 (2026-08-21), `src/` left out below:

- protocol/src/meta/common.proto:192-244: the fields; tenant, group, shard_name and topic must not be empty, a save names at least
  one offset, a delete at least one shard. Else INVALID_ARGUMENT for the whole request (server/service_common.rs:99).
- meta-service/src/raft/route/common.rs:98-131: a save without `expected_offset` overwrites. One with it is compare-and-set, entry
  by entry, against what was stored before its group of the request: a mismatch is skipped, no error, the others are written. An
  absent key reads as the offset 0. `committed` is False when any entry of the request was skipped, and does not say which.
- meta-service/src/server/services/common/inner.rs:140-176: a request is applied group by group (tenant/group, sorted), not as a
  whole: an error in the middle, INTERNAL as all of them, leaves the first ones applied. So does a deadline (`groups_in_time`).
- meta-service/src/raft/group.rs:146-220: each group belongs to a Raft group, by a hash. On a node that is not its leader the
  error names the leader, if there is one: `leader_of`. Seen of the binary built from that commit as well.
- inner.rs:179-201: a read is of the node that was asked, whatever the leader has by then. An unknown group is empty, no error.
- common.rs:180-187: a delete removes the rows and leaves nothing behind. Deleting what is absent is no error.
- meta-service/src/controller/group_gc.rs: the server itself deletes a group without a save for seven days (config/default.rs:85).

`groups_in_time` is how many groups it writes before the caller's deadline passes; `leader_of` gives the address of the leader of
TENANT/GROUP (None: of an election), by default its own. Nodes of one cluster share `offsets`, `topics` and `groups_in_time`.

`committed=False` makes it a RobustMQ from before `expected_offset`: always a plain overwrite, and an empty reply.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from adapter.model.records import OffsetKey

Before = Callable[[str, Any], None]

_TYPES = {"string": 9, "uint64": 4, "uint32": 13, "bool": 8}
_PACKAGE = "meta.service.common"
# A name behind `*` is a repeated field of that message or type, behind `?` an optional one.
_MESSAGES = {
    "SaveOffsetDataRequest": {2: ("offsets", "*SaveOffsetData")},
    "SaveOffsetData": {1: ("group", "string"), 2: ("offsets", "*SaveOffsetDataRequestOffset"), 3: ("tenant", "string")},
    "SaveOffsetDataRequestOffset": {
        2: ("shard_name", "string"),
        3: ("offset", "uint64"),
        4: ("topic", "string"),
        5: ("partition", "uint32"),
        6: ("expected_offset", "?uint64"),
    },
    "SaveOffsetDataReply": {1: ("committed", "bool")},
    "GetOffsetDataRequest": {1: ("tenant", "string"), 2: ("group", "string")},
    "GetOffsetDataReply": {1: ("offsets", "*GetOffsetDataReplyOffset")},
    "GetOffsetDataReplyOffset": {
        2: ("shard_name", "string"),
        3: ("offset", "uint64"),
        4: ("topic", "string"),
        5: ("partition", "uint32"),
    },
    "DeleteOffsetDataRequest": {1: ("tenant", "string"), 2: ("group", "string"), 3: ("shard_names", "*string")},
    "DeleteOffsetDataReply": {},
}


def _describe(message: descriptor_pb2.DescriptorProto, number: int, name: str, kind: str) -> None:
    field = message.field.add(name=name, number=number, label=3 if kind.startswith("*") else 1)
    bare = kind.lstrip("*?")
    if bare in _TYPES:
        field.type = descriptor_pb2.FieldDescriptorProto.Type.ValueType(_TYPES[bare])
    else:
        field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{bare}"
    if kind.startswith("?"):
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


def _classes() -> dict[str, Any]:
    """RobustMQ's messages, in a pool of their own beside those of the adapter."""
    file = descriptor_pb2.FileDescriptorProto(name="robustmq.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in fields.items():
            _describe(message, number, field, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES}


ROBUST = _classes()


class _InvalidError(Exception):
    """A request breaks one of RobustMQ's rules."""


class RobustMeta:
    """The server. It runs in threads of its own, so that a test may block.

    `before` is called with the name of the RPC and its request before it is applied: it may change `offsets`, wait, or raise
    Failure. Each save is in `saves`, as it came; the groups that were read are in `reads`.
    """

    def __init__(self, *, committed: bool = True, credentials: grpc.ServerCredentials | None = None) -> None:
        self.credentials = credentials  # the real one has no TLS
        self.offsets: dict[OffsetKey, int] = {}
        self.topics: dict[OffsetKey, str] = {}
        self.partitions: dict[OffsetKey, int] = {}
        self.saves: list[Any] = []
        self.reads: list[tuple[str, str]] = []
        self.deletes: list[Any] = []
        self.before: Before = _nothing
        self.groups_in_time = sys.maxsize
        self.written: list[str] = []  # groups, as TENANT/GROUP, each time that one was written
        self.leader_of: Callable[[str], str | None] = lambda _: self.address
        self._committed = committed
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """Where it serves, also after a restart."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Serve, at the same port as before."""
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        handlers = {name: self._handler(name, method) for name, method in self._methods().items()}
        handlers["Heartbeat"] = grpc.unary_unary_rpc_method_handler(self._heartbeat)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{_PACKAGE}.MetaServiceService", handlers),))
        if self.credentials:
            self.port = self._server.add_secure_port(f"127.0.0.1:{self.port}", self.credentials)
        else:
            self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def stop(self) -> None:
        """Stop serving and cut the connections; the offsets stay."""
        if self._server:
            self._server.stop(None).wait()
            self._server = None

    def conditional(self) -> list[dict[str, tuple[int, int]]]:
        """The saves that carried expectations: shard -> (expected, offset)."""
        rows = [[row for group in save.offsets for row in group.offsets] for save in self.saves]
        found = [{row.shard_name: (row.expected_offset, row.offset) for row in save if _expects(row)} for save in rows]
        return [save for save in found if save]

    def _methods(self) -> dict[str, Callable[[Any], Any]]:
        return {"SaveOffsetData": self._save, "GetOffsetData": self._get, "DeleteOffsetData": self._delete}

    def _handler(self, name: str, method: Callable[[Any], Any]) -> "grpc.RpcMethodHandler[Any, Any]":
        def serve(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                self.before(name, request)
                with self._lock:
                    return method(request)
            except _InvalidError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except Failure as error:
                context.abort(error.code, str(error))

        return grpc.unary_unary_rpc_method_handler(
            serve,
            request_deserializer=ROBUST[f"{name}Request"].FromString,
            response_serializer=lambda reply: reply.SerializeToString(),
        )

    def _heartbeat(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            self.before("Heartbeat", request)
        except Failure as error:
            context.abort(error.code, str(error))
        return b""

    def _save(self, request: Any) -> Any:
        self.saves.append(request)
        _require(request, "offsets")
        for group in request.offsets:
            _require(group, "group", "offsets", "tenant")
            for row in group.offsets:
                _require(row, "shard_name", *(["topic"] if self._committed else []))
        skipped = []
        for at, group in enumerate(sorted(request.offsets, key=lambda group: f"{group.tenant}/{group.group}")):
            if at >= self.groups_in_time:
                raise Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded")
            self._lead(f"{group.tenant}/{group.group}")
            skipped.append(self._save_group(group))
        return ROBUST["SaveOffsetDataReply"](committed=self._committed and not any(skipped))

    def _lead(self, name: str) -> None:
        """Fail as a node does that is not the leader for a group."""
        leader = self.leader_of(name)
        if leader != self.address:
            number = leader.rpartition(":")[2] if leader else ""
            who = f'Some({number}), Some(Node {{ node_id: {number}, rpc_addr: "{leader}" }})' if leader else "None, None"
            text = f"Failed to write offset partition '{name}': has to forward request to: {who}"
            raise Failure(grpc.StatusCode.INTERNAL, text)

    def _save_group(self, group: Any) -> int:
        """Write a group of a save; returns how many entries were not as expected."""
        self.written.append(f"{group.tenant}/{group.group}")
        rows = {OffsetKey(group.tenant, group.group, row.shard_name): row for row in group.offsets}
        taken = {
            key: row
            for key, row in rows.items()
            if not self._committed or not _expects(row) or self.offsets.get(key, 0) == row.expected_offset
        }
        self.offsets.update((key, row.offset) for key, row in taken.items())
        self.topics.update((key, row.topic) for key, row in taken.items())
        self.partitions.update((key, row.partition) for key, row in taken.items())
        return len(rows) - len(taken)

    def _get(self, request: Any) -> Any:
        _require(request, "tenant", "group")
        self.reads.append((request.tenant, request.group))
        reply = ROBUST["GetOffsetDataReply"]()
        for key, offset in self.offsets.items():
            if key[:2] == (request.tenant, request.group):
                topic = self.topics.get(key, key.shard)
                reply.offsets.add(shard_name=key.shard, offset=offset, topic=topic, partition=self.partitions.get(key, 0))
        return reply

    def _delete(self, request: Any) -> Any:
        self.deletes.append(request)
        _require(request, "tenant", "group", "shard_names")
        self._lead(f"{request.tenant}/{request.group}")
        for shard in request.shard_names:
            self.offsets.pop(OffsetKey(request.tenant, request.group, shard), None)
        return ROBUST["DeleteOffsetDataReply"]()


class Failure(Exception):  # noqa: N818 - what a test wants, not an error of the test
    """Raised by `RobustMeta.before`: the call ends with this status."""

    def __init__(self, code: grpc.StatusCode, text: str = "by the test") -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def robust_meta(*, committed: bool = True, credentials: grpc.ServerCredentials | None = None) -> Iterator[RobustMeta]:
    """A running server, stopped at the end."""
    service = RobustMeta(committed=committed, credentials=credentials)
    service.start()
    try:
        yield service
    finally:
        service.stop()


def failing(*codes: grpc.StatusCode, rpc: str = "SaveOffsetData", after: int = 0) -> Before:
    """Let calls of `rpc` fail in this order, and the others through; the first `after` are let through."""
    waiting: list[grpc.StatusCode | None] = [*[None] * after, *codes]

    def before(name: str, _: Any) -> None:
        code = waiting.pop(0) if name == rpc and waiting else None
        if code:
            raise Failure(code)

    return before


def _nothing(name: str, request: Any) -> None:
    """Nothing happens before a call."""


def _expects(row: Any) -> bool:
    return bool(row.HasField("expected_offset"))


def _require(message: Any, *fields: str) -> None:
    for field in fields:
        if not getattr(message, field):
            raise _InvalidError(f"{message.DESCRIPTOR.name}.{field}: is empty")
