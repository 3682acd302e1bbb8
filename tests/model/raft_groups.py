"""Raft groups of etcd in virtual time: they hold what etcd's rules say, and may fall silent and answer again.

A silent Raft group has lost nothing. What a call to it meets is its `Fate`; its caller gets an error in each case.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from enum import Enum
from functools import partial
from itertools import cycle
from random import Random
from typing import Any

import grpc
import grpc.aio

from adapter.rpc import etcd_pb
from tests.etcd_rules import Contents, range_read, transact
from tests.model.loop import VirtualLoop

WAYS_S = (0.0002, 0.0002, 0.0002, 0.001)  # of a request, or of an answer
TERM = 1
MEMBER = 1


class Fate(Enum):
    """What becomes of a call to a silent Raft group."""

    LOST = "never arrives"
    UNANSWERED = "is done, and the answer is lost"
    LATE = "is done when the Raft group answers again, and answered if somebody still waits"
    REFUSED = "fails at once, and nothing is done"
    CUT = "is done, and fails at once"


class RaftGroup:
    """An etcd cluster of one member."""

    def __init__(self, loop: VirtualLoop, name: str, number: int, max_txn_ops: int, seed: int) -> None:
        self.loop = loop
        self.name = name
        self.contents = Contents({})
        self._cluster_id = number
        self._max_txn_ops = max_txn_ops
        self._ways = Random(seed)
        self._fates: cycle[Fate] | None = None
        self._late: list[Callable[[], None]] = []

    @property
    def silent(self) -> bool:
        """Whether it answers nobody."""
        return self._fates is not None

    def fall_silent(self, fates: Sequence[Fate]) -> None:
        """From now on calls meet these fates in turn."""
        self._fates = cycle(fates)

    def speak(self) -> None:
        """It answers again."""
        self._fates = None
        late, self._late = self._late, []
        for arrive in late:
            arrive()

    def later(self, work: Callable[..., None], *args: Any) -> None:
        """When a message is there that is sent now: whatever becomes of the process that sends or awaits it."""
        self.loop.call_later(self._ways.choice(WAYS_S), work, *args, context=Context())

    def arrive(self, method: str, request: Any, answer: "asyncio.Future[Any]") -> None:
        """A call is here."""
        fate = next(self._fates) if self._fates else None
        if fate is Fate.LATE:
            self._late.append(partial(self.arrive, method, request, answer))
        if fate in {None, Fate.UNANSWERED, Fate.CUT}:
            reply = self._do(method, request)
            if fate is None:
                self.later(_end, answer, reply)
        if fate in {Fate.REFUSED, Fate.CUT}:
            _end(answer, _error(grpc.StatusCode.UNAVAILABLE, "silent by the test"))

    def _do(self, method: str, request: Any) -> Any:
        if method == "Status":
            return etcd_pb.StatusResponse(leader=MEMBER, raftTerm=TERM)
        reply: etcd_pb.TxnResponse | etcd_pb.RangeResponse
        if method == "Txn":
            self.contents, reply = transact(self.contents, request, self._max_txn_ops)
        else:
            assert method == "Range", method
            reply = range_read(self.contents, request)
        reply.header.cluster_id, reply.header.raft_term = self._cluster_id, TERM
        return reply


class Channel:
    """Stands for a gRPC channel to the member. What was sent arrives, whatever becomes of its sender."""

    def __init__(self, group: RaftGroup, is_dead: Callable[[], bool]) -> None:
        self._group = group
        self._is_dead = is_dead

    def unary_unary(self, path: str, *_: object, **__: object) -> Callable[..., Any]:
        """As gRPC's."""
        return partial(self._call, path.rpartition("/")[2])

    stream_stream = unary_stream = unary_unary

    async def _call(self, method: str, request: Any, *, timeout: float, metadata: object) -> Any:  # noqa: ARG002, ASYNC109 - as gRPC's
        if self._is_dead():
            raise asyncio.CancelledError
        answer: asyncio.Future[Any] = self._group.loop.create_future()
        self._group.later(self._group.arrive, method, request, answer)
        try:
            async with asyncio.timeout(timeout):
                found = await answer
        except TimeoutError:
            raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer in time") from None
        if isinstance(found, grpc.aio.AioRpcError):
            raise found
        return found


def _end(answer: "asyncio.Future[Any]", found: object) -> None:
    if not answer.done():
        answer.set_result(found)


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
