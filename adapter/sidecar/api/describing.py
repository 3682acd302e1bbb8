"""Descriptions of groups: the offsets here, those of the Meta Service and the bounds of the log, side by side.

The Meta Service is asked, and nothing is merged: to look at something changes nothing. (A group that the recovery has not come to
is compared before.) What is here is read first, so that a flush that comes between does not look like a loss there.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from adapter.errors import AdapterError, TooLargeError
from adapter.model.bounds import Bounds, ShardKey
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord
from adapter.rpc import offsets_pb
from adapter.runtime.serving.large_calls import SLICE_ROWS
from adapter.runtime.serving.statuses import Context
from adapter.runtime.slices import others
from adapter.sidecar.api.replies import describe_row
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import LOAD_GROUPS, Wanted

MAX_DESCRIBED = 20_000  # shards of a group: its answer is one message
SHARDS_TOGETHER = 1_000  # of the groups of a message, and those of its last group

Records = dict[str, OffsetRecord]  # by their shards


@dataclass(slots=True, eq=False)
class _Group:
    """What is known of a group. `unanswered`: why the Meta Service did not tell its own. `refused`: it is too large."""

    wanted: Wanted
    local: Records = field(default_factory=dict)
    remote: Records = field(default_factory=dict)
    unanswered: str = ""
    refused: TooLargeError | None = None

    def check(self) -> None:
        """Drop what is known of a group that is too large."""
        if max(len(self.local), len(self.remote)) > MAX_DESCRIBED:
            self.local, self.remote = {}, {}
            self.refused = TooLargeError(
                f"group: {'/'.join(self.wanted.group)} has more than {MAX_DESCRIBED:,} shards, which no answer may have: name "
                "some of them in each of several calls, or use ListOffsets, which has pages"
            )


class Describing:
    """Describes groups of a namespace for one call. `mode_of` gives the commit policy of a group."""

    def __init__(self, core: Core, mode_of: Callable[..., str], context: Context | None) -> None:
        self._core = core
        self._mode_of = mode_of
        self._context = context
        self._unanswered = ""  # why the Meta Service did not answer; neither it nor the broker is asked again then
        self._no_bounds = ""
        self._rows = 0  # since other tasks had their turn

    async def one(self, wanted: Wanted) -> offsets_pb.DescribeGroupReply:
        """A group, or some shards of it. Raises TooLargeError."""
        async with self._core.admin_calls.one(context=self._context):
            groups = await self._compared([await self._local(wanted)])
            await self._ask(groups)
            (reply,) = await self._replies(groups)
        if groups[0].refused:
            raise groups[0].refused
        return reply

    async def many(self, groups: Sequence[GroupKey]) -> AsyncIterator[offsets_pb.DescribeGroupsReply]:
        """Groups in this order, some in each reply. One that is too large has the error in its place."""
        left = deque(groups)
        while left:
            async with self._core.admin_calls.one(context=self._context):
                some: list[_Group] = []
                shards = 0
                while left and shards < SHARDS_TOGETHER and len(some) < LOAD_GROUPS:
                    some.append(await self._local(Wanted(left.popleft(), ())))
                    shards += len(some[-1].local)
                some = await self._compared(some)
                unread = await self._ask(some)
                left.extendleft(one.wanted.group for one in reversed(unread))
                del some[len(some) - len(unread) :]
                reply = offsets_pb.DescribeGroupsReply()
                for one, described in zip(some, await self._replies(some), strict=True):
                    error = str(one.refused or "")
                    reply.groups.add(group=one.wanted.group.group, description=None if error else described, error=error)
            yield reply

    async def _compared(self, groups: list[_Group]) -> list[_Group]:
        """The same, after a comparison of those that the recovery has not come to. `_ask` finds out why that was not possible."""
        if self._core.ledger.recovered.now:
            return groups
        with suppress(AdapterError):
            await self._core.loader.compare([one.wanted for one in groups if not one.refused])
        return [one if one.refused else await self._local(one.wanted) for one in groups]

    async def _local(self, wanted: Wanted) -> _Group:
        group = _Group(wanted)
        for rows in self._core.reader.slices([wanted]):
            group.local.update((key.shard, record) for key, record in rows)
            group.check()
            if group.refused:
                break
            await self._turn(len(rows))
        await self._turn(1)
        return group

    async def _turn(self, rows: int) -> None:
        """Let other tasks run after each SLICE_ROWS rows."""
        self._rows += rows
        if self._rows >= SLICE_ROWS:
            self._rows = 0
            await others()

    async def _ask(self, groups: Sequence[_Group]) -> Sequence[_Group]:
        """Ask the Meta Service for its records of these groups. Returns the last of them, if it has too many for all."""
        left = {one.wanted.group: one for one in groups if not one.refused}
        try:
            if not self._unanswered:
                await self._read(left)
        except AdapterError as error:
            self._unanswered = str(error)
        if not self._unanswered:
            return groups[groups.index(next(iter(left.values()))) :] if left else ()
        for one in left.values():
            one.remote, one.unanswered = {}, self._unanswered
        return ()

    async def _read(self, left: dict[GroupKey, _Group]) -> None:
        """Read pages until none of the groups is left, or as many rows as one may have. Raises MetaUnavailableError."""
        after, rows, asked = b"", 0, len(left)
        while left and (rows < MAX_DESCRIBED or len(left) == asked):
            first = next(iter(left.values()))
            if first.wanted.shards:
                found = await self._core.meta.get(first.wanted.keys)
                first.remote = {key.shard: record for key, record in found.items()}
                del left[first.wanted.group]
                continue
            page = await self._core.meta.groups_page(list(left), after)
            for key, record in page.entries:
                left[key.group_key].remote[key.shard] = record
            rows += len(page.entries)
            after = page.after
            for group in [*left][: len(left) - len(page.left)]:
                left.pop(group).check()
            if after:
                first = next(iter(left.values()))
                first.check()
                if first.refused:
                    del left[first.wanted.group]
                    after = b""

    async def _replies(self, groups: Sequence[_Group]) -> list[offsets_pb.DescribeGroupReply]:
        """The descriptions, with the bounds of the shards; an empty one for a group that is too large."""
        shards = [sorted(one.local.keys() | one.remote.keys()) for one in groups]
        bounds = await self._bounds(groups[0].wanted.group.namespace, [shard for some in shards for shard in some])
        replies = []
        for one, every in zip(groups, shards, strict=True):
            group = one.wanted.group
            member = self._core.ledger.store.member(group)
            reply = offsets_pb.DescribeGroupReply(
                mode=self._mode_of(*group),
                member_id=member.member_id if member else "",
                generation=member.generation if member else None,
                remote_error=one.unanswered,
                bounds_error=self._no_bounds,
            )
            for at in range(0, len(every), SLICE_ROWS):
                for shard in every[at : at + SLICE_ROWS]:
                    key = OffsetKey(*group, shard)
                    here, there, dirty = one.local.get(shard), one.remote.get(shard), key in self._core.ledger.dirty
                    reply.shards.append(describe_row(key, here, there, bounds.get(shard), self._core.ledger.holds, dirty=dirty))
                await self._turn(min(len(every) - at, SLICE_ROWS))
            replies.append(reply)
        return replies

    async def _bounds(self, namespace: str, shards: Sequence[str]) -> dict[str, Bounds]:
        """The bounds from the broker where it serves them, else as commits reported them."""
        if self._core.broker_log.configured and not self._no_bounds:
            try:
                return await self._core.broker_log.bounds(namespace, dict.fromkeys(shards))
            except AdapterError as error:
                self._no_bounds = str(error)
        return {shard: bounds for shard in shards if (bounds := self._core.bounds.get(ShardKey(namespace, shard)))}
