"""In what the two kinds of Meta Service differ: one that keeps epochs (ours), and one that keeps only offsets (RobustMQ).

Which kind a server is shows in its answers (`endpoints`). `MetaClient.kind` is that of the current one, and may be the other one
behind any await: a caller asks it each time. docs/discussion.md says what follows.
"""

from collections.abc import Sequence
from typing import Protocol

from adapter.model.records import OffsetRecord

# docs/robustmq.md explains each.
WEAKER = (
    "a reset or delete is undone by another adapter that still holds the shard and commits it, or starts",
    "a rewind that was not flushed when a process ended loses against the larger offset that stands there",
    "a writer that does not say what it expects, as RobustMQ's own brokers, can lower an offset; that is seen at the next commit",
    "it remembers no changes: a shift whose answer was lost is made once more by a repeat, so look at the offsets first",
    "metadata, commit times and generations are known to the adapter that took the commit alone",
    "it deletes groups without a save itself, and keeps no tombstones: what is deleted there may be pushed back from here",
    "a Meta Service that was put back from a backup is noticed at the next commit of each key, or at the next start",
)


class ServerKind(Protocol):
    """What a Meta Service does.

    - `knows_epochs`: it keeps the epoch of a record. For people; whoever decides by a kind asks for what follows.
    - `merges`: of a save and what stands the larger record stays, whoever sends it; else a save overwrites.
    - `reads_pages`: a read names any number of groups and is answered in pages; else each group has a read of its own.
    - `lists_offsets`: it lists all that it has.
    - `tells_changes`: it tells which groups were changed other than by commits.
    - `tells_rewinds`: a smaller offset that is later than a larger one is known as such, also if it was not compared before.
    - `expires_unasked`: it deletes groups without a save by itself, and not when it is asked to.
    - `keeps_metadata`: it keeps small values beside the offsets.
    - `joins_names`: it joins names by slashes, so that some groups cannot be told apart; see `slash_names`.
    - `weaker`: what is promised less than with epochs, for an operator.
    """

    knows_epochs: bool
    merges: bool
    reads_pages: bool
    lists_offsets: bool
    tells_changes: bool
    tells_rewinds: bool
    expires_unasked: bool
    keeps_metadata: bool
    joins_names: bool
    weaker: Sequence[str]

    def keeps(self, record: OffsetRecord, /) -> bool:
        """False for a tombstone where being absent is what a tombstone means."""


class WithEpochs:
    """A server that keeps epochs."""

    knows_epochs = True
    merges = True
    reads_pages = True
    lists_offsets = True
    tells_changes = True
    tells_rewinds = True
    expires_unasked = False
    keeps_metadata = True
    joins_names = False
    weaker: Sequence[str] = ()

    def keeps(self, _: OffsetRecord) -> bool:
        """Every record."""
        return True


class OffsetsOnly:
    """A server that keeps only offsets."""

    knows_epochs = False
    merges = False
    reads_pages = False
    lists_offsets = False
    tells_changes = False
    tells_rewinds = False
    expires_unasked = True
    keeps_metadata = False
    joins_names = True
    weaker: Sequence[str] = WEAKER

    def keeps(self, record: OffsetRecord) -> bool:
        """All but tombstones: it would take one for the offset 0."""
        return record.live


WITH_EPOCHS: ServerKind = WithEpochs()
OFFSETS_ONLY: ServerKind = OffsetsOnly()
