"""Saves to a server that stores only offsets (RobustMQ), which writes one consumer group after the other.

Each group is a Raft write of its own, in the log of one of its Raft groups, whose leaders may be on different nodes. So one call
carries as many groups as the server manages well before the deadline, and only groups of one leader. A call that ends in the
middle leaves its first groups written: what a save without an answer had stored is read back, and not sent again.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from adapter.errors import AdapterError, MetaUnavailableError, RefusedError, TimedOutError
from adapter.meta.endpoints import Endpoints, OtherKindError
from adapter.meta.errors import DeniedError, NotLeaderError
from adapter.meta.save_window import SaveWindow
from adapter.meta.wire import outcomes_of, save_request
from adapter.model.records import GroupKey, OffsetKey, SaveEntry, SaveOutcome, Status, as_seen
from adapter.rpc import meta_pb
from adapter.runtime.channels import mark_again

R = TypeVar("R")

READS_AT_ONCE = 8
MAX_LEADERS = 100_000  # groups whose leader is remembered
FORWARDS = 3  # of one group in one save, before it counts as unanswered
LEADERLESS = 8  # groups in a row without a leader, after which the save is given up: it is an election, not one Raft group
FRUITLESS = 2  # calls in a row that timed out with nothing stored, after which the server counts as not answering

Waiting = dict[str, list[SaveEntry]]  # by group, as the server names it


def name_of(group: GroupKey) -> str:
    """The name of a group in the server's errors, and the order in which it writes groups."""
    return f"{group.namespace}/{group.group}"


