"""The pending commits of a client: which of them share an entry of a request, and what each caller gets as its answer.

Data for `batching`, which decides when a request is sent. `Group` is the queue of one consumer group, `Batch` an element of it:
commits that are merged into one entry. Invalid commits are refused before they are merged with others (invariant 10).
"""

import asyncio
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from operator import index, itemgetter
from types import MappingProxyType
from typing import TypeAlias

import grpc
import grpc.aio

from adapter.client.progress import Progress
from adapter.errors import InvalidInputError
from adapter.model.names import check_name, name_problem
from adapter.model.records import EPOCH_MAX, U64_MAX, GroupKey, Member
from adapter.rpc import offsets_pb


class Committed(list[offsets_pb.Superseded]):
    """The answer to one commit: its superseded shards, as a list; empty if all of it was applied.

    `raised` is shard -> epoch for the shards that were stored in a new epoch: a rewind, or the first commit after a reset, delete
    or clone. Name it in the next commits.
    """

    def __init__(
        self, superseded: Iterable[offsets_pb.Superseded] = (), raised: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        super().__init__(superseded)
        self.raised = raised


Answer: TypeAlias = "asyncio.Future[Committed | None]"  # of one commit; None if all of it was plainly applied
Told: TypeAlias = Mapping[str, Progress]  # shard -> what came with its offset, if anything did
# One call of `commit`: (answer, shard -> offset, shard -> epoch, deadline in the loop's time, told). As a tuple it is cheap.
Caller: TypeAlias = tuple[Answer, dict[str, int], Mapping[str, int], float, Told]
SupersededBy: TypeAlias = Mapping[str, offsets_pb.Superseded]  # shard -> the larger offset that the adapter has
Raised: TypeAlias = Mapping[str, int]  # shard -> the new epoch

NOTHING_TOLD: Told = MappingProxyType({})
_TEXT_BYTES = 512  # of a Progress, that count as much as an offset more


class Batch:
    """Commits of one group that are sent as one: the largest offset of each shard, and the callers that wait for the answer.

    All commits of a batch have the same member, mode and, for a shard that they share, epoch and log.
    """

    __slots__ = (
        "_differ",
        "_room",
        "alone",
        "callers",
        "epochs",
        "error",
        "group",
        "member",
        "offsets",
        "overwrite",
        "told",
        "weight",
    )

    def __init__(
        self, group: "Group", member: Member | None, *, room: int = 0, alone: bool = False, overwrite: bool = False
    ) -> None:
        self.group = group
        self.member = member
        self.offsets: dict[str, int] = {}
        self.epochs: dict[str, int] = {}  # only of shards whose epoch the callers named
        self.told: dict[str, Progress] = {}  # of the newest offset that came with more
        self.callers: list[Caller] = []
        self.weight = 0  # offsets of all callers together, repeated shards included; see `weight_of`
        self.overwrite = overwrite
        self.alone = alone or overwrite  # a single commit, which is neither merged nor sent with others
        self.error: Exception | None = None  # of its last request, if that was lost
        self._room = room  # the most that `weight` may become; a single commit may exceed it
        self._differ = False  # callers have different offsets for a shard: some of them are superseded by others

    @property
    def deadline(self) -> float:
        """The latest deadline of its callers, which are sorted by it."""
        return self.callers[-1][3]

    @property
    def awaited(self) -> bool:
        """False if all callers have an answer already: they were cancelled, or their time ran out."""
        for caller in self.callers:  # usually the first one decides: faster than `any`  # noqa: SIM110
            if not caller[0].done():
                return True
        return False

    def accepts(self, offsets: Mapping[str, int], epochs: Mapping[str, int], told: Told, weight: int) -> bool:
        """Whether a commit may be merged in: it fits, and no shard gets two epochs, of which only the adapter knows the newer.

        Nor two logs: their offsets are not compared.
        """
        plain = not (epochs or self.epochs or (told and self.told))
        return weight <= self._room - self.weight and (plain or self._agrees(offsets, epochs, told))

    def add(self, caller: Caller, weight: int) -> None:
        """Merge a commit in."""
        _, offsets, epochs, _, told = caller
        newest = self.offsets
        for shard, offset in offsets.items():
            known = newest.setdefault(shard, offset)
            if known != offset:
                self._differ = True
                if known < offset:
                    newest[shard] = offset
        if epochs:
            self.epochs.update(epochs)
        if told:
            self.told.update({shard: progress for shard, progress in told.items() if progress.offset == newest[shard]})
        self.weight += weight
        self.callers.append(caller)

    def merge(self, other: "Batch", room: int) -> bool:
        """Merge another batch in, if they fit together and have at most `room` entries; returns whether it was done."""
        together = not (self.alone or other.alone) and self.member == other.member and self.weight + other.weight <= room
        if not together or not self._agrees(other.offsets, other.epochs, other.told):
            return False
        for caller in other.callers:
            self.add(caller, weight_of(caller[1], caller[4]))
        self.callers.sort(key=itemgetter(3))
        self.error = self.error or other.error
        return True

    def write_to(self, commits: offsets_pb.GroupCommits) -> None:
        """Write the batch into a request, as one `GroupCommits`."""
        commits.namespace, commits.group = self.group.key
        if self.member:
            commits.generation, commits.member_id = self.member
        plain = self.offsets
        if self.told:
            plain = dict(plain)
            for shard, progress in self.told.items():
                if progress.offset == plain[shard]:
                    del plain[shard]
                    progress.write_to(commits.shards.add(shard=shard, epoch=self.epochs.get(shard, 0)))
        commits.shard_names.extend(plain)
        commits.offsets.extend(plain.values())
        if self.epochs:
            commits.epochs.extend([self.epochs.get(shard, 0) for shard in plain])

    def settle(self, superseded: SupersededBy | None, raised: Raised | None = None) -> None:
        """Answer the callers: the batch is durable. Each gets the rows of its own shards."""
        if superseded or raised or self._differ:
            for answer, offsets, *_ in self.callers:
                if not answer.done():
                    answer.set_result(self._committed(offsets, superseded or {}, raised or {}))
            return
        for answer, *_ in self.callers:
            if not answer.done():
                answer.set_result(None)

    def fail(self, error: Exception) -> None:
        """Give all waiting callers an error: the batch is not known to be durable."""
        for answer, *_ in self.callers:
            if not answer.done():
                answer.set_exception(error)

    def _agrees(self, offsets: Mapping[str, int], epochs: Mapping[str, int], told: Told) -> bool:
        logs = all(shard not in self.told or self.told[shard].log_id == progress.log_id for shard, progress in told.items())
        return logs and all(shard not in self.offsets or self.epochs.get(shard) == epochs.get(shard) for shard in offsets)

    def _committed(self, offsets: Mapping[str, int], superseded: SupersededBy, raised: Raised) -> Committed:
        """A caller's answer. Superseded are those of the adapter's reply, and those of which another caller of it had more.

        The latter have the new epoch, or the one that a caller named, 0 if none did.
        """
        rows = []
        for shard, offset in offsets.items():
            row = superseded.get(shard)
            if row is None and self.offsets[shard] > offset:
                namespace, group = self.group.key
                epoch, further = raised.get(shard) or self.epochs.get(shard, 0), self.offsets[shard]
                row = offsets_pb.Superseded(namespace=namespace, group=group, shard=shard, epoch=epoch, offset=further)
            if row is not None:
                rows.append(row)
        return Committed(rows, {shard: epoch for shard, epoch in raised.items() if shard in offsets})


class Group:
    """The queue of one consumer group: its batches in the order in which they are sent, and its state."""

    __slots__ = ("in_flight", "key", "open", "queue", "scheduled", "separate")

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.queue: deque[Batch] = deque()
        self.open: dict[Member | None, Batch] = {}  # batches in the queue that still accept commits, by member
        self.in_flight = 0  # requests in flight with a batch of this group
        self.separate = False  # sent in requests of its own: it is written through, or its last request failed
        self.scheduled = False  # it is in one of the queues of groups that may be sent

    @property
    def idle(self) -> bool:
        """True if it has no pending commit."""
        return not (self.queue or self.in_flight)

    def pop(self) -> Batch:
        """Remove and return the first batch, which accepts no more commits."""
        batch = self.queue.popleft()
        if self.open.get(batch.member) is batch:
            del self.open[batch.member]
        return batch

    def pop_merged(self, room: int) -> Batch:
        """Remove and return the first batch, with the following ones merged in while they fit into `room` entries."""
        batch = self.pop()
        while self.queue and batch.merge(self.queue[0], room):
            self.pop()
        return batch


class PendingLimit:
    """Limits how many offsets may be unanswered. Beyond that, callers wait, and are admitted in order."""

    def __init__(self, limit: int) -> None:
        self.used = 0
        self._limit = limit
        self._waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()  # the first one is admitted, or the next
        self._drained: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """True if a caller has to `wait` before its commit is accepted."""
        return self.used >= self._limit or bool(self._waiters)

    async def wait(self, timeout_s: float) -> float:
        """Wait to be admitted; returns the commit's deadline in the loop's time. Raises DEADLINE_EXCEEDED after `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            raise timeout_error() from None
        finally:
            # Not before: else who comes meanwhile would be merged before this caller, whose deadline is earlier.
            del self._waiters[waiter]
            loop.call_soon(self._admit)  # after this caller has counted its own offsets
        return deadline

    def release(self, entries: int) -> None:
        """Count offsets as answered, and admit the next callers."""
        self.used -= entries
        if self._waiters:
            self._admit()
        if self._drained and not self.used and not self._drained.done():
            self._drained.set_result(None)

    async def drain(self, limit_s: float) -> None:
        """Admit all waiting callers, and wait up to `limit_s` seconds until every offset is answered."""
        self._limit = sys.maxsize
        self._admit()
        if self.used:
            self._drained = self._drained or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._drained], timeout=limit_s)

    def _admit(self) -> None:
        """Admit the first caller, which admits the one behind it."""
        if self._waiters and self.used < self._limit:
            waiter = next(iter(self._waiters))
            if not waiter.done():
                waiter.set_result(None)


def rpc_error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """An error that this client raises itself, in the form of one from the adapter."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def timeout_error() -> grpc.aio.AioRpcError:
    """The error of a commit that was not answered before its deadline."""
    return rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "not answered in time; it may be applied or not")


