"""The endpoints of a Meta Service: failover, deadlines, error translation, and whether each server supports epochs.

Our servers support epochs; RobustMQ stores only offsets. Each endpoint is asked before the first call that depends on it; later
its replies show it. A call meant for one kind is never sent to a server known to be of the other kind, not even by failover.
A leader that RobustMQ names in an error is called, also where it is none of the configured endpoints. Never retries.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import grpc
import grpc.aio
import structlog

from adapter.errors import AdapterError, MetaUnavailableError, TimedOutError
from adapter.meta.errors import DeniedError, NotLeaderError, translated
from adapter.meta.kinds import OFFSETS_ONLY, WITH_EPOCHS, ServerKind
from adapter.meta.store_marks import ServerReports
from adapter.model.records import StoreMark, StoreStart
from adapter.rpc import meta_grpc, meta_pb, metadata_grpc
from adapter.runtime.channels import mark_again
from adapter.runtime.clocks import wall_ms
from adapter.runtime.settings.addresses import split_address

if TYPE_CHECKING:  # exists only in the stubs
    from adapter.rpc.meta_service_pb2_grpc import MetaServiceServiceAsyncStub as Stub
    from adapter.rpc.metadata_pb2_grpc import MetadataStoreAsyncStub as MetadataStub

log = structlog.get_logger(__name__)

R = TypeVar("R")

MAX_NAMED = 32  # channels to leaders beside the configured endpoints: more than any cluster has at a time

NO_OFFSETS = (
    "this server has no offsets of a Meta Service: it is an adapter, a Meta Service process that serves only metadata, a proxy "
    "without a way to one, or something else"
)

# Replies that carry store marks and the server's clock.
_REPORTING_REPLIES = (meta_pb.SaveOffsetDataReply, meta_pb.MergeOffsetDataReply, meta_pb.ReportStoreReply)


Opening = Callable[[str], grpc.aio.Channel]


class OtherKindError(MetaUnavailableError):
    """The server that answers now is not of the kind that the call was meant for.

    Nothing was sent. That server is the current one from now on.
    """


class Endpoints:
    """Calls the current endpoint; if it fails, the next one that answers becomes current.

    `channel` opens a channel to a leader that an error names and that is none of the endpoints; `opened` has these channels.
    `retire` gets those that no new call uses, to close them later.
    """

    def __init__(
        self,
        names: Sequence[str],
        channels: Mapping[str, grpc.aio.Channel],
        channel: Opening | None = None,
        retire: Callable[[Sequence[grpc.aio.Channel]], None] = lambda _: None,
    ) -> None:
        self._retire = retire
        self._metadata: WeakKeyDictionary[Stub, MetadataStub] = WeakKeyDictionary()
        self._epochs: dict[str, bool] = {}  # whether an endpoint supports epochs; only of those that have answered
        self._use(names, channels, channel)
        self.current = names[0]
        self.available = True
        self.server_reports = ServerReports()
        self.unanswered = 0  # failed calls so far: after one, the server may have been restarted

    def _use(self, names: Sequence[str], channels: Mapping[str, grpc.aio.Channel], channel: Opening | None) -> None:
        self._names = tuple(names)
        self._stubs = {name: self._stub_over(channels[name]) for name in names}
        self._channel = channel
        self.opened: dict[str, grpc.aio.Channel] = {}

    def replace(self, names: Sequence[str], channels: Mapping[str, grpc.aio.Channel], channel: Opening | None = None) -> None:
        """Use other endpoints and channels from now on. A call under way ends on its channel, which its caller closes later.

        What stands behind them may be another store: the next report of the local store asks what it remembers.
        """
        self._use(names, channels, channel)
        self._epochs = {name: epochs for name, epochs in self._epochs.items() if name in self._stubs}
        self.unanswered += 1
        self.server_reports.changed.set()

    def metadata(self, stub: "Stub") -> "MetadataStub":
        """The calls of metadata at the endpoint that a call was given."""
        return self._metadata[stub]

    def _stub_over(self, channel: grpc.aio.Channel) -> "Stub":
        stub = meta_grpc.MetaServiceServiceStub(channel)
        self._metadata[stub] = metadata_grpc.MetadataStoreStub(channel)
        return stub

    @property
    def current(self) -> str:
        """The endpoint that the next call tries first. One that is none any more is replaced by the first."""
        return self._current if self._current in self._stubs else self._names[0]

    @current.setter
    def current(self, name: str) -> None:
        self._current = name

    @property
    def kind(self) -> ServerKind:
        """Of the current endpoint. Until it has answered once, it is assumed to support epochs."""
        return WITH_EPOCHS if self._epochs.get(self.current, True) else OFFSETS_ONLY

    def set_kind(self, *, epochs: bool, name: str = "") -> None:
        """Record what an answer of an endpoint, by default the current one, showed."""
        self._set_kind(name or self.current, epochs=epochs)

    def reaches(self, name: str) -> bool:
        """True if this address, which a server without epochs names as its leader, can be called; a channel is opened to it.

        In place of the one that was not named for the longest time if there are MAX_NAMED: nodes get new addresses over time.
        """
        if name in self._stubs:
            self._epochs.setdefault(name, False)
            if name in self.opened:
                self.opened[name] = self.opened.pop(name)
            return True
        try:
            split_address(name)
        except ValueError:
            return False
        if self._channel is None:
            return False
        if len(self.opened) >= MAX_NAMED:
            oldest = next(iter(self.opened))
            del self._stubs[oldest], self._epochs[oldest]
            self._retire([self.opened.pop(oldest)])
        self.opened[name] = self._channel(name)
        self._stubs[name] = self._stub_over(self.opened[name])
        self._epochs[name] = False
        log.info("meta.leader", address=name, help="it is none of meta.endpoints, and was named by one of them")
        return True

    def after_current(self) -> None:
        """Let the next call begin with the next endpoint: the current one does not answer, though it is there."""
        order = self._order()
        self.current = order[1] if len(order) > 1 else order[0]

    async def probe(self, timeout_s: float) -> None:
        """Check that a server answers, and whether it supports epochs. Raises MetaUnavailableError."""
        self.set_kind(epochs=bool(await self.call(lambda stub: _knows_epochs(stub, timeout_s), timeout_s=timeout_s)))

    async def call(
        self,
        call: "Callable[[Stub], Awaitable[R]]",
        *,
        timeout_s: float,
        epochs: bool | None = None,
        first: str = "",
        needed: bool = True,
    ) -> R:
        """Call the current endpoint (or `first`), then each other one once. The one that answers becomes current.

        If an endpoint is overloaded, the next one is tried; if all fail, the error carries the shortest time to wait. If one
        names its leader, that is next. `epochs`: the kind of server that the call is meant for; None for both. `needed`: without
        this call the Meta Service is of no use, and if no endpoint lets it in, not available.

        Raises MetaUnavailableError, or its subclasses TimedOutError (one took too long) and OtherKindError (the answering server
        is of the other kind); RefusedError (DeniedError if no endpoint lets the caller in, or has offsets).
        """
        problems: list[AdapterError] = []
        overloaded: dict[str, float] = {}
        left = deque(dict.fromkeys([*([first] if first else []), *self._order()]))
        tried: set[str] = set()
        while left:
            name = left.popleft()
            tried.add(name)
            try:
                answer = await self.call_at(name, call, timeout_s=timeout_s, epochs=epochs)
            except OtherKindError:
                raise
            except DeniedError as error:
                problems.append(error)
                continue
            except MetaUnavailableError as error:
                problems.append(error)
                if error.retry_after_s:
                    overloaded[name] = error.retry_after_s
                leader = error.leader if isinstance(error, NotLeaderError) else ""
                if leader and leader not in tried and self.reaches(leader):
                    left = deque(dict.fromkeys([leader, *left]))
                continue
            if not first or first != name:
                self.current = name
            return answer
        if all(isinstance(problem, DeniedError) for problem in problems):
            if needed:
                self.available = False
            raise problems[0]
        self.available = bool(overloaded)
        self.current = next(iter(overloaded), self.current)
        timed_out = any(isinstance(problem, TimedOutError) for problem in problems)
        error_type = TimedOutError if timed_out else MetaUnavailableError
        raise error_type("; ".join(map(str, problems)), retry_after_s=min(overloaded.values(), default=0.0))

    async def call_at(
        self, name: str, call: "Callable[[Stub], Awaitable[R]]", *, timeout_s: float, epochs: bool | None = None
    ) -> R:
        """Call this endpoint alone. Raises as `call` does, and NotLeaderError."""
        stub = self._stub(name)
        try:
            if epochs is not None:
                await self._check_kind(name, stub, timeout_s, epochs=epochs)
            known_before, sent_ms = self.server_reports.marks.snapshot(), wall_ms()
            answer = await call(stub)
        except grpc.aio.AioRpcError as error:
            lacks_call = error.code() is grpc.StatusCode.UNIMPLEMENTED
            if lacks_call and not await _has_offsets(stub, timeout_s):
                raise DeniedError(f"{name}: {NO_OFFSETS}") from error
            found = translated(name, error, timeout_s)
            if isinstance(found, MetaUnavailableError):
                if not found.retry_after_s:
                    self.unanswered += 1
                    self.server_reports.changed.set()
                raise found from error
            self.available |= not isinstance(found, DeniedError)
            if epochs and lacks_call:
                self._set_kind(name, epochs=False)
                self._switch_to(name)
            raise found from error
        except asyncio.CancelledError:
            await mark_again()
            raise
        if answer is None:  # grpc.aio returns None for bytes that are no message
            raise MetaUnavailableError(f"{name}: answered with something that is no message of a Meta Service")
        self._stub(name)  # What it acknowledged, when it was an endpoint no more, need not be where the next calls go.
        self.available = True
        if isinstance(answer, _REPORTING_REPLIES):
            self._take_reports(name, answer, known_before, sent_ms)
        return answer

    def _stub(self, name: str) -> "Stub":
        """Raise MetaUnavailableError for a name that was replaced."""
        stub = self._stubs.get(name)
        if stub is None:
            raise MetaUnavailableError(f"{name}: is no endpoint of the Meta Service any more")
        return stub

    def _order(self) -> list[str]:
        """The current endpoint, and the configured ones in their order behind it."""
        if self.current not in self._names:
            return [self.current, *self._names]
        first = self._names.index(self.current)
        return [*self._names[first:], *self._names[:first]]

    def _take_reports(
        self,
        name: str,
        answer: "meta_pb.SaveOffsetDataReply | meta_pb.MergeOffsetDataReply | meta_pb.ReportStoreReply",
        known_before: Mapping[str, StoreMark],
        sent_ms: int,
    ) -> None:
        """Process the server's clock and store marks. RobustMQ sends neither."""
        if answer.now_ms:
            self.server_reports.skew.take(sent_ms, wall_ms(), answer.now_ms)
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
        self.server_reports.take(known_before, marks, name)

    async def _check_kind(self, name: str, stub: "Stub", timeout_s: float, *, epochs: bool) -> None:
        if name not in self._epochs:
            found = await _knows_epochs(stub, timeout_s)
            if found is not None:
                self._set_kind(name, epochs=found)
        if self._epochs.get(name, True) is not epochs:
            self._switch_to(name)

    def _switch_to(self, name: str) -> None:
        self.available = True
        self.current = name
        what = "knows epochs" if self.kind.knows_epochs else "knows no epochs"
        raise OtherKindError(
            f"{name}: this server {what}, unlike the one asked before; nothing was sent; the next attempt takes this into account"
        )

    def _set_kind(self, name: str, *, epochs: bool) -> None:
        before = self._epochs.get(name, True)
        self._epochs[name] = epochs
        if before and not epochs:
            log.warning("meta.no_epochs", endpoint=name, help="offsets are compared alone: see docs/discussion.md")
        elif epochs and not before:
            log.info("meta.epochs", endpoint=name, help="this server knows epochs now")


async def _knows_epochs(stub: "Stub", timeout_s: float) -> bool | None:
    """Send an empty request of a call that only our servers have; None if the reply is no message.

    Raises AioRpcError, also for a server that has no offsets.
    """
    try:
        reply: object = await stub.BatchGetOffsetData(meta_pb.BatchGetOffsetDataRequest(), timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED and await _has_offsets(stub, timeout_s):
            return False
        raise
    return None if reply is None else True


async def _has_offsets(stub: "Stub", timeout_s: float) -> bool:
    """Send an empty request of a call that every Meta Service with offsets has, and refuses; False if it lacks that, too."""
    try:
        await stub.GetOffsetData(meta_pb.GetOffsetDataRequest(), timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        return error.code() is not grpc.StatusCode.UNIMPLEMENTED
    return True
