"""The way of a commit request to its answer. Unary calls, commit streams and broadcasts all go through `Commits`.

A request tries three steps in this order; each one takes what the one before it left:

1. The fast path (`Ledger.commit_plain`): one offset, or columns, of keys that are in memory. All requests that the HTTP/2 server
   reads in one iteration of the event loop are offered together, and are one write at its end (`Commits.offer`, group commit), so
   that none waits for others to come; other callers offer theirs alone.
2. At once: parsed, decided and written without an await, because nothing has to be loaded, synced or sent to the Meta Service.
3. Prepared (unknown groups are loaded), then finished (synced, or written through).

A request is offered to the fast path at most once: `offered` says that it was already.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import NamedTuple, Protocol

import structlog

from adapter.errors import AdapterError, InvalidInputError
from adapter.meta.slash_names import name_problem
from adapter.rpc import offsets_pb
from adapter.runtime.serving.large_calls import LargeCalls
from adapter.runtime.serving.statuses import status_of
from adapter.sidecar.api.commit_requests import ParsedCommit, parse_commit, parse_in_slices, size_of
from adapter.sidecar.api.replies import raised_rows, superseded_rows
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.policies import Policies
from adapter.sidecar.ledger.ledger import Run, Taken
from adapter.sidecar.ledger.operations import Standing
from adapter.sidecar.metrics import AdapterMetrics

log = structlog.get_logger(__name__)

SMALL = 100  # offsets and groups of a commit that is checked at once: a millisecond or two
MAX_LARGE_BYTES = 32 * 2**20  # of large commits that wait to be checked
OFFSET_BYTES = 400  # of memory that an offset of a waiting commit takes, beside its bytes in the request

# How many requests of a run, from its first, are committed; the fast path has left the one behind them. Or why all are refused.
Done = Callable[[int, AdapterError | None], None]


class ReplyRows(NamedTuple):
    """The rows of a reply: entries that were not applied, and entries that were in a new epoch."""

    superseded: Sequence[offsets_pb.Superseded] = ()
    raised: Sequence[offsets_pb.Raised] = ()


ALL_PLAIN = ReplyRows()


class CheckedCommit(NamedTuple):
    """A commit whose request is valid. `started` is the `perf_counter` time when its check began."""

    core: Core
    parsed: ParsedCommit
    started: float


class PreparedCommit(NamedTuple):
    """A checked commit whose groups are loaded, to be finished.

    `memory` is about how many bytes it takes while it waits. `written_through` are the places, in the request, of the groups that
    wait for the Meta Service, by the policies that it began under.
    """

    checked: CheckedCommit
    memory: int
    written_through: list[int]
    policies: Policies

    @property
    def room(self) -> int:
        """The bytes to take of `Router.room` while it is finished: 0 for a commit that does not wait for the Meta Service."""
        return self.memory if self.written_through else 0


class Committing(Protocol):
    """Makes the commits of a call, as `Commits` does."""

    @property
    def policies(self) -> Policies:
        """The policies for commits that begin now. Raises NotReadyError."""

    def offer(self, run: Run, done: Done) -> None:
        """Offer a run of requests to the fast path, together with all others of this iteration of the event loop."""

    async def commit(self, request: offsets_pb.CommitOffsetsRequest, *, offered: bool = False) -> offsets_pb.CommitOffsetsReply:
        """Make a request durable and return its reply."""

    async def begin(
        self, request: offsets_pb.CommitOffsetsRequest, *, offered: bool = False, patient: bool = False
    ) -> ReplyRows | PreparedCommit:
        """Commit a request for which nothing has to be awaited; else check and prepare it."""

    async def finish(self, prepared: PreparedCommit) -> ReplyRows:
        """Make a prepared commit durable."""


class Commits:
    """Makes commit requests durable, and counts those that are acknowledged or refused.

    `core` gives the store, or raises NotReadyError while there is none to serve.
    """

    def __init__(self, core: Callable[[], Core], metrics: AdapterMetrics) -> None:
        self._core = core
        self._metrics = metrics
        self._large = LargeCalls("bytes of large commits", at_once=1, max_waiting=MAX_LARGE_BYTES)
        self._offered: list[tuple[Run, Done]] = []
        self._offered_at = 0.0

    @property
    def policies(self) -> Policies:
        """The policies for commits that begin now. Raises NotReadyError."""
        return self._core().router.policies

    async def commit(self, request: offsets_pb.CommitOffsetsRequest, *, offered: bool = False) -> offsets_pb.CommitOffsetsReply:
        """Make a request durable and return its reply; `offered` says that the fast path has left it already.

        Raises OverloadedError when too many commits wait for the Meta Service, and what `begin` and `finish` raise.
        """
        begun = await self.begin(request, offered=offered)
        if not isinstance(begun, PreparedCommit):
            return offsets_pb.CommitOffsetsReply(superseded=begun.superseded, raised=begun.raised)
        with self._room_for(begun):
            rows = await self.finish(begun)
        return offsets_pb.CommitOffsetsReply(
            superseded=rows.superseded, written_through=begun.written_through, raised=rows.raised
        )

    async def begin(
        self, request: offsets_pb.CommitOffsetsRequest, *, offered: bool = False, patient: bool = False
    ) -> ReplyRows | PreparedCommit:
        """Commit a request for which nothing has to be awaited, as most are, and return its rows; else check and prepare it.

        Nothing is awaited between the write and the return. Commits that are finished in the order in which they were prepared
        apply in this order. Raises InvalidInputError, NotReadyError, FencedError, DiskFullError, StorageFailedError, and
        OverloadedError for a large commit when too many wait, unless `patient`; then nothing of it is stored.
        """
        try:
            if not offered and self._commit_fast(request):
                return ALL_PLAIN
            # Before anything is awaited: a stream lets a request begin when its turn has come under these.
            policies = self.policies
            async with self._one_large(request, patient=patient):
                checked = await self._check(request)
                standing = checked.core.router.commit_at_once(checked.parsed.commit, policies)
                if standing is not None:
                    return self._acknowledged(checked, standing)
            checked = await self.prepare(checked)
        except AdapterError as error:
            self.refused(error)
            raise
        places = [at for at, group in enumerate(checked.parsed.groups) if policies.writes_through(group)]
        return PreparedCommit(checked, request.ByteSize() + OFFSET_BYTES * checked.parsed.commit.size, places, policies)

    def check(self, request: offsets_pb.CommitOffsetsRequest) -> CheckedCommit:
        """Validate a request at once. Raises InvalidInputError or NotReadyError."""
        started = time.perf_counter()
        core = self._core()
        return _checked(core, parse_commit(request, core.clocks.now_ms()), started)

    async def prepare(self, checked: CheckedCommit) -> CheckedCommit:
        """Load the groups whose epochs the commit needs. It does not wait for a Meta Service that does not answer."""
        commit = await checked.core.router.prepare(checked.parsed.commit)
        return checked._replace(parsed=checked.parsed._replace(commit=commit))

    async def finish(self, prepared: PreparedCommit) -> ReplyRows:
        """Make a prepared commit durable, and return the rows of its reply.

        Raises DiskFullError, StorageFailedError, FencedError, NotReadyError, or MetaUnavailableError for what is written through.
        Cancelled while it waits for a sync or for the Meta Service, it may be stored all the same: it was not acknowledged.
        """
        checked = prepared.checked
        try:
            return self._acknowledged(checked, await checked.core.router.commit(checked.parsed.commit, prepared.policies))
        except AdapterError as error:
            self.refused(error)
            raise

    def offer(self, run: Run, done: Done) -> None:
        """Commit a run at the end of this iteration of the event loop; `done` is called then, once."""
        if not self._offered:
            self._offered_at = time.perf_counter()
            asyncio.get_running_loop().call_soon(self._commit_offered)
        self._offered.append((run, done))

    def _commit_offered(self) -> None:
        runs, self._offered = self._offered, []
        taken, failure = Taken([0] * len(runs), 0), None
        try:
            core = self._core()
            taken = core.ledger.commit_plain([run for run, _ in runs], core.clocks.now_ms())
        except AdapterError as error:
            failure = error
        except Exception:  # left to the next step: each request then reports its own error
            log.exception("group_commit.failed")
        for (_, done), count in zip(runs, taken.counts, strict=True):
            self._answer(done, count, failure)
        self._metrics.committed_together(sum(taken.counts), taken.offsets, time.perf_counter() - self._offered_at)

    def _answer(self, done: Done, count: int, failure: AdapterError | None) -> None:
        """Call a `done`. If it raises, the others are still called."""
        try:
            if failure:
                self.refused(failure)
            done(count, failure)
        except Exception:
            log.exception("group_commit.answer_failed")

    def refused(self, error: AdapterError) -> None:
        """Count a refused commit request."""
        self._metrics.commit_errors.labels(status_of(error).name).inc()

    def _commit_fast(self, request: offsets_pb.CommitOffsetsRequest) -> bool:
        """Commit a request by the fast path; False if the fast path declines it."""
        started = time.perf_counter()
        core = self._core()
        taken = core.ledger.commit_plain([(request,)], core.clocks.now_ms())
        if not taken.offsets:
            return False
        self._metrics.committed(taken.offsets, (), time.perf_counter() - started)
        return True

    async def _check(self, request: offsets_pb.CommitOffsetsRequest) -> CheckedCommit:
        """Validate a request; a large one in slices, between which the event loop runs other tasks."""
        if len(request.groups) + sum(len(group.shards) for group in request.groups) <= SMALL:
            return self.check(request)
        started = time.perf_counter()
        core = self._core()
        parsed = await parse_in_slices(request.groups, request.mode, core.clocks.now_ms())
        return _checked(core, parsed, started)

    def _one_large(self, request: offsets_pb.CommitOffsetsRequest, *, patient: bool) -> AbstractAsyncContextManager[None]:
        """Admit one large commit at a time, since each may hold the event loop for 0.1 s. Raises InvalidInputError."""
        if size_of(request.groups) <= SMALL:
            return nullcontext()
        return self._large.one(request.ByteSize(), patient=patient)

    @contextmanager
    def _room_for(self, prepared: PreparedCommit) -> Iterator[None]:
        """Reserve room among the commits that wait for the Meta Service. Raises OverloadedError if there is none."""
        room, size = prepared.checked.core.router.room, prepared.room
        if size:
            try:
                room.take(size)
            except AdapterError as error:
                self.refused(error)
                raise
        try:
            yield
        finally:
            room.give_back(size)

    def _acknowledged(self, checked: CheckedCommit, standing: Sequence[Standing]) -> ReplyRows:
        """Record the bounds of a durable commit, count it, and return the rows of its reply."""
        core, (commit, bounds, _), started = checked
        rows = ReplyRows(superseded_rows(commit, standing, core.ledger.holds), raised_rows(standing)) if standing else ALL_PLAIN
        if bounds:
            core.bounds.note(bounds)
        self._metrics.committed(commit.size, rows.superseded, time.perf_counter() - started)
        return rows


def _checked(core: Core, parsed: ParsedCommit, started: float) -> CheckedCommit:
    """Refuse names that the Meta Service cannot hold. Raises InvalidInputError."""
    if core.meta.kind.joins_names:
        for at, group in enumerate(parsed.groups):
            if problem := name_problem(group):
                raise InvalidInputError(f"groups[{at}].{problem}")
    return CheckedCommit(core, parsed, started)
