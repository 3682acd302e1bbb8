"""A scope: what is stored, which processes run with which calls, and which faults may happen, anywhere."""

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from adapter.metaservice.etcd.broker_stores import decode_report
from adapter.metaservice.etcd.keys import encode_value
from adapter.metaservice.etcd.sharding import first_layout
from adapter.model.codec import pack_names
from adapter.model.records import FIRST_EPOCH, OffsetKey, OffsetRecord
from tests.exploration.process import (
    CLUSTER,
    KEYS,
    LOCAL_STORE,
    STORE,
    A,
    B,
    Birth,
    Delete,
    Drop,
    Expire,
    Operation,
    Read,
    Rebalance,
    Report,
    Save,
)
from tests.exploration.world import Kind


def _group(home: str) -> str:
    """A consumer group whose offsets are in this Raft group when there are both."""
    both = first_layout([A, B])
    return next(name for name in (f"g{number}" for number in count()) if both.home(pack_names(CLUSTER, "default", name)) == home)


# Of a consumer group that moves when Raft group B is added or taken away: two shards; of one that stays in A: one.
MOVES = _group(B)
STAYS = _group(A)
M0, M1, S0 = OffsetKey("default", MOVES, "0"), OffsetKey("default", MOVES, "1"), OffsetKey("default", STAYS, "0")
ALL = (M0, M1, S0)
EVERY = (*ALL, STORE)
NAMES = {M0: "m0", M1: "m1", S0: "s0", STORE: "store"}
PLACE = {**{key: KEYS.offset(CLUSTER, key) for key in ALL}, STORE: KEYS.store(CLUSTER, LOCAL_STORE.broker, LOCAL_STORE.path)}
WHERE = {where: key for key, where in PLACE.items()}
PACKED = {**{key: pack_names(CLUSTER, *key[:2]) for key in ALL}, STORE: pack_names(CLUSTER, LOCAL_STORE.broker)}

GROWS = ((A,), (A, B))  # Raft group B is added
SHRINKS = ((A, B), (A,))  # Raft group B is taken away
STORED = 3  # the offset of each key at first
STORED_AT_MS = 1_000
SAVED_AT_MS = 900_000

FAULTS = frozenset({Kind.LOSE, Kind.AGAIN, Kind.KILL})


class Scope(NamedTuple):
    """`metas`: the calls at each Meta Service, which is open before anything happens. `rebalances`: how many processes do it.

    `change`: the Raft groups before and after. `faults`: how many, of `kinds`. `page`: keys of a page of the rebalance.
    """

    name: str
    text: str
    metas: tuple[tuple[Operation, ...], ...]
    rebalances: int = 1
    change: tuple[tuple[str, ...], tuple[str, ...]] = GROWS
    faults: int = 0
    kinds: frozenset[Kind] = FAULTS
    page: int = 2_000
    silent: tuple[str, ...] = ()
    stored: tuple[OffsetKey, ...] = ALL
    late_start: bool = False  # the last Meta Service starts in the middle of everything

    @property
    def births(self) -> tuple[Birth, ...]:
        """The processes: the Meta Services come first."""
        metas = [Birth(f"meta-{number}", program) for number, program in enumerate(self.metas, 1)]
        moves = [Birth(f"rebalance-{number}", (Rebalance(self.change[1]),)) for number in range(1, self.rebalances + 1)]
        return (*metas, *moves)

    def is_move(self, slot: int) -> bool:
        """Whether a process is a rebalance."""
        return slot >= len(self.metas)

    @property
    def operations(self) -> list[Operation]:
        """All calls of clients."""
        return [operation for program in self.metas for operation in program]

    @property
    def revisions(self) -> bool:
        """Whether revisions are compared: by an expiry, and by the removal of tombstones."""
        return any(isinstance(operation, Expire | Drop) for operation in self.operations)


def stored_record() -> OffsetRecord:
    """What is stored at first under each key."""
    return OffsetRecord(FIRST_EPOCH, STORED, committed_at_ms=STORED_AT_MS)


def save(offset: int, *keys: OffsetKey) -> Save:
    """Of the same offset under some keys."""
    return Save(tuple((key, OffsetRecord(FIRST_EPOCH, offset, committed_at_ms=SAVED_AT_MS + offset)) for key in keys))


def read(*keys: OffsetKey) -> Read:
    """Of some keys."""
    return Read(keys)


def values_of(operations: Iterable[Operation]) -> dict[OffsetKey, set[bytes]]:
    """What may ever stand under a key, but for tombstones."""
    found: dict[OffsetKey, set[bytes]] = {key: {encode_value(stored_record())} for key in ALL}
    found[STORE] = {encode_value(report_record(STORED))}
    for operation in operations:
        if isinstance(operation, Save):
            for key, record in operation.records:
                found[key].add(encode_value(record))
        elif isinstance(operation, Report):
            found[STORE].add(encode_value(report_record(operation.seq)))
    return found


def report_record(seq: int) -> OffsetRecord:
    """A report up to this write, as the properties see it."""
    return OffsetRecord(FIRST_EPOCH, seq)


def value_of(key: OffsetKey, stored: bytes) -> bytes:
    """The value of an offset. Of a report as if it were one: its time decides nothing."""
    return (
        encode_value(report_record(decode_report(LOCAL_STORE, PLACE[key], stored).store.flushed_seq)) if key == STORE else stored
    )


def told(operation: Operation) -> str:
    """An operation, for a person."""
    if isinstance(operation, Save):
        return "save " + ", ".join(f"{NAMES[key]}={record.offset}" for key, record in operation.records)
    if isinstance(operation, Read):
        return "read " + ", ".join(NAMES[key] for key in operation.keys)
    if isinstance(operation, Delete):
        return f"delete {NAMES[operation.key]}"
    if isinstance(operation, Expire):
        return f"expire {operation.key.group}"
    if isinstance(operation, Drop | Report):
        return "remove old tombstones" if isinstance(operation, Drop) else f"report the store up to {operation.seq}"
    return f"rebalance to {', '.join(operation.groups)}"