def closed_error(*, sent: bool) -> grpc.aio.AioRpcError:
    """The error of a commit after the client was closed, or (`sent`) of one without an answer when it was closed."""
    said = "not answered before the client was closed; it may be applied or not" if sent else "the client is closed"
    return rpc_error(grpc.StatusCode.CANCELLED, said)


def checked_key(namespace: str, group: str) -> GroupKey:
    """The key of a group with valid names. Raises InvalidInputError."""
    return GroupKey(_checked_text(namespace, "namespace"), _checked_text(group, "group"))


def checked_member(member: Member) -> Member:
    """A member with a valid id and generation. Raises InvalidInputError."""
    if member.member_id:
        check_name(member.member_id, "member_id")
    _check_number(member.generation, U64_MAX, "generation")
    return member


def checked_offsets(offsets: Mapping[str, int | Progress]) -> tuple[dict[str, int], Told]:
    """A copy of shard -> offset with valid names and offsets, and what came with them. Raises InvalidInputError."""
    if not isinstance(offsets, Mapping):
        raise InvalidInputError(f"offsets: {offsets!r} is no mapping of shards to offsets, such as a dict")
    if not offsets:
        raise InvalidInputError("offsets is empty; at least one offset is needed")
    for shard, offset in offsets.items():
        if type(shard) is not str or name_problem(shard) or type(offset) is not int or not 0 <= offset <= U64_MAX:
            return _checked_one_by_one(offsets)
    return dict(offsets), NOTHING_TOLD  # type: ignore[arg-type]  # all are numbers


