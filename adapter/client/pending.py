"""Commits that wait in a client: what goes together of a group, who waits for it, and what each of them is told.

Values for `batching`, which decides when something is sent. A bad commit is refused here, before it meets others (invariant 10).
"""

import asyncio
import sys
from collections import deque
from collections.abc import Mapping
from operator import index, itemgetter
from typing import TypeAlias

import grpc
import grpc.aio

from adapter.errors import InvalidInputError
from adapter.model.names import check_name, name_problem
from adapter.model.records import EPOCH_MAX, U64_MAX, GroupKey, Member
from adapter.rpc import offsets_pb

Rows: TypeAlias = list[offsets_pb.Superseded]
Answer: TypeAlias = "asyncio.Future[Rows | None]"  # None: nothing supersedes it
# A plain tuple, made for each commit: (answer, shard -> offset, shard -> epoch, deadline in the time of the loop).
Caller: TypeAlias = tuple[Answer, dict[str, int], Mapping[str, int], float]
Standing: TypeAlias = Mapping[str, offsets_pb.Superseded]  # shard -> what stands above what was sent


class Batch:
    """What goes together of one group: of each shard the newest value, and the callers that wait for it."""

    __slots__ = ("_mixed", "_room", "alone", "callers", "epochs", "error", "group", "member", "offsets", "overwrite", "weight")

    def __init__(
        self, group: "Group", member: Member | None, *, room: int = 0, alone: bool = False, overwrite: bool = False
    ) -> None:
        self.group = group
        self.member = member
        self.offsets: dict[str, int] = {}
        self.epochs: dict[str, int] = {}  # of shards whose epoch the callers know
        self.callers: list[Caller] = []
        self.weight = 0  # entries of all callers
        self.overwrite = overwrite
        self.alone = alone or overwrite  # it is the commit of one caller, and goes by itself
        self.error: Exception | None = None  # how its last request ended
        self._room = room  # entries; a first commit may have more
        self._mixed = False  # callers have different offsets of a shard

    @property
    def deadline(self) -> float:
        """Of the last of its callers."""
        _, _, _, deadline = self.callers[-1]
        return deadline

    @property
    def wanted(self) -> bool:
        """False when nobody waits for it any more."""
        for caller in self.callers:  # mostly the first one: `any` would cost more  # noqa: SIM110
            if not caller[0].done():
                return True
        return False

    def takes(self, offsets: Mapping[str, int], epochs: Mapping[str, int], weight: int) -> bool:
        """Whether a commit may go with it. Of two epochs only the adapter knows which one stands."""
        return weight <= self._room - self.weight and (not (epochs or self.epochs) or self._agrees(offsets, epochs))

    def add(self, caller: Caller, weight: int) -> None:
        """Let a commit go with it."""
        _, offsets, epochs, _ = caller
        newest = self.offsets
        for shard, offset in offsets.items():
            known = newest.setdefault(shard, offset)
            if known != offset:
                self._mixed = True
                if known < offset:
                    newest[shard] = offset
        if epochs:
            self.epochs.update(epochs)
        self.weight += weight
        self.callers.append(caller)

    def absorb(self, other: "Batch", room: int) -> bool:
        """Take what another batch has, if both together have at most `room` entries and may go together."""
        together = not (self.alone or other.alone) and self.member == other.member and self.weight + other.weight <= room
        if not together or not self._agrees(other.offsets, other.epochs):
            return False
        for caller in other.callers:
            self.add(caller, len(caller[1]))
        self.callers.sort(key=itemgetter(3))
        self.error = self.error or other.error
        return True

    def write_to(self, commits: offsets_pb.GroupCommits) -> None:
        """Write it into a request."""
        commits.namespace, commits.group = self.group.key
        if self.member:
            commits.generation, commits.member_id = self.member
        commits.shard_names.extend(self.offsets)
        commits.offsets.extend(self.offsets.values())
        if self.epochs:
            commits.epochs.extend([self.epochs.get(shard, 0) for shard in self.offsets])

    def settle(self, standing: Standing | None) -> None:
        """It is durable: tell each caller what supersedes its own values."""
        if standing or self._mixed:
            for answer, offsets, *_ in self.callers:
                if not answer.done():
                    answer.set_result(self._rows(offsets, standing or {}))
            return
        for answer, *_ in self.callers:
            if not answer.done():
                answer.set_result(None)

    def fail(self, error: Exception) -> None:
        """Tell all callers that it is not known to be durable."""
        for answer, *_ in self.callers:
            if not answer.done():
                answer.set_exception(error)

    def _agrees(self, offsets: Mapping[str, int], epochs: Mapping[str, int]) -> bool:
        return all(shard not in self.offsets or self.epochs.get(shard) == epochs.get(shard) for shard in offsets)

    def _rows(self, offsets: Mapping[str, int], standing: Standing) -> Rows:
        """The adapter's rows, and where another caller went further. Such a row has the epoch that was named, 0 for none."""
        rows = []
        for shard, offset in offsets.items():
            row = standing.get(shard)
            if row is None and self.offsets[shard] > offset:
                namespace, group = self.group.key
                epoch, further = self.epochs.get(shard, 0), self.offsets[shard]
                row = offsets_pb.Superseded(namespace=namespace, group=group, shard=shard, epoch=epoch, offset=further)
            if row is not None:
                rows.append(row)
        return rows


