"""Merges concurrent commits of a client into few requests: what arrives while requests are in flight goes with the next one.

A commit is answered when a request with at least its offset is answered. It never waits for a timer that collects others. A
refusal reaches only the callers whose commit was refused. An OVERWRITE is never merged, sent twice, or reordered in its group.

Path of a commit: `commit` puts it into a `Batch` of its `Group`; `_schedule` queues the group, and `_send_due`, once per loop
iteration, forms requests: shared ones with batches of many groups, separate ones with one group each. After an answer the
group is scheduled again; after a lost request its batches are delayed and sent again; after a refusal they are sent one by one.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import chain
from typing import TypeAlias

import grpc.aio
from grpc import StatusCode as Code

from adapter.client.pending import (
    Answer,
    Batch,
    Group,
    PendingLimit,
    checked_epochs,
    checked_key,
    checked_member,
    checked_offsets,
    closed_error,
    timeout_error,
    weight_of,
)
from adapter.client.progress import Progress
from adapter.model.records import CommitMode, Member
from adapter.rpc import offsets_pb
from adapter.runtime.backoff import MAX_DOUBLINGS, jitter

MAX_SHARED = 2  # shared requests in flight: the adapter works on one while the next is on the wire
MAX_SEPARATE = 32  # separate requests in flight: OVERWRITE, and groups that are written through or whose request failed
MAX_REQUEST = 2_048  # offsets of a request, unless a single commit has more: 2.7 MiB with the longest names; gRPC's limit is 4
MIN_REQUEST = 32  # offsets; above it, pending offsets are spread evenly over the requests that may be in flight
MAX_PENDING = 65_536  # offsets without an answer; beyond that, callers wait
MAX_GROUPS = 4_096  # groups; beyond that, those without pending commits are dropped
FIRST_PAUSE_S, MAX_PAUSE_S = 0.01, 0.5  # shortest and longest delay before a lost request is sent again
EXPIRY_STEP_S = 0.02  # how late a commit gets its DEADLINE_EXCEEDED at most
LEAST_TIMEOUT_S = 0.001  # of a request whose deadline has passed
# The request was lost: it may have been applied, and may succeed if it is sent again.
TRANSIENT = frozenset({Code.UNAVAILABLE, Code.CANCELLED, Code.DEADLINE_EXCEEDED})
# Errors for all callers of a request alike, such as a full disk: sending each commit by itself would only repeat them.
COMMON = frozenset({Code.RESOURCE_EXHAUSTED, Code.PERMISSION_DENIED, Code.UNAUTHENTICATED, Code.DATA_LOSS})

Send: TypeAlias = Callable[[offsets_pb.CommitOffsetsRequest, float], Awaitable[offsets_pb.CommitOffsetsReply]]


class Batcher:
    """The pending commits of one client, in one event loop. `send(request, timeout_s)` makes the call within its timeout.

    Without `resend`, the callers of a lost request get its error at once.
    """

    def __init__(self, send: Send, timeout_s: float, *, resend: bool) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._resend = resend
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False  # no more commits are accepted
        self._ended = False  # no more requests are sent
        self.limit = PendingLimit(MAX_PENDING)
        self._groups: dict[tuple[str, str], Group] = {}
        self._forget_at = MAX_GROUPS
        # Groups whose first batch may be sent now, in a shared or in a separate request, in the order of sending.
        self._shared_queue: deque[Group] = deque()
        self._separate_queue: deque[Group] = deque()
        self._in_flight = [0, 0]  # number of shared and of separate requests
        self._requests: dict[asyncio.Task[None], list[Batch]] = {}
        self._send_scheduled = False
        self._request_size = MIN_REQUEST
        self._expiry: asyncio.TimerHandle | None = None
        self._delayed: dict[Group, None] = {}  # groups that are delayed until the pause ends
        self._pause: asyncio.TimerHandle | None = None
        self._pauses = 0  # pauses since a repeated request succeeded: the exponent of the backoff
        self._paused_at = 0.0  # when the last pause began, in the loop's time

    def commit(
        self,
        key: tuple[str, str],
        offsets: Mapping[str, int | Progress],
        mode: CommitMode,
        epochs: Mapping[str, int],
        member: Member | None,
        deadline: float = 0.0,
    ) -> Answer:
        """Accept a commit of a (namespace, group). The future gets the superseded rows once it is durable, or an AioRpcError.

        Until `deadline` (in the loop's time; 0: `timeout_s` from now) a lost commit is sent again with the newest offsets. An
        OVERWRITE is not: repeated, it could undo later commits of others.
        Raises InvalidInputError for an invalid commit, and an AioRpcError with CANCELLED after the close.
        """
        if self._closed:
            raise closed_error(sent=False)
        group = self._groups.get(key) or self._new_group(key)
        numbers, told = checked_offsets(offsets)
        if epochs:
            epochs = checked_epochs(epochs, numbers)
        weight = weight_of(numbers, told)
        if mode is CommitMode.OVERWRITE:
            batch = self._new_batch(group, member, overwrite=True)
        else:
            open_batch = group.open.get(member)
            if open_batch is None or not open_batch.accepts(numbers, epochs, told, weight):
                open_batch = self._new_batch(group, member)
            batch = open_batch
        loop = self._loop or self._enter_loop()
        answer: Answer = loop.create_future()
        deadline = deadline or loop.time() + self._timeout_s
        batch.add((answer, numbers, epochs, deadline, told), weight)
        self.limit.used += weight
        if not group.scheduled:
            self._schedule(group)
        if self._expiry is None:
            self._expiry = loop.call_at(deadline, self._expire)
        return answer

    async def close(self, limit_s: float) -> None:
        """Accept no more commits; wait up to `limit_s` seconds for the pending ones. Those left then get an error."""
        self._closed = True
        if self._ended:
            return
        try:
            await self.limit.drain(limit_s)
        finally:
            self._ended = True
            tasks = dict(self._requests)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Also batches whose request had not started, and those that a failed request has queued again meanwhile.
            for batch in (*chain(*tasks.values()), *self._batches()):
                batch.fail(closed_error(sent=True))
            for timer in (self._expiry, self._pause):
                if timer:
                    timer.cancel()

    def _enter_loop(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        return self._loop

    def _new_group(self, key: tuple[str, str]) -> Group:
        if len(self._groups) >= self._forget_at:
            self._groups = {key: group for key, group in self._groups.items() if not group.idle}
            self._forget_at = max(MAX_GROUPS, 2 * len(self._groups))
        group = self._groups[key] = Group(checked_key(*key))
        return group

    def _new_batch(self, group: Group, member: Member | None, *, overwrite: bool = False) -> Batch:
        if member:
            checked_member(member)
        batch = Batch(group, member, room=self._request_size, overwrite=overwrite)
        if overwrite:
            group.open.clear()  # later commits must not overtake it
        else:
            group.open[member] = batch
        group.queue.append(batch)
        return batch

    def _expire(self) -> None:
        """Fail the commits whose deadline has passed. One timer serves all: with one timeout, the oldest is due first."""
        loop = asyncio.get_running_loop()
        now, next_at = loop.time(), float("inf")
        for batch in self._batches():
            for answer, _, _, deadline, _ in batch.callers:
                if deadline > now:
                    next_at = min(next_at, deadline)
                    break
                if not answer.done():
                    answer.set_exception(batch.error or timeout_error())
        self._expiry = loop.call_at(max(next_at, now + EXPIRY_STEP_S), self._expire) if next_at < float("inf") else None

    def _batches(self) -> Iterator[Batch]:
        for batches in self._requests.values():
            yield from batches
        for group in self._groups.values():
            yield from group.queue

    # Scheduling

    def _schedule(self, group: Group) -> None:
        """Queue a group for sending, if its first batch may be sent now."""
        if group.scheduled or group in self._delayed:
            return
        while group.queue and not group.queue[0].awaited:
            self.limit.release(group.pop().weight)
        if not group.queue:
            return
        if not (group.separate or group.queue[0].alone):
            self._shared_queue.append(group)
        elif not group.in_flight:
            self._separate_queue.append(group)
        else:
            return
        group.scheduled = True
        self._send_soon()

    def _send_soon(self) -> None:
        """Send at the end of this loop iteration, so that callers that one answer has woken share a request."""
        if not self._send_scheduled and (self._shared_queue or self._separate_queue):
            self._send_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_due)

    def _send_due(self) -> None:
        """Start requests, as many as may be in flight."""
        self._send_scheduled = False
        if self._ended:
            return
        self._request_size = min(max(self.limit.used // MAX_SHARED, MIN_REQUEST), MAX_REQUEST)
        while self._shared_queue and self._in_flight[False] < MAX_SHARED:
            if batches := self._next_shared():
                self._start_request(batches, separate=False)
        while self._separate_queue and self._in_flight[True] < MAX_SEPARATE:
            group = self._separate_queue.popleft()
            group.scheduled = False
            if self._pause and group.queue[0].error:
                self._delay(group)
            elif group.queue[0].awaited:
                self._start_request([group.pop_merged(MAX_REQUEST)], separate=True)
            else:
                self._schedule(group)

    def _next_shared(self) -> list[Batch]:
        """The batches of the next shared request, at most one of each group: two could be of different members."""
        room, batches = self._request_size, []
        while self._shared_queue and room > 0:
            group = self._shared_queue.popleft()
            group.scheduled = False
            if group.separate or not group.queue[0].awaited:
                self._schedule(group)
                continue
            batch = group.pop_merged(room)
            batches.append(batch)
            room -= batch.weight
        return batches

    # Requests

    def _start_request(self, batches: list[Batch], *, separate: bool) -> None:
        self._in_flight[separate] += 1
        task = asyncio.create_task(self._run_request(batches, separate=separate), name="client.commits")
        self._requests[task] = batches
        task.add_done_callback(self._requests.pop)
        for batch in batches:
            group = batch.group
            group.in_flight += 1
            group.separate |= separate  # at least until this request is answered
            self._schedule(group)

    async def _run_request(self, batches: list[Batch], *, separate: bool) -> None:
        """Send a request and handle its reply or error."""
        try:
            request = offsets_pb.CommitOffsetsRequest()
            if batches[0].overwrite:
                request.mode = offsets_pb.OVERWRITE
            for batch in batches:
                batch.write_to(request.groups.add())
            left_s = max(batch.deadline for batch in batches) - asyncio.get_running_loop().time()
            self._answered(batches, await self._send(request, max(left_s, LEAST_TIMEOUT_S)), separate=separate)
        except asyncio.CancelledError:  # by `close`, or at the end of the loop
            self._give_up(batches, closed_error(sent=True))
            raise
        except Exception as error:  # noqa: BLE001 - any error has to reach the callers
            self._failed(batches, error)
        finally:
            self._request_ended(batches, separate=separate)

    def _request_ended(self, batches: list[Batch], *, separate: bool) -> None:
        self._in_flight[separate] -= 1
        for batch in batches:
            batch.group.in_flight -= 1
            self._schedule(batch.group)
        self._send_soon()

    def _answered(self, batches: list[Batch], reply: offsets_pb.CommitOffsetsReply, *, separate: bool) -> None:
        if separate:
            batches[0].group.separate = False
            if batches[0].error:  # a request that was sent again has succeeded
                self._pauses = 0
                self._resume()
        for at in reply.written_through:
            batches[at].group.separate = True
        superseded: dict[tuple[str, str], dict[str, offsets_pb.Superseded]] = {}
        for row in reply.superseded:
            superseded.setdefault((row.namespace, row.group), {})[row.shard] = row
        raised: dict[tuple[str, str], dict[str, int]] = {}
        for new in reply.raised:
            raised.setdefault((new.namespace, new.group), {})[new.shard] = new.epoch
        for batch in batches:
            batch.settle(superseded.get(batch.group.key), raised.get(batch.group.key))
            self.limit.release(batch.weight)

    def _failed(self, batches: list[Batch], error: Exception) -> None:
        """Handle a failed request. Batches that failed together are sent again separately: by group, then by caller.

        So a refusal reaches only the caller that it concerns.
        """
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
        transient = code in TRANSIENT
        for batch in batches:
            batch.group.separate = True
            if transient:  # a refusal may concern another batch of the request
                batch.error = error
            if not batch.overwrite and (len(batches) > 1 or (transient and self._resend)):
                batch.group.queue.appendleft(batch)
                if transient and self._resend:
                    self._delay(batch.group)
            elif transient or code in COMMON or len(batch.callers) == 1:
                self._give_up([batch], error)
            else:
                self._split(batch)

    def _split(self, batch: Batch) -> None:
        """Split a batch into one batch for each caller."""
        for caller in reversed(batch.callers):
            if not caller[0].done():
                alone = Batch(batch.group, batch.member, alone=True)
                alone.add(caller, weight_of(caller[1], caller[4]))
                self.limit.used += alone.weight
                batch.group.queue.appendleft(alone)
        self.limit.release(batch.weight)

    def _give_up(self, batches: list[Batch], error: Exception) -> None:
        for batch in batches:
            batch.fail(error)
            self.limit.release(batch.weight)

    # Sending again

    def _delay(self, group: Group) -> None:
        """Delay a group until the end of the pause. All groups share one pause, which grows exponentially with jitter."""
        self._delayed[group] = None
        if self._pause is None:
            loop = asyncio.get_running_loop()
            if loop.time() - self._paused_at > self._timeout_s:
                self._pauses = 0
            longest = min(FIRST_PAUSE_S * 2 ** min(self._pauses, MAX_DOUBLINGS), MAX_PAUSE_S)
            self._pauses += 1
            self._paused_at = loop.time()
            self._pause = loop.call_later(jitter.uniform(FIRST_PAUSE_S, longest), self._resume)

    def _resume(self) -> None:
        if self._pause:
            self._pause.cancel()
            self._pause = None
        delayed, self._delayed = self._delayed, {}
        for group in delayed:
            self._schedule(group)
