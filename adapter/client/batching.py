"""Coalescing of commits: what arrives while requests are under way goes with the next one, of each shard the newest value.

A commit is answered when a request that had at least its value was. No commit waits for a timer to gather others, no caller
gets another one's refusal, and no OVERWRITE is coalesced, reordered within its group, or sent twice.
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
    Room,
    checked_epochs,
    checked_key,
    checked_member,
    checked_offsets,
    closed,
    overdue,
)
from adapter.model.records import CommitMode, Member
from adapter.rpc import offsets_pb
from adapter.runtime.backoff import MAX_DOUBLINGS, jitter

MAX_SHARED = 2  # requests of many groups under way: one is worked on while the next is on its way
MAX_APART = 32  # requests of one group each: rewinds, and groups that wait for the Meta Service or were in a failed request
MAX_SHARE = 2_048  # entries of a request, unless one commit alone has more: 2.7 MiB with the longest names; gRPC takes 4
MIN_SHARE = 32  # entries; above it, what waits is spread evenly over the requests that may be under way, so that none idles
MAX_WAITING = 65_536  # entries of all commits without an answer; beyond that there is no room for more
MAX_KEPT = 4_096  # groups; beyond that, those without commits are forgotten
FIRST_PAUSE_S, MAX_PAUSE_S = 0.01, 0.5  # before what was lost is sent again
EXPIRY_STEP_S = 0.02  # commits whose time is over get their error at most so late
LEAST_TIMEOUT_S = 0.001  # of a request
# What may pass when it is sent again. It may also have been applied.
TRANSIENT = frozenset({Code.UNAVAILABLE, Code.CANCELLED, Code.DEADLINE_EXCEEDED})
# What everybody gets (a full disk, say): sent again caller by caller it would only come back more often.
COMMON = frozenset({Code.RESOURCE_EXHAUSTED, Code.PERMISSION_DENIED, Code.UNAUTHENTICATED, Code.DATA_LOSS})

Send: TypeAlias = Callable[[offsets_pb.CommitOffsetsRequest, float], Awaitable[offsets_pb.CommitOffsetsReply]]


class Batcher:
    """The commits of one client, all in one event loop. `send` sends a request, and ends within the seconds that it is given.

    Without `resend`, those whose own group's request was lost get that error at once.
    """

    def __init__(self, send: Send, timeout_s: float, *, resend: bool) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._resend = resend
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False  # nothing is taken any more
        self._ended = False  # nothing is sent any more
        self.room = Room(MAX_WAITING)  # for commits without an answer
        self._groups: dict[tuple[str, str], Group] = {}
        self._forget_at = MAX_KEPT
        # Groups whose first batch may be sent, with others or by itself, in the order of their turns.
        self._shared: deque[Group] = deque()
        self._apart: deque[Group] = deque()
        self._under_way = [0, 0]  # requests: shared ones, and those apart
        self._flights: dict[asyncio.Task[None], list[Batch]] = {}
        self._pump_due = False
        self._share = MIN_SHARE
        self._expiry: asyncio.TimerHandle | None = None
        self._held: dict[Group, None] = {}  # they wait for the end of the pause
        self._pause: asyncio.TimerHandle | None = None
        self._losses = 0  # pauses since something that was sent again passed
        self._lost_at = 0.0  # when the last one began

    def commit(
        self,
        key: tuple[str, str],
        offsets: Mapping[str, int],
        mode: CommitMode,
        epochs: Mapping[str, int],
        member: Member | None,
        deadline: float = 0.0,
    ) -> Answer:
        """Take a commit of a (namespace, group). It is answered when it is durable, or with an AioRpcError.

        Until `deadline` (in the loop's time; 0: `timeout_s` from now), what was lost is sent again with the newest values; an
        OVERWRITE never: repeated, it could undo what others committed since.
        Raises InvalidInputError for a bad commit, and CANCELLED after the close.
        """
        if self._closed:
            raise closed(sent=False)
        group = self._groups.get(key) or self._new_group(key)
        offsets = checked_offsets(offsets)
        if epochs:
            epochs = checked_epochs(epochs, offsets)
        weight = len(offsets)
        if mode is CommitMode.OVERWRITE:
            batch = self._new_batch(group, member, overwrite=True)
        else:
            open_batch = group.open.get(member)
            if open_batch is None or not open_batch.takes(offsets, epochs, weight):
                open_batch = self._new_batch(group, member)
            batch = open_batch
        loop = self._loop or self._enter_loop()
        answer: Answer = loop.create_future()
        deadline = deadline or loop.time() + self._timeout_s
        batch.add((answer, offsets, epochs, deadline), weight)
        self.room.taken += weight
        if not group.lined:
            self._rouse(group)
        if self._expiry is None:
            self._expiry = loop.call_at(deadline, self._expire)
        return answer

    async def close(self, limit_s: float) -> None:
        """Take nothing more; wait up to `limit_s` seconds for what was taken. What is not answered then gets an error."""
        self._closed = True
        if self._ended:
            return
        try:
            await self.room.emptied(limit_s)
        finally:
            self._ended = True
            flights = dict(self._flights)
            for flight in flights:
                flight.cancel()
            await asyncio.gather(*flights, return_exceptions=True)
            # Also those whose flight had not begun, or that a failed one has put back meanwhile.
            for batch in (*chain(*flights.values()), *self._batches()):
                batch.fail(closed(sent=True))
            for timer in (self._expiry, self._pause):
                if timer:
                    timer.cancel()

    def _enter_loop(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        return self._loop

    def _new_group(self, key: tuple[str, str]) -> Group:
        if len(self._groups) >= self._forget_at:
            self._groups = {key: group for key, group in self._groups.items() if not group.idle}
            self._forget_at = max(MAX_KEPT, 2 * len(self._groups))
        group = self._groups[key] = Group(checked_key(*key))
        return group

    def _new_batch(self, group: Group, member: Member | None, *, overwrite: bool = False) -> Batch:
        if member:
            checked_member(member)
        batch = Batch(group, member, room=self._share, overwrite=overwrite)
        if overwrite:
            group.open.clear()  # nothing that comes later goes before it
        else:
            group.open[member] = batch
        group.queue.append(batch)
        return batch

    def _expire(self) -> None:
        """Give those whose time is over their error. One timer is for all: the timeout is the same, so the oldest is first."""
        loop = asyncio.get_running_loop()
        now, next_at = loop.time(), float("inf")
        for batch in self._batches():
            for answer, _, _, deadline in batch.callers:
                if deadline > now:
                    next_at = min(next_at, deadline)
                    break
                if not answer.done():
                    answer.set_exception(batch.error or overdue())
        self._expiry = loop.call_at(max(next_at, now + EXPIRY_STEP_S), self._expire) if next_at < float("inf") else None

    def _batches(self) -> Iterator[Batch]:
        for batches in self._flights.values():
            yield from batches
        for group in self._groups.values():
            yield from group.queue

    # Turns

    def _rouse(self, group: Group) -> None:
        """Give a group its turn, if something of it may be sent now."""
        if group.lined or group in self._held:
            return
        while group.queue and not group.queue[0].wanted:
            self.room.give_back(group.draw().weight)
        if not group.queue:
            return
        if not (group.apart or group.queue[0].alone):
            self._shared.append(group)
        elif not group.flying:
            self._apart.append(group)
        else:
            return
        group.lined = True
        self._pump_soon()

    def _pump_soon(self) -> None:
        """Send at the end of this turn of the loop: those whom one answer has woken then go together."""
        if not self._pump_due and (self._shared or self._apart):
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Send what may be sent."""
        self._pump_due = False
        if self._ended:
            return
        self._share = min(max(self.room.taken // MAX_SHARED, MIN_SHARE), MAX_SHARE)
        while self._shared and self._under_way[False] < MAX_SHARED:
            if batches := self._gather():
                self._depart(batches, solo=False)
        while self._apart and self._under_way[True] < MAX_APART:
            group = self._apart.popleft()
            group.lined = False
            if self._pause and group.queue[0].error:
                self._hold(group)
            elif group.queue[0].wanted:
                self._depart([group.draw_with(MAX_SHARE)], solo=True)
            else:
                self._rouse(group)

    def _gather(self) -> list[Batch]:
        """What the next shared request has: of each group at most one batch, since its members must not meet."""
        room, batches = self._share, []
        while self._shared and room > 0:
            group = self._shared.popleft()
            group.lined = False
            if group.apart or not group.queue[0].wanted:
                self._rouse(group)
                continue
            batch = group.draw_with(room)
            batches.append(batch)
            room -= batch.weight
        return batches

    # Requests

    def _depart(self, batches: list[Batch], *, solo: bool) -> None:
        self._under_way[solo] += 1
        task = asyncio.create_task(self._fly(batches, solo=solo), name="client.commits")
        self._flights[task] = batches
        task.add_done_callback(self._flights.pop)
        for batch in batches:
            group = batch.group
            group.flying += 1
            group.apart |= solo  # also while it is under way
            self._rouse(group)

    async def _fly(self, batches: list[Batch], *, solo: bool) -> None:
        """Send a request, and settle its callers or let them wait again."""
        try:
            request = offsets_pb.CommitOffsetsRequest()
            if batches[0].overwrite:
                request.mode = offsets_pb.OVERWRITE
            for batch in batches:
                batch.write_to(request.groups.add())
            left_s = max(batch.deadline for batch in batches) - asyncio.get_running_loop().time()
            self._answered(batches, await self._send(request, max(left_s, LEAST_TIMEOUT_S)), solo=solo)
        except asyncio.CancelledError:  # by the close, or the end of the loop
            self._give_up(batches, closed(sent=True))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, its callers have to get it
            self._failed(batches, error)
        finally:
            self._landed(batches, solo=solo)

    def _landed(self, batches: list[Batch], *, solo: bool) -> None:
        self._under_way[solo] -= 1
        for batch in batches:
            batch.group.flying -= 1
            self._rouse(batch.group)
        self._pump_soon()

    def _answered(self, batches: list[Batch], reply: offsets_pb.CommitOffsetsReply, *, solo: bool) -> None:
        if solo:
            batches[0].group.apart = False
            if batches[0].error:  # what was lost passes again
                self._losses = 0
                self._resume()
        for at in reply.written_through:
            batches[at].group.apart = True
        standing: dict[tuple[str, str], dict[str, offsets_pb.Superseded]] = {}
        for row in reply.superseded:
            standing.setdefault((row.namespace, row.group), {})[row.shard] = row
        for batch in batches:
            batch.settle(standing.get(batch.group.key))
            self.room.give_back(batch.weight)

    def _failed(self, batches: list[Batch], error: Exception) -> None:
        """No caller gets another one's refusal: what failed together is sent again apart, group by group, caller by caller."""
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
        transient = code in TRANSIENT
        for batch in batches:
            batch.group.apart = True
            if transient:  # a refusal may be another one's
                batch.error = error
            if not batch.overwrite and (len(batches) > 1 or (transient and self._resend)):
                batch.group.queue.appendleft(batch)
                if transient and self._resend:
                    self._hold(batch.group)
            elif transient or code in COMMON or len(batch.callers) == 1:
                self._give_up([batch], error)
            else:
                self._scatter(batch)

    def _scatter(self, batch: Batch) -> None:
        """Let each caller of a batch go by itself."""
        for caller in reversed(batch.callers):
            if not caller[0].done():
                alone = Batch(batch.group, batch.member, alone=True)
                alone.add(caller, len(caller[1]))
                self.room.taken += alone.weight
                batch.group.queue.appendleft(alone)
        self.room.give_back(batch.weight)

    def _give_up(self, batches: list[Batch], error: Exception) -> None:
        for batch in batches:
            batch.fail(error)
            self.room.give_back(batch.weight)

    # The pause

    def _hold(self, group: Group) -> None:
        """Let a group wait before something of it is sent again. There is one pause for all, longer each time."""
        self._held[group] = None
        if self._pause is None:
            loop = asyncio.get_running_loop()
            if loop.time() - self._lost_at > self._timeout_s:
                self._losses = 0
            longest = min(FIRST_PAUSE_S * 2 ** min(self._losses, MAX_DOUBLINGS), MAX_PAUSE_S)
            self._losses += 1
            self._lost_at = loop.time()
            self._pause = loop.call_later(jitter.uniform(FIRST_PAUSE_S, longest), self._resume)

    def _resume(self) -> None:
        if self._pause:
            self._pause.cancel()
            self._pause = None
        held, self._held = self._held, {}
        for group in held:
            self._rouse(group)