class GroupSaves:
    """Sends the saves of one client. `window` says how many groups a call carries."""

    def __init__(
        self,
        endpoints: Endpoints,
        cluster: str,
        timeout_s: float,
        window: SaveWindow,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoints = endpoints
        self.window = window
        self.clock = clock
        self.leaders: dict[str, str] = {}  # of groups whose leader is not the current endpoint
        self.fruitless = 0  # calls in a row that timed out with nothing stored
        self._cluster = cluster
        self._timeout_s = timeout_s

    def leader_of(self, group: GroupKey) -> str:
        """The address of the group's leader if it is known to differ from the current endpoint; else empty."""
        return self.leaders.get(name_of(group), "")

    async def save(self, entries: Sequence[SaveEntry]) -> Sequence[SaveOutcome]:
        """Save entries; one outcome each, in order.

        CONFLICT: this entry, or another one of the same call, was not as expected; the others are written. UNAVAILABLE: it is
        unknown whether it was saved. Raises MetaUnavailableError or RefusedError if that is so of all entries.
        """
        return await _Save(self, entries).run()

    async def call(self, address: str, entries: Sequence[SaveEntry]) -> meta_pb.SaveOffsetDataReply:
        """One call to one node. Raises what `Endpoints.call_at` raises."""
        request = await save_request(self._cluster, entries)
        return await self.endpoints.call_at(
            address, lambda stub: stub.SaveOffsetData(request, timeout=self._timeout_s), timeout_s=self._timeout_s, epochs=False
        )

    async def read(self, address: str, groups: Sequence[GroupKey]) -> dict[OffsetKey, int]:
        """The offsets that a node has of some groups. Raises MetaUnavailableError."""
        found: dict[OffsetKey, int] = {}
        for at in range(0, len(groups), READS_AT_ONCE):
            replies = await all_of(self._read_one(address, group) for group in groups[at : at + READS_AT_ONCE])
            for group, reply in zip(groups[at:], replies, strict=False):
                found.update((OffsetKey(*group, item.shard_name), item.offset) for item in reply.offsets)
        return found

    async def _read_one(self, address: str, group: GroupKey) -> meta_pb.GetOffsetDataReply:
        request = meta_pb.GetOffsetDataRequest(
            tenant=group.namespace, namespace=group.namespace, group=group.group, cluster_name=self._cluster
        )
        return await self.endpoints.call_at(
            address, lambda stub: stub.GetOffsetData(request, timeout=self._timeout_s), timeout_s=self._timeout_s, epochs=False
        )

    def remember(self, name: str, leader: str) -> None:
        """A group has another leader than the current endpoint."""
        if len(self.leaders) >= MAX_LEADERS:
            self.leaders.clear()
        self.leaders[name] = leader

    def forget_leader(self, address: str) -> None:
        """A node does not answer any more: its groups have another leader soon."""
        self.leaders = {name: leader for name, leader in self.leaders.items() if leader != address}


class _Save:
    """One save: parts of what waits are sent until each entry has an outcome."""

    def __init__(self, saves: GroupSaves, entries: Sequence[SaveEntry]) -> None:
        self._saves = saves
        self._endpoints = saves.endpoints
        self._window = saves.window
        self._entries = entries
        self._outcomes: dict[OffsetKey, SaveOutcome] = {}
        self._waiting: Waiting = {}
        self._wrote: set[str] = set()  # nodes that wrote something in this save
        self._failed: dict[str, AdapterError] = {}  # nodes that did not answer, and why
        self._forwards: dict[str, int] = {}
        self._leaderless = 0

    async def run(self) -> Sequence[SaveOutcome]:
        for entry in self._entries:
            self._waiting.setdefault(name_of(entry.key.group_key), []).append(entry)
        # In the server's order, so that an error in the middle says what it has written.
        self._waiting = {name: self._waiting[name] for name in sorted(self._waiting)}
        while self._waiting:
            try:
                await self._send_part()
            except (MetaUnavailableError, RefusedError) as error:
                if not self._wrote:
                    raise
                status = Status.INVALID if isinstance(error, RefusedError) else Status.UNAVAILABLE
                for name in list(self._waiting):
                    self._end(name, status, str(error))
        return [self._outcomes[entry.key] for entry in self._entries]

    async def _send_part(self) -> None:
        """Send the next groups of one leader."""
        leaders = self._saves.leaders
        first = leaders.get(next(iter(self._waiting)), "")
        names = list(islice((name for name in self._waiting if leaders.get(name, "") == first), self._window.size))
        entries = [entry for name in names for entry in self._waiting[name]]
        address = first or self._endpoints.current
        started = self._saves.clock()
        try:
            reply = await self._saves.call(address, entries)
        except OtherKindError:
            raise
        except TimedOutError as error:
            await self._read_back(address, names, error)
        except NotLeaderError as error:
            self._forwarded(address, names, error)
        except (MetaUnavailableError, DeniedError) as error:
            self._go_on_elsewhere(address, error)
        else:
            self._window.answered(len(names), self._saves.clock() - started)
            self._note_progress(address)
            outcomes = await outcomes_of(entries, reply)
            self._endpoints.set_kind(epochs=bool(reply.results), name=address)
            self._outcomes.update(zip((entry.key for entry in entries), outcomes, strict=True))
            for name in names:
                del self._waiting[name]

    def _note_progress(self, address: str) -> None:
        self._saves.fruitless = self._leaderless = 0
        self._wrote.add(address)
        self._failed.clear()

    async def _read_back(self, address: str, names: Sequence[str], error: TimedOutError) -> None:
        """Acknowledge what a save without an answer had stored. Raises the error when that is nothing, twice in a row."""
        groups = [self._waiting[name][0].key.group_key for name in names]
        try:
            held = await self._saves.read(address, groups)
        except MetaUnavailableError:
            self._window.timed_out(len(names))
            self._endpoints.after_current()
            raise error from None
        stored = [name for name in names if all(held.get(entry.key) == entry.record.offset for entry in self._waiting[name])]
        self._window.timed_out(len(names), len(stored))
        if stored:
            self._note_progress(address)
        else:
            self._saves.fruitless += 1
            self._endpoints.after_current()
            if self._saves.fruitless >= FRUITLESS:
                raise error
        for name in stored:
            self._end(name, Status.APPLIED, "")
        why = f"{error}; of its {len(names)} groups {len(stored)} were found stored, the others are sent again, fewer at a time"
        for name in names:
            if name in self._waiting:
                self._end(name, Status.UNAVAILABLE, why)

    def _forwarded(self, address: str, names: Sequence[str], error: NotLeaderError) -> None:
        """Another node has to write one of the groups. Those before it are written; if as expected is not known."""
        name = error.group if error.group in names else names[0]
        written = names[: names.index(name)]
        if written:
            self._note_progress(address)
        for before in written:
            self._end_written(before)
        self._forwards[name] = self._forwards.get(name, 0) + 1
        leader = error.leader
        gone = not leader or leader == address or leader in self._failed
        if gone or self._forwards[name] > FORWARDS or not self._endpoints.reaches(leader):
            self._saves.leaders.pop(name, None)
            self._leaderless += 1
            if self._leaderless >= LEADERLESS:
                raise error
            self._end(name, Status.UNAVAILABLE, str(error))
        elif written or self._wrote or self._saves.leaders.get(name):
            self._saves.remember(name, leader)
        else:
            self._endpoints.current = leader  # as far as is known, it leads all groups

    def _go_on_elsewhere(self, address: str, error: MetaUnavailableError | DeniedError) -> None:
        """Take another node for the groups of one that does not answer, or lets nobody in.

        Raises MetaUnavailableError if none is left, or DeniedError if all let nobody in.
        """
        self._failed[address] = error
        self._saves.forget_leader(address)
        if address != self._endpoints.current:
            return
        self._endpoints.after_current()
        if self._endpoints.current in self._failed:
            self._endpoints.available = False
            if all(isinstance(failed, DeniedError) for failed in self._failed.values()):
                raise error
            after_s = error.retry_after_s if isinstance(error, MetaUnavailableError) else 0.0
            raise MetaUnavailableError("; ".join(map(str, self._failed.values())), retry_after_s=after_s) from error

    def _end_written(self, name: str) -> None:
        """A group was written before the call failed: plain entries are saved, the others may not have been as expected."""
        for entry in self._waiting.pop(name):
            if entry.expected_offset is None:
                self._outcomes[entry.key] = _applied(entry)
            else:
                self._outcomes[entry.key] = SaveOutcome(Status.CONFLICT, None, "the answer for it was lost")

    def _end(self, name: str, status: Status, message: str) -> None:
        for entry in self._waiting.pop(name):
            self._outcomes[entry.key] = _applied(entry) if status is Status.APPLIED else SaveOutcome(status, None, message)


def _applied(entry: SaveEntry) -> SaveOutcome:
    return SaveOutcome(Status.APPLIED, as_seen(entry.record, None))


async def all_of(reads: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Await all of them, and raise the first error only then: none is left behind."""
    try:
        done = await asyncio.gather(*reads, return_exceptions=True)
    except asyncio.CancelledError:
        await mark_again()
        raise
    found: list[R] = []
    for one in done:
        if isinstance(one, BaseException):
            raise one
        found.append(one)
    return found