class Group:
    """The batches of one group, in the order in which they may be sent, and how its last requests ended."""

    __slots__ = ("apart", "flying", "key", "lined", "open", "queue")

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.queue: deque[Batch] = deque()
        self.open: dict[Member | None, Batch] = {}  # those of the queue that take more, by member
        self.flying = 0  # requests under way that have something of it
        self.apart = False  # it waited for the Meta Service, or was in a failed request: it goes by itself until that is over
        self.lined = False  # it has its turn

    @property
    def idle(self) -> bool:
        """True when nobody waits for it."""
        return not (self.queue or self.flying)

    def draw(self) -> Batch:
        """Take the first batch. It takes no more commits."""
        batch = self.queue.popleft()
        if self.open.get(batch.member) is batch:
            del self.open[batch.member]
        return batch

    def draw_with(self, room: int) -> Batch:
        """Take the first batch, and with it what may follow in the same request, up to `room` entries."""
        batch = self.draw()
        while self.queue and batch.absorb(self.queue[0], room):
            self.draw()
        return batch


class Room:
    """How many entries may be without an answer: beyond that, callers wait for their turn before theirs are taken."""

    def __init__(self, most: int) -> None:
        self.taken = 0
        self._most = most
        self._turns: deque[asyncio.Future[None]] = deque()
        self._emptied: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """True when a caller has to `wait` before its entries are taken."""
        return self.taken >= self._most or bool(self._turns)

    async def wait(self, timeout_s: float) -> float:
        """Return when it is the caller's turn, with its deadline in the time of the loop. Raises DEADLINE_EXCEEDED then."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        turn: asyncio.Future[None] = loop.create_future()
        self._turns.append(turn)
        try:
            async with asyncio.timeout_at(deadline):
                await turn
        except TimeoutError:
            raise overdue() from None
        finally:
            if turn.cancelled():
                self._turns = deque(other for other in self._turns if other is not turn)
            loop.call_soon(self._admit)  # after this caller, whose entries may leave no room for the next one
        return deadline

    def give_back(self, entries: int) -> None:
        """So many were answered."""
        self.taken -= entries
        if self._turns:
            self._admit()
        if self._emptied and not self.taken and not self._emptied.done():
            self._emptied.set_result(None)

    async def emptied(self, limit_s: float) -> None:
        """Let everybody in, and wait up to `limit_s` seconds until all entries are answered."""
        self._most = sys.maxsize
        self._admit()
        if self.taken:
            self._emptied = self._emptied or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=limit_s)

    def _admit(self) -> None:
        """Let the next caller in. It lets in the one behind it."""
        while self._turns and self.taken < self._most:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                return


def rpc_error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """An error of this side, in the form of the adapter's."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def overdue() -> grpc.aio.AioRpcError:
    """The error of a commit whose time is over."""
    return rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "not answered in time; it may be applied or not")


def closed(*, sent: bool) -> grpc.aio.AioRpcError:
    """The error of a commit that came after the close, or was not answered before its end."""
    said = "not answered before the client was closed; it may be applied or not" if sent else "the client is closed"
    return rpc_error(grpc.StatusCode.CANCELLED, said)


def checked_key(namespace: str, group: str) -> GroupKey:
    """A group. Raises InvalidInputError."""
    return GroupKey(check_name(namespace, "namespace"), check_name(group, "group"))


def checked_member(member: Member) -> Member:
    """A member. Raises InvalidInputError."""
    if member.member_id:
        check_name(member.member_id, "member_id")
    _check_number(member.generation, U64_MAX, "generation")
    return member


def checked_offsets(offsets: Mapping[str, int]) -> dict[str, int]:
    """A copy of shard -> offset. Raises InvalidInputError."""
    if not offsets:
        raise InvalidInputError("offsets is empty; at least one offset is needed")
    for shard, offset in offsets.items():
        if name_problem(shard) or type(offset) is not int or not 0 <= offset <= U64_MAX:
            return {check_name(shard, "shard"): _check_number(at, U64_MAX, f"offset of {shard}") for shard, at in offsets.items()}
    return dict(offsets)


def checked_epochs(epochs: Mapping[str, int], offsets: Mapping[str, int]) -> dict[str, int]:
    """Shard -> known epoch, of the shards in `offsets`. Raises InvalidInputError."""
    found = {shard: _check_number(epochs.get(shard, 0), EPOCH_MAX, f"epoch of {shard}") for shard in offsets}
    return {shard: epoch for shard, epoch in found.items() if epoch}


def _check_number(value: int, most: int, field: str) -> int:
    number = index(value)
    if not 0 <= number <= most:
        raise InvalidInputError(f"{field}: {number} is not a number from 0 to {most}")
    return number