def _checked_one_by_one(offsets: Mapping[str, int | Progress]) -> tuple[dict[str, int], Told]:
    found: dict[str, int] = {}
    told: dict[str, Progress] = {}
    for shard, given in offsets.items():
        _checked_text(shard, "shard")
        if isinstance(given, Progress):
            told[shard], found[shard] = given, given.offset  # which it has checked
        else:
            found[shard] = _check_number(given, U64_MAX, f"offset of {shard}")
    return found, told


def weight_of(offsets: Mapping[str, int], told: Told) -> int:
    """How much a commit takes of a request and of what may be pending: its offsets, and more for long texts."""
    return len(offsets) + sum(progress.text_bytes for progress in told.values()) // _TEXT_BYTES if told else len(offsets)


def checked_epochs(epochs: Mapping[str, int], offsets: Mapping[str, int]) -> dict[str, int]:
    """Shard -> epoch for the shards in `offsets` whose epoch is known (not 0). Raises InvalidInputError."""
    found = {shard: _check_number(epochs.get(shard, 0), EPOCH_MAX, f"epoch of {shard}") for shard in offsets}
    return {shard: epoch for shard, epoch in found.items() if epoch}


def checked_names(names: Iterable[str], field: str) -> list[str]:
    """A copy of several names. Raises InvalidInputError also for a single string, which is as many names as it has letters."""
    if isinstance(names, str | bytes):
        raise InvalidInputError(f"{field}: {names!r} is one name; give a list: [{names!r}]")
    return [_checked_text(name, field) for name in names]


def _checked_text(name: str, field: str) -> str:
    if not isinstance(name, str):
        raise InvalidInputError(f"{field}: {name!r} is not a string")
    return check_name(name, field)


def _check_number(value: int, most: int, field: str) -> int:
    try:
        number = index(value)
    except TypeError:
        raise InvalidInputError(f"{field}: {value!r} is not a number from 0 to {most}") from None
    if not 0 <= number <= most:
        raise InvalidInputError(f"{field}: {number} is not a number from 0 to {most}")
    return number
