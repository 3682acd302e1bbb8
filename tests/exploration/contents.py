"""What Raft groups hold, as numbers: equal contents are one number, and each transaction on a content is executed once.

Where a scope does not compare revisions they are all 1: in what is stored, and in what a process is answered. So what differs
only in them is one state, and production code that used them would be seen to fail.
"""

from collections.abc import Iterator
from typing import NamedTuple

from adapter.metaservice.etcd.sharding import Layout
from adapter.rpc import etcd_pb
from tests.etcd_rules import Contents, Row, range_read, transact, writes
from tests.exploration.process import KEYS, METADATA, Request

PLACED = (KEYS.offsets, KEYS.stores)  # what is in the Raft group that the layout says


class Effect(NamedTuple):
    """Of a call on a content: the content after it, the answer, and what it changed of `PLACED` (key, before, after)."""

    after: int
    answer: bytes
    changed: tuple[tuple[bytes, bytes | None, bytes | None], ...]
    succeeded: bool


class Stores:
    """All contents of Raft groups, and all calls, so far."""

    def __init__(self, *, revisions: bool) -> None:
        self._revisions = revisions
        self._numbers: dict[object, int] = {}
        self._contents: list[Contents] = []
        self._effects: dict[tuple[int, Request], Effect] = {}
        self.executed = 0
        self.empty = self._number(Contents({}))

    def value(self, content: int, key: bytes) -> bytes | None:
        """What is stored under a key."""
        row = self._contents[content].rows.get(key)
        return row.value if row else None

    def placed(self, content: int) -> list[bytes]:
        """The keys of all offsets and reports."""
        return [key for key in self._contents[content].rows if key.startswith(PLACED)]

    def keys_below(self, content: int, prefix: bytes) -> list[bytes]:
        """All keys with a prefix."""
        return [key for key in self._contents[content].rows if key.startswith(prefix)]

    def execute(self, content: int, request: Request) -> Effect:
        """Execute a call."""
        found = self._effects.get((content, request))
        if found is None:
            found = self._effects[content, request] = self._execute(content, request)
        return found

    def _execute(self, content: int, request: Request) -> Effect:
        self.executed += 1
        before = self._contents[content]
        if not request.is_txn:
            answer = range_read(before, etcd_pb.RangeRequest.FromString(request.data))
            self._strip_range(answer)
            return Effect(content, answer.SerializeToString(), (), succeeded=True)
        txn = etcd_pb.TxnRequest.FromString(request.data)
        if not self._revisions:
            _check_without_revisions(txn)
        after, reply = transact(before, txn)
        if not self._revisions:
            after = Contents({key: Row(row.value, 1, 1, 1) for key, row in after.rows.items()})
        self._strip(reply)
        number = self._number(after)
        changed = tuple(_changes(before, after)) if number != content else ()
        return Effect(number, reply.SerializeToString(), changed, reply.succeeded)

    def _number(self, contents: Contents) -> int:
        # Nobody reads what the writers put beside their transactions.
        rows = {key: row for key, row in contents.rows.items() if not key.startswith(KEYS.writers)}
        contents = Contents(rows, contents.revision)
        key = (tuple(sorted(rows.items())), contents.revision)
        number = self._numbers.setdefault(key, len(self._contents))
        if number == len(self._contents):
            self._contents.append(contents)
        return number

    def _strip(self, reply: etcd_pb.TxnResponse) -> None:
        if self._revisions:
            return
        reply.header.revision = 1
        for found in reply.responses:
            if found.HasField("response_range"):
                self._strip_range(found.response_range)
            elif found.HasField("response_txn"):
                self._strip(found.response_txn)

    def _strip_range(self, reply: etcd_pb.RangeResponse) -> None:
        if self._revisions:
            return
        reply.header.revision = 1
        for kv in reply.kvs:
            kv.create_revision = kv.mod_revision = kv.version = 1


def may_write(request: Request) -> bool:
    """Whether a call could change anything."""
    return request.is_txn and writes(etcd_pb.TxnRequest.FromString(request.data))


def layout_of(stores: Stores, contents: tuple[int, ...]) -> Layout:
    """The layout that the metadata Raft group has, which comes first."""
    value = stores.value(contents[0], KEYS.layout)
    assert value is not None, METADATA
    return Layout.decode(value)


def _changes(before: Contents, after: Contents) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    for key in sorted({*before.rows, *after.rows}):
        if key.startswith(PLACED):
            old, new = before.rows.get(key), after.rows.get(key)
            if old != new:
                yield key, old.value if old else None, new.value if new else None


def _check_without_revisions(request: etcd_pb.TxnRequest) -> None:
    for compare in request.compare:
        by_version = compare.target == etcd_pb.Compare.VERSION and not compare.version
        assert by_version or compare.target == etcd_pb.Compare.VALUE, f"this scope needs revisions: {compare}"
    for op in (*request.success, *request.failure):
        if op.HasField("request_txn"):
            _check_without_revisions(op.request_txn)
