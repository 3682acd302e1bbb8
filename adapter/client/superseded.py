"""Which superseded shards of a commit are an error: those that somebody moved, and that the consumer has not read since.

A commit that is behind another one of the same epoch is none: at least its offset stands. The epoch in which a consumer commits
is the one that it names, or else the one that its client read last, or else the first.
"""

from collections.abc import Iterable, Mapping

from adapter.client.pending import Committed
from adapter.errors import PermanentError
from adapter.model.records import FIRST_EPOCH, epoch_text, taken_up
from adapter.rpc import offsets_pb

MAX_KNOWN = 65_536  # shards whose epoch is known: the latest; of others a lower commit is an error until they are read
_MAX_NAMED = 3  # shards in the text of an error


class SupersededError(PermanentError):
    """Of some shards a commit stored nothing: they were reset, deleted, cloned or rewound, and not read since.

    Read them with `ReadMode.STORE`, and go on from there. The other shards of the commit are stored. `moved` has the rows of the
    shards that were moved, `committed` the whole answer, as `commit` with `check=False` returns it.
    """

    def __init__(
        self, group: str, moved: list[offsets_pb.Superseded], offsets: Mapping[str, object], committed: Committed
    ) -> None:
        self.group = group
        self.moved = moved
        self.committed = committed
        named = "; ".join(f"{row.shard}: {_stands(row)}" for row in moved[:_MAX_NAMED])
        more = f"; and {len(moved) - _MAX_NAMED:,} more" if len(moved) > _MAX_NAMED else ""
        super().__init__(
            f"{group}: {len(moved):,} of {len(offsets):,} shards were not stored: a reset, delete, clone or rewind moved them "
            f"({named}{more}). Read them with ReadMode.STORE and go on from there"
        )


class KnownEpochs:
    """The epochs above the first of the shards that a client has read or committed."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], int] = {}

    def read(self, namespace: str, group: str, rows: Iterable[offsets_pb.ShardOffset]) -> None:
        """These rows were read, to go on from there."""
        for row in rows:
            self._learn((namespace, group, row.shard), row.epoch)

    def answered(self, namespace: str, group: str, committed: Committed, named: Mapping[str, int]) -> list[offsets_pb.Superseded]:
        """The answer of a commit that `named` epochs; returns the rows of the shards that were moved."""
        for shard, epoch in committed.raised.items():
            self._learn((namespace, group, shard), epoch)
        return [
            row for row in committed if row.held or taken_up(row.epoch) > self._of_consumer(namespace, group, row.shard, named)
        ]

    def _of_consumer(self, namespace: str, group: str, shard: str, named: Mapping[str, int]) -> int:
        return taken_up(named.get(shard) or self._known.get((namespace, group, shard), FIRST_EPOCH))

    def _learn(self, key: tuple[str, str, str], epoch: int) -> None:
        known = self._known
        known.pop(key, None)
        if epoch > FIRST_EPOCH:
            known[key] = epoch
            if len(known) > MAX_KNOWN:
                del known[next(iter(known))]


def _stands(row: offsets_pb.Superseded) -> str:
    return f"{'deleted' if row.deleted else f'offset {row.offset:,} stands'}, epoch {epoch_text(row.epoch)}"
