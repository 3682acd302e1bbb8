"""Commit requests of the local API -> model. A bad entry refuses its whole request, by the name of the field (invariant 10).

What is only an offset becomes columns, in whichever form it came.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from adapter.errors import InvalidInputError
from adapter.model.bounds import Bounds, ShardKey
from adapter.model.names import check_metadata, check_name, check_names, check_topic, were_good
from adapter.model.records import DEFAULT_NAMESPACE, EPOCH_MAX, CommitMode, GroupKey, Member, OffsetKey, OffsetRecord
from adapter.rpc import offsets_pb
from adapter.runtime.clocks import wall_ms
from adapter.runtime.slices import others
from adapter.sidecar.ledger.operations import Columns, Commit, Entry

MAX_OFFSETS = 5_000  # of a commit, which takes up to 25 us for each in the worst case: an OVERWRITE with metadata
MAX_GROUPS = 2_500  # of a commit: one with a generation takes up to 40 us
SLICE_OFFSETS = 100  # that are checked in one go, when there are more: each takes up to 20 us
COLUMNS_PER_SHARD = 10  # entries of columns that are checked in the time of one shard


class ParsedCommit(NamedTuple):
    """A commit with the bounds of its shards, and its groups in the order of the request."""

    commit: Commit
    bounds: dict[ShardKey, Bounds]
    groups: list[GroupKey]


def parse_commit(request: offsets_pb.CommitOffsetsRequest, now_ms: int | None = None) -> ParsedCommit:
    """Parse a commit that arrived at `now_ms` (Unix time; default: now). Raises InvalidInputError."""
    return parse_groups(request.groups, _mode(request.mode), now_ms)


def parse_groups(groups: Iterable[offsets_pb.GroupCommits], mode: CommitMode, now_ms: int | None = None) -> ParsedCommit:
    """Parse the commit of some groups. Raises InvalidInputError."""
    parsing = _Parsing(wall_ms() if now_ms is None else now_ms)
    for at, group in enumerate(groups):
        parsing.add(group, f"groups[{at}]")
    return parsing.finish(mode)


def size_of(groups: Sequence[offsets_pb.GroupCommits]) -> int:
    """The number of offsets and groups in a commit. Raises InvalidInputError when it has more than one request may have.

    A commit is decided and written as a whole, in one iteration of the event loop.
    """
    if len(groups) > MAX_GROUPS:
        raise InvalidInputError(f"groups: are {len(groups)}, over {MAX_GROUPS}; send several requests")
    size = len(groups)
    for group in groups:
        size += len(group.shards) + max(len(group.shard_names), len(group.offsets), len(group.epochs))
    if size - len(groups) > MAX_OFFSETS:
        raise InvalidInputError(f"groups: have {size - len(groups)} offsets, over {MAX_OFFSETS}; send several requests")
    return size


async def parse_in_slices(groups: Sequence[offsets_pb.GroupCommits], mode: int, now_ms: int | None = None) -> ParsedCommit:
    """As `parse_commit`, for a large commit: the event loop runs other tasks between slices. Raises InvalidInputError."""
    commit_mode = _mode(mode)
    parsing = _Parsing(wall_ms() if now_ms is None else now_ms)
    done = 0
    for at, group in enumerate(groups):
        for count in parsing.add_in_steps(group, f"groups[{at}]"):
            done += count
            if done >= SLICE_OFFSETS:
                await others()
                done = 0
    return parsing.finish(commit_mode)


def _mode(mode: int) -> CommitMode:
    try:
        return CommitMode(mode)
    except ValueError:
        raise InvalidInputError(f"mode: {mode} is unknown; 0 is INCREASE_ONLY, 1 is OVERWRITE") from None


@dataclass(slots=True)
class _Group:
    """The plain offsets of one group as columns, and all shards that were named."""

    seen: set[str] = field(default_factory=set)
    shards: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)

    def add(self, shards: Sequence[str], offsets: Sequence[int], epochs: Sequence[int]) -> None:
        self.shards += shards
        self.offsets += offsets
        self.epochs += epochs


class _Parsing:
    """A request while it is validated, group by group."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._order: list[GroupKey] = []
        self._groups: dict[GroupKey, _Group] = {}
        self._entries: list[Entry] = []
        self._members: dict[GroupKey, Member] = {}
        self._bounds: dict[ShardKey, Bounds] = {}

    def add(self, group: offsets_pb.GroupCommits, where: str) -> None:
        """Validate a whole group."""
        name, known = self._begin(group, where)
        for index, item in enumerate(group.shards):
            self._shard(item, name, known, f"{where}.shards[{index}]")

    def add_in_steps(self, group: offsets_pb.GroupCommits, where: str) -> Iterator[int]:
        """Validate a group in steps; each yields its number of shards."""
        name, known = self._begin(group, where)
        yield 1 + len(group.shard_names) // COLUMNS_PER_SHARD
        for index, item in enumerate(group.shards):
            self._shard(item, name, known, f"{where}.shards[{index}]")
            yield 1

    def _begin(self, group: offsets_pb.GroupCommits, where: str) -> tuple[GroupKey, _Group]:
        """Validate everything of a group but its shards."""
        name = GroupKey(group.namespace or DEFAULT_NAMESPACE, group.group)
        check_names(name, (f"{where}.namespace", f"{where}.group"))
        self._order.append(name)
        known = self._groups.setdefault(name, _Group())
        self._member(group, name, where)
        if group.shard_names or group.offsets or group.epochs:
            self._columns(group, name, known, where)
        return name, known

    def finish(self, mode: CommitMode) -> ParsedCommit:
        columns = [
            Columns(name, group.shards, group.offsets, group.epochs if any(group.epochs) else (), self._now_ms)
            for name, group in self._groups.items()
            if group.shards
        ]
        if not columns and not self._entries:
            raise InvalidInputError("groups: no offset is in the request; at least one is needed")
        return ParsedCommit(Commit(self._entries, mode, self._members, columns), self._bounds, self._order)

    def _member(self, group: offsets_pb.GroupCommits, name: GroupKey, where: str) -> None:
        if group.member_id:
            check_name(group.member_id, f"{where}.member_id")
        if not group.HasField("generation"):
            return
        member = Member(group.generation, group.member_id)
        if self._members.setdefault(name, member) != member:
            raise InvalidInputError(f"{where}.generation: {'/'.join(name)} is in the request with another member or generation")

    def _columns(self, group: offsets_pb.GroupCommits, name: GroupKey, known: _Group, where: str) -> None:
        shards, offsets, epochs = list(group.shard_names), list(group.offsets), list(group.epochs)
        for column, values in (("offsets", offsets), ("epochs", epochs or shards)):
            if len(values) != len(shards):
                raise InvalidInputError(f"{where}.{column}: are {len(values)}, for {len(shards)} shard_names")
        if not were_good(shards):
            check_names(shards, [f"{where}.shard_names[{at}]" for at in range(len(shards))])
        if epochs and max(epochs) > EPOCH_MAX:
            at = next(at for at, epoch in enumerate(epochs) if epoch > EPOCH_MAX)
            raise InvalidInputError(f"{where}.epochs[{at}]: {epochs[at]} is over {EPOCH_MAX}")
        before = len(known.seen)
        known.seen.update(shards)
        if len(known.seen) != before + len(shards):
            self._find_twice(name, known, shards, f"{where}.shard_names")
        known.add(shards, offsets, epochs or [0] * len(shards))

    def _find_twice(self, name: GroupKey, known: _Group, shards: Sequence[str], where: str) -> None:
        others = {*known.shards, *(key.shard for key, _ in self._entries if key.group_key == name)}
        for at, shard in enumerate(shards):
            if shard in others:
                raise InvalidInputError(f"{where}[{at}]: {'/'.join((*name, shard))} is in the request twice")
            others.add(shard)

    def _shard(self, item: offsets_pb.ShardCommit, name: GroupKey, known: _Group, where: str) -> None:
        if not item.HasField("offset"):
            raise InvalidInputError(f"{where}.offset is missing; absent does not mean 0")
        shard, epoch = item.shard, item.epoch
        check_names((shard,), (f"{where}.shard",))
        if shard in known.seen:
            raise InvalidInputError(f"{where}.shard: {'/'.join((*name, shard))} is in the request twice")
        if epoch > EPOCH_MAX:
            raise InvalidInputError(f"{where}.epoch: {epoch} is over {EPOCH_MAX}")
        known.seen.add(shard)
        if item.metadata or item.committed_at_ms or item.topic or item.partition:
            self._entries.append((OffsetKey(*name, shard), self._record(item, where)))
        else:
            known.shards.append(shard)
            known.offsets.append(item.offset)
            known.epochs.append(epoch)
        self._note_bounds(item, name, where)

    def _record(self, item: offsets_pb.ShardCommit, where: str) -> OffsetRecord:
        return OffsetRecord(
            item.epoch,
            item.offset,
            committed_at_ms=item.committed_at_ms or self._now_ms,
            metadata=check_metadata(item.metadata, f"{where}.metadata"),
            topic=check_topic(item.topic, f"{where}.topic"),
            partition=item.partition,
        )

    def _note_bounds(self, item: offsets_pb.ShardCommit, name: GroupKey, where: str) -> None:
        if item.HasField("high_watermark"):
            if item.low_watermark > item.high_watermark:
                raise InvalidInputError(
                    f"{where}.low_watermark: {item.low_watermark} is over high_watermark, {item.high_watermark}"
                )
            log_id = item.log_id and check_topic(item.log_id, f"{where}.log_id")
            shard = ShardKey(name.namespace, item.shard)
            self._bounds[shard] = Bounds(item.low_watermark, item.high_watermark, self._now_ms, log_id)
        elif item.HasField("low_watermark"):
            raise InvalidInputError(f"{where}.high_watermark is missing; low_watermark alone says nothing")
