"""The Meta Service's endpoints: failover, deadlines, errors in our terms, and of which kind each server is.

A server knows epochs or, as RobustMQ, only offsets. Each is asked before the first call that depends on it; later its answers
tell. A call that is meant for one kind is not sent to one known to be of the other, also not by a failover. Never retries.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import anyio.lowlevel
import grpc
import grpc.aio
import structlog

from adapter.errors import MetaUnavailableError, TimedOutError
from adapter.meta.errors import translated
from adapter.meta.store_marks import Told
from adapter.model.records import StoreMark, StoreStart
from adapter.rpc import meta_grpc, meta_pb
from adapter.runtime.clocks import wall_ms

if TYPE_CHECKING:  # exists only in the stubs
    from adapter.rpc.meta_service_pb2_grpc import MetaServiceServiceAsyncStub as Stub

log = structlog.get_logger(__name__)

R = TypeVar("R")

# Their replies tell how far the stores are, and the time.
_TELLING = (meta_pb.SaveOffsetDataReply, meta_pb.MergeOffsetDataReply, meta_pb.ReportStoreReply)


class OtherKindError(MetaUnavailableError):
    """The server that answers now is not of the kind that the call was meant for. Nothing was sent; it is current from now on."""


class Endpoints:
    """One endpoint is current until it fails, then the next that answers."""

    def __init__(self, names: Sequence[str], channels: Mapping[str, grpc.aio.Channel]) -> None:
        self._names = tuple(names)
        self._stubs = {name: meta_grpc.MetaServiceServiceStub(channels[name]) for name in names}
        self._epochs: dict[str, bool] = {}  # whether they know them; of those that have answered once
        self.current = names[0]
        self.available = True
        self.told = Told()
        self.unanswered = 0  # calls that failed: whoever answers the next one may have been restarted meanwhile

    @property
    def knows_epochs(self) -> bool:
        """Of the current endpoint; one that has never answered counts as one of ours."""
        return self._epochs.get(self.current, True)

    def learn(self, *, epochs: bool) -> None:
        """An answer of the current endpoint showed of which kind it is."""
        self._learn(self.current, epochs=epochs)

    async def look(self, timeout_s: float) -> None:
        """Find out whether a server is there, and of which kind. Raises MetaUnavailableError."""
        self.learn(epochs=bool(await self.call(lambda stub: _knows_epochs(stub, timeout_s), timeout_s=timeout_s)))

    async def call(self, call: "Callable[[Stub], Awaitable[R]]", *, timeout_s: float, epochs: bool | None = None) -> R:
        """Call the current endpoint; when it is unavailable, each other one once. The one that answered stays current.

        An overloaded one did answer: it is there, and another one may have room. When none has, the error says when to come back.
        Raises MetaUnavailableError, as TimedOutError when one took too long; RefusedError; OtherKindError when `epochs` (not
        None) is not true of the one that answers.
        """
        problems = []
        timed_out = False
        overloaded: dict[str, float] = {}
        first = self._names.index(self.current)
        for name in (*self._names[first:], *self._names[:first]):
            try:
                if epochs is not None:
                    await self._check_kind(name, timeout_s, epochs=epochs)
                noted, sent_ms = self.told.marks.noted(), wall_ms()
                answer = await call(self._stubs[name])
            except grpc.aio.AioRpcError as error:
                found = translated(name, error, timeout_s)
                if isinstance(found, MetaUnavailableError):
                    problems.append(str(found))
                    timed_out = timed_out or isinstance(found, TimedOutError)
                    if found.retry_after_s:
                        overloaded[name] = found.retry_after_s
                    else:
                        self.unanswered += 1
                        self.told.changed.set()
                    continue
                self.available = True
                if epochs and error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    self._learn(name, epochs=False)
                    self._move_to(name)
                raise found from error
            except asyncio.CancelledError:
                # grpc.aio loses the mark by which a cancel scope knows its own cancellation, which would go on beyond it.
                await anyio.lowlevel.checkpoint_if_cancelled()
                raise
            if answer is None:  # what grpc.aio makes of bytes that are no message
                problems.append(f"{name}: answered with something that is no message of a Meta Service")
                continue
            self.available = True
            self.current = name
            if isinstance(answer, _TELLING):
                self._take_told(name, answer, noted, sent_ms)
            return answer
        self.available = bool(overloaded)
        self.current = next(iter(overloaded), self.current)
        error_type = TimedOutError if timed_out else MetaUnavailableError
        raise error_type("; ".join(problems), retry_after_s=min(overloaded.values(), default=0.0))

    def _take_told(
        self,
        name: str,
        answer: "meta_pb.SaveOffsetDataReply | meta_pb.MergeOffsetDataReply | meta_pb.ReportStoreReply",
        noted: Mapping[str, StoreMark],
        sent_ms: int,
    ) -> None:
        """RobustMQ tells nothing."""
        if answer.now_ms:
            self.told.skew.take(sent_ms, wall_ms(), answer.now_ms)
        marks = [
            StoreMark(
                mark.name,
                mark.store_id,
                mark.incarnation,
                mark.revision,
                tuple(StoreStart(start.id, start.revision) for start in mark.starts),
            )
            for mark in answer.marks
        ]
        self.told.take(noted, marks, name)

    async def _check_kind(self, name: str, timeout_s: float, *, epochs: bool) -> None:
        if name not in self._epochs:
            found = await _knows_epochs(self._stubs[name], timeout_s)
            if found is not None:
                self._learn(name, epochs=found)
        if self._epochs.get(name, True) is not epochs:
            self._move_to(name)

    def _move_to(self, name: str) -> None:
        self.available = True
        self.current = name
        what = "knows epochs" if self.knows_epochs else "knows no epochs"
        raise OtherKindError(
            f"{name}: this server {what}, unlike what was asked before it; nothing was sent: the next try suits it"
        )

    def _learn(self, name: str, *, epochs: bool) -> None:
        before = self._epochs.get(name, True)
        self._epochs[name] = epochs
        if before and not epochs:
            log.warning("meta.no_epochs", endpoint=name, help="offsets are compared alone: see docs/discussion.md")
        elif epochs and not before:
            log.info("meta.epochs", endpoint=name, help="this server knows epochs now")


async def _knows_epochs(stub: "Stub", timeout_s: float) -> bool | None:
    """Ask by a call of ours, for nothing; None for an answer that is no message. Raises AioRpcError."""
    try:
        reply: object = await stub.BatchGetOffsetData(meta_pb.BatchGetOffsetDataRequest(), timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return False
        raise
    return None if reply is None else True
