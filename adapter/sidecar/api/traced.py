"""`OffsetService` for an adapter with a collector: commits of callers that record their traces are noted for the next flush.

Only an adapter with `telemetry.endpoint` has it; the others do nothing for it.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain

from adapter.errors import AdapterError, NotReadyError
from adapter.model.records import DEFAULT_NAMESPACE, OffsetKey
from adapter.rpc import offsets_pb
from adapter.runtime.serving.http2.headers import Metadata
from adapter.runtime.serving.statuses import Context
from adapter.runtime.telemetry.spans import TraceContext, sampled
from adapter.sidecar.api.commits import Commits, Committing, Done, PreparedCommit, ReplyRows
from adapter.sidecar.api.offset_service import OffsetService
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.flush_spans import FlushSpans
from adapter.sidecar.engine.policies import Policies
from adapter.sidecar.metrics import AdapterMetrics

_Note = Callable[[Iterable[OffsetKey]], None]


class TracedOffsetService(OffsetService):
    """Notes what is committed in `spans`."""

    def __init__(
        self, core: Callable[[], Awaitable[Core]], committing: Callable[[], Core], metrics: AdapterMetrics, spans: FlushSpans
    ) -> None:
        super().__init__(core, committing, metrics)
        self._committing = committing
        self._spans = spans
        self.take = self.take._replace(done=self._offered_is_done)

    def _commits_of(self, context: Context) -> Committing:
        caller = sampled(context.invocation_metadata() or ())
        return TracedCommits(self.commits, lambda keys: self._note(caller, keys)) if caller else self.commits

    def _offered_is_done(self, request: offsets_pb.CommitOffsetsRequest, metadata: Metadata) -> None:
        caller = sampled(metadata)
        if caller:
            self._note(caller, _keys_of([request]))

    def _note(self, caller: TraceContext, keys: Iterable[OffsetKey]) -> None:
        try:
            core = self._committing()
        except NotReadyError:
            return  # the store failed meanwhile
        self._spans.note(caller, keys, core.ledger.dirty)


class TracedCommits:
    """The commits of one call, or of one stream, noted once they are stored.

    Behind a plain write nothing is awaited until it is noted, so that no flush comes in between. A commit that waits for a sync
    may be flushed before it is noted: then it gets no link.
    """

    def __init__(self, commits: Commits, note: _Note) -> None:
        self._commits = commits
        self._note = note

    @property
    def policies(self) -> Policies:
        """As `Commits.policies`."""
        return self._commits.policies

    def offer(self, run: Sequence[offsets_pb.CommitOffsetsRequest], done: Done) -> None:
        """As `Commits.offer`."""

        def noted(count: int, error: AdapterError | None) -> None:
            done(count, error)
            if count and not error:
                self._note(_keys_of(run[:count]))

        self._commits.offer(run, noted)

    async def commit(self, request: offsets_pb.CommitOffsetsRequest, *, offered: bool = False) -> offsets_pb.CommitOffsetsReply:
        """As `Commits.commit`."""
        reply = await self._commits.commit(request, offered=offered)
        self._note(_keys_of([request]))
        return reply

    async def begin(
        self, request: offsets_pb.CommitOffsetsRequest, *, offered: bool = False, patient: bool = False
    ) -> ReplyRows | PreparedCommit:
        """As `Commits.begin`."""
        begun = await self._commits.begin(request, offered=offered, patient=patient)
        if not isinstance(begun, PreparedCommit):
            self._note(_keys_of([request]))
        return begun

    async def finish(self, prepared: PreparedCommit) -> ReplyRows:
        """As `Commits.finish`."""
        rows = await self._commits.finish(prepared)
        commit = prepared.checked.parsed.commit
        columns = (OffsetKey(*found.group, shard) for found in commit.columns for shard in found.shards)
        self._note(chain((key for key, _ in commit.entries), columns))
        return rows


def _keys_of(requests: Iterable[offsets_pb.CommitOffsetsRequest]) -> Iterator[OffsetKey]:
    for request in requests:
        for group in request.groups:
            namespace = group.namespace or DEFAULT_NAMESPACE
            for item in group.shards:
                yield OffsetKey(namespace, group.group, item.shard)
            for shard in group.shard_names:
                yield OffsetKey(namespace, group.group, shard)
