"""`tests/etcd_rules.py`, on which the fake etcd and the exploration stand, answers as the real etcd does."""

from random import Random

import grpc
import pytest

from adapter.rpc import etcd_grpc, etcd_pb
from adapter.testing.etcd import CHANNEL_OPTIONS
from tests.contract.etcd import shared_cluster, shared_section
from tests.etcd_rules import Contents, RuleError, range_read, transact

NAMES = [b"a", b"ab", b"b", b"c", b"c\0", b"d"]
ENDS = [b"", b"", b"b", b"c", b"c\0", b"e"]
VALUES = [b"", b"1", b"1\0", b"2", b"\xff"]
ROUNDS = 400
MAX_OPS = 512  # the setting of `adapter.testing.etcd`
MAX_DEPTH = 2  # of transactions in transactions

_COMPARE = etcd_pb.Compare


class Draw:
    """Random requests. Keys and revisions are those of the rules; `shifted` makes them those of the real etcd."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def request(self, revision: int, depth: int = 0) -> etcd_pb.TxnRequest:
        """A transaction, with others nested in it."""
        request = etcd_pb.TxnRequest()
        for _ in range(self._rng.randrange(3)):
            self._compare(request.compare.add(), revision)
        for ops in (request.success, request.failure):
            for _ in range(self._rng.randrange(4)):
                self._op(ops.add(), revision, depth)
        return request

    def range(self) -> etcd_pb.RangeRequest:
        """A range read."""
        flags = {name: self._rng.random() < 0.3 for name in ("keys_only", "count_only")}
        start, end = self._span()
        return etcd_pb.RangeRequest(key=start, range_end=end, limit=self._rng.choice([0, 0, 1, 2]), **flags)

    def _span(self) -> tuple[bytes, bytes]:
        start = self._rng.choice(NAMES)
        end = self._rng.choice(ENDS)
        return start, end if end > start else b""

    def _compare(self, compare: etcd_pb.Compare, revision: int) -> None:
        compare.key, compare.range_end = self._span()
        compare.result = self._rng.choice([_COMPARE.EQUAL, _COMPARE.GREATER, _COMPARE.LESS, _COMPARE.NOT_EQUAL])
        compare.target = self._rng.choice([_COMPARE.VERSION, _COMPARE.CREATE, _COMPARE.MOD, _COMPARE.VALUE])
        if compare.target == _COMPARE.VALUE:
            compare.value = self._rng.choice(VALUES)
        elif compare.target == _COMPARE.VERSION:
            compare.version = self._rng.randrange(4)
        elif compare.target == _COMPARE.CREATE:
            compare.create_revision = self._revision(revision)
        else:
            compare.mod_revision = self._revision(revision)

    def _revision(self, revision: int) -> int:
        return self._rng.choice([0, revision, revision + 1, max(revision - self._rng.randrange(5), 0)])

    def _op(self, op: etcd_pb.RequestOp, revision: int, depth: int) -> None:
        kind = self._rng.randrange(4 if depth < MAX_DEPTH else 3)
        if kind == 0:
            op.request_put.key, op.request_put.value = self._rng.choice(NAMES), self._rng.choice(VALUES)
        elif kind == 1:
            op.request_range.CopyFrom(self.range())
        elif kind == 2:
            op.request_delete_range.key, op.request_delete_range.range_end = self._span()
        else:
            op.request_txn.CopyFrom(self.request(revision, depth + 1))


class Real:
    """The real etcd below a prefix. Its revisions count from where they were."""

    def __init__(self, kv: "etcd_grpc.KVStub", prefix: bytes) -> None:
        self._kv = kv
        self._prefix = prefix
        self._base = kv.Range(etcd_pb.RangeRequest(key=prefix)).header.revision - 1

    def txn(self, request: etcd_pb.TxnRequest) -> etcd_pb.TxnResponse | str:
        """As the rules answer, or what was refused."""
        sent = etcd_pb.TxnRequest()
        sent.CopyFrom(request)
        self._shift(sent)
        try:
            reply: etcd_pb.TxnResponse = self._kv.Txn(sent)
        except grpc.RpcError as error:
            return str(error.details())
        self._shift_back(reply)
        return reply

    def range(self, request: etcd_pb.RangeRequest) -> etcd_pb.RangeResponse:
        """As the rules answer."""
        sent = etcd_pb.RangeRequest()
        sent.CopyFrom(request)
        self._place(sent)
        reply: etcd_pb.RangeResponse = self._kv.Range(sent)
        self._of_range(reply)
        return reply

    def _place(self, named: etcd_pb.RangeRequest | etcd_pb.DeleteRangeRequest | etcd_pb.Compare) -> None:
        named.key = self._prefix + named.key
        if named.range_end:
            named.range_end = self._prefix + named.range_end

    def _shift(self, request: etcd_pb.TxnRequest) -> None:
        for compare in request.compare:
            self._place(compare)
            if compare.mod_revision:
                compare.mod_revision += self._base
            if compare.create_revision:
                compare.create_revision += self._base
        for op in (*request.success, *request.failure):
            if op.HasField("request_put"):
                op.request_put.key = self._prefix + op.request_put.key
            elif op.HasField("request_range"):
                self._place(op.request_range)
            elif op.HasField("request_delete_range"):
                self._place(op.request_delete_range)
            else:
                self._shift(op.request_txn)

    def _shift_back(self, reply: etcd_pb.TxnResponse) -> None:
        self._head(reply.header)
        for found in reply.responses:
            if found.HasField("response_range"):
                self._of_range(found.response_range)
            elif found.HasField("response_txn"):
                self._shift_back(found.response_txn)

    def _of_range(self, reply: etcd_pb.RangeResponse) -> None:
        self._head(reply.header)
        for kv in reply.kvs:
            kv.key = kv.key.removeprefix(self._prefix)
            kv.create_revision -= self._base
            kv.mod_revision -= self._base

    def _head(self, header: etcd_pb.ResponseHeader) -> None:
        header.revision -= self._base


def answered(contents: Contents, request: etcd_pb.TxnRequest) -> tuple[Contents, etcd_pb.TxnResponse | str]:
    """By the rules: what is stored then, and the answer or why it was refused."""
    try:
        return transact(contents, request, MAX_OPS)
    except RuleError as error:
        return contents, str(error)


def plain(message: etcd_pb.TxnResponse | etcd_pb.RangeResponse | str, *, inner: bool = False) -> object:
    """What a client uses: etcd leaves out the headers of what is nested, and says who answered."""
    if isinstance(message, str):
        return message
    revision = 0 if inner else message.header.revision
    if isinstance(message, etcd_pb.RangeResponse):
        rows = [(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version) for kv in message.kvs]
        return rows, message.more, message.count, revision
    answers: list[object] = []
    for found in message.responses:
        kind = found.WhichOneof("response")
        if kind == "response_range":
            answers.append(plain(found.response_range, inner=True))
        elif kind == "response_txn":
            answers.append(plain(found.response_txn, inner=True))
        else:
            answers.append((kind, found.response_delete_range.deleted))
    return message.succeeded, answers, revision


@pytest.mark.parametrize("seed", range(4))
def test_the_rules_answer_as_the_real_etcd_does(seed: int) -> None:
    """Random transactions with nested ones, and random reads: each answer and each refusal is the same."""
    endpoint = shared_cluster("rules").endpoints[0]
    draw = Draw(Random(seed))
    refused = 0
    with grpc.insecure_channel(endpoint, CHANNEL_OPTIONS) as channel:
        real = Real(etcd_grpc.KVStub(channel), shared_section().prefix.encode())
        contents = Contents({})
        for _ in range(ROUNDS):
            request = draw.request(contents.revision)
            expected = real.txn(request)
            contents, answer = answered(contents, request)
            assert plain(answer) == plain(expected), request
            refused += isinstance(answer, str)
            asked = draw.range()
            assert plain(range_read(contents, asked)) == plain(real.range(asked)), asked
    assert 20 < refused < ROUNDS - 20


def test_too_many_operations_are_refused_as_by_the_real_etcd() -> None:
    """So many at most, and those of nested transactions are added to those of the outer one."""
    endpoint = shared_cluster("rules").endpoints[0]
    with grpc.insecure_channel(endpoint, CHANNEL_OPTIONS) as channel:
        real = Real(etcd_grpc.KVStub(channel), shared_section().prefix.encode())
        for outer, inner in ((512, 0), (513, 0), (500, 12), (500, 13), (510, 2)):
            request = etcd_pb.TxnRequest()
            for _ in range(outer - 1):
                request.success.add().request_range.key = b"a"
            nested = request.success.add().request_txn
            nested.SetInParent()
            for _ in range(inner):
                nested.success.add().request_range.key = b"a"
            _, answer = answered(Contents({}), request)
            assert plain(answer) == plain(real.txn(request)), (outer, inner)
