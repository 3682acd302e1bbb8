"""Where a commit goes: in which epoch it stands, and whether its member may still commit. Pure; never writes."""

from collections.abc import Collection

from adapter.errors import FencedError, NotReadyError
from adapter.model import FIRST_EPOCH, CommitMode, GroupKey, Member, OffsetKey, OffsetRecord, decide

MAX_FORGOTTEN = 10_000  # groups


class LoadedGroups:
    """The groups of which everything that the Meta Service holds is known here.

    A key of such a group that is not local is nowhere: it begins in the first epoch. Any other one may stand in some epoch
    remotely: it begins in epoch 0 (unknown), and the flush brings the true one.
    """

    def __init__(self) -> None:
        self.groups: set[GroupKey] = set()
        self.forgets = 0
        # Which of the forgets was the last of a group. Of groups that are not here it was `_floor` or an earlier one.
        self._last: dict[GroupKey, int] = {}
        self._floor = 0

    def forget(self, groups: Collection[GroupKey]) -> None:
        """Keys of these groups are removed here."""
        self.forgets += 1
        self.groups.difference_update(groups)
        self._last.update(dict.fromkeys(groups, self.forgets))
        if len(self._last) > MAX_FORGOTTEN:
            self._last.clear()
            self._floor = self.forgets

    def forgotten_since(self, groups: Collection[GroupKey], forgets: int) -> bool:
        """True when keys of one of these groups may have been removed since there had been so many `forgets`."""
        return self._floor > forgets or any(self._last.get(group, 0) > forgets for group in groups)

    def epoch_of_absent(self, key: OffsetKey) -> int:
        """The epoch of the first commit of a key that is not local."""
        return FIRST_EPOCH if key.group_key in self.groups else 0


def check_generation(group: GroupKey, member: Member, seen: Member | None) -> None:
    """Raise FencedError when `seen` is of a later generation."""
    if seen and member.generation < seen.generation:
        raise FencedError(
            f"{'/'.join(group)}: ILLEGAL_GENERATION: generation {member.generation} of member {member.member_id!r} has ended; "
            f"{seen.generation} is the present one: rejoin the group"
        )


def goes_back(before: OffsetRecord, after: OffsetRecord) -> bool:
    """True when a commit was a rewind of what stood."""
    return after.epoch > before.epoch and before.live


def place(
    key: OffsetKey, offered: OffsetRecord, standing: OffsetRecord | None, mode: CommitMode, loaded: LoadedGroups
) -> OffsetRecord:
    """What stands after a commit. Raises NotReadyError for a rewind of a key whose epoch is unknown.

    Such a rewind could be undone by the Meta Service, where the key may stand in a higher epoch, after it was acknowledged.
    So could a commit of an epoch that this adapter has not seen yet, which is refused in the same way.
    """
    known = standing.epoch if standing else loaded.epoch_of_absent(key)
    if offered.epoch > known:
        raise NotReadyError(
            f"{'/'.join(key)}: epoch {offered.epoch} is not known here, but {known or 'none'}: read it again from the store"
        )
    if standing is None:
        return offered._replace(epoch=loaded.epoch_of_absent(key))
    after = decide(offered, standing, mode)
    if standing.epoch == 0 and after.epoch > 0:
        raise NotReadyError(
            f"{'/'.join(key)}: cannot be rewound now: its epoch is unknown while the Meta Service is out of reach"
        )
    return after
