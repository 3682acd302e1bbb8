"""What decides in fewer steps than the rules of the laws, and cannot run on symbols, decides as they do.

At boundaries, and for random values that often differ by one or not at all.
"""

from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from random import Random

import pytest

from adapter.metaservice.bulk import Merge
from adapter.metaservice.engine import decide_save
from adapter.metaservice.etcd.keys import Keys, encode_value
from adapter.metaservice.etcd.txn_batcher import Item
from adapter.model.codec import encode_record
from adapter.model.records import (
    EPOCH_LIMIT,
    EPOCH_MAX,
    HOLD_MS,
    U64_MAX,
    CommitMode,
    OffsetRecord,
    SaveEntry,
    Status,
    decide,
    is_held,
    next_era,
)
from adapter.rpc import etcd_pb
from adapter.sidecar.ledger.operations import Columns, Commit
from adapter.testing.fake_meta import FakeMeta
from tests.etcd_rules import Contents, Row, transact
from tests.unit.helpers import core_over, key
from tests.unit.sidecar.engine.fast_requests import request
from tests.unit.sidecar.engine.fast_store import Store

EPOCHS = (
    0,
    1,
    2,
    2**32 - 1,
    2**32,
    2**32 + 1,
    2**33,
    EPOCH_LIMIT,
    EPOCH_LIMIT + 1,
    next_era(EPOCH_LIMIT),
    EPOCH_MAX - 1,
    EPOCH_MAX,
)
OFFSETS, TIMES = (0, 2**63, U64_MAX), (0, HOLD_MS, HOLD_MS + 1, U64_MAX)
EDGES = [OffsetRecord(*fields) for fields in product(EPOCHS, OFFSETS, (True, False), TIMES)]

Pair = tuple[OffsetRecord, OffsetRecord | None]


def random_pairs(count: int, seed: int) -> Iterator[Pair]:
    """What is offered, and what stands: None for an absent key, else with a known epoch."""
    rng = Random(seed)

    def near(number: int, edges: tuple[int, ...], most: int) -> int:
        drawn = (number, number + 1, number - 1, rng.choice(edges), rng.getrandbits(63))
        return min(max(rng.choice(drawn), 0), most)

    def beside(found: OffsetRecord) -> OffsetRecord:
        return OffsetRecord(
            near(found.epoch, EPOCHS, EPOCH_MAX),
            near(found.offset, OFFSETS, U64_MAX),
            rng.random() < 0.6,
            near(found.committed_at_ms, TIMES, U64_MAX),
            rng.choice(("", "m")),
        )

    for _ in range(count):
        standing = beside(rng.choice(EDGES))
        yield beside(standing), standing if standing.epoch else None


def all_edges() -> Iterator[Pair]:
    """Each of them over each other, and over an absent key."""
    yield from product(EDGES, [None, *(found for found in EDGES if found.epoch)])


def test_a_bulk_merge_decides_as_a_save() -> None:
    """`Merge` compares the bytes of packed records: all pairs of edges, 100,000 random ones."""
    for pairs in ([*all_edges()], [*random_pairs(100_000, 1)]):
        keys = [b"%d" % at for at in range(len(pairs))]
        merge = Merge(collect_differing=True)
        packed = [(encode_record(offered), None if standing is None else encode_record(standing)) for offered, standing in pairs]
        written = merge.changes(keys, [offered for offered, _ in packed], [standing for _, standing in packed])
        told = {found.at: found.status for found in merge.differing}
        for at, ((offered, standing), name) in enumerate(zip(pairs, keys, strict=True)):
            wanted = decide_save(SaveEntry(key(), offered), standing)
            changed = wanted.standing is not None and wanted.standing != standing
            assert written.get(name) == (encode_record(wanted.standing) if changed and wanted.standing else None), pairs[at]
            assert told.get(at, Status.APPLIED) is wanted.status, pairs[at]


def test_what_etcd_compares_is_decided_as_a_save() -> None:
    """A transaction that puts what is greater, and asks for the rest: all pairs of edges, 20,000 random ones."""
    keys = Keys("p/")
    where = keys.offset("c", key())
    for offered, standing in chain(all_edges(), random_pairs(20_000, 2)):
        contents = Contents({} if standing is None else {where: Row(encode_value(standing), 1, 1, 1)})
        item = Item(SaveEntry(key(), offered), where)
        while item.outcome is None:
            txn = etcd_pb.TxnRequest()
            item.add_to(txn, keys)
            contents, reply = transact(contents, txn)
            item.apply(reply.responses[0].response_txn)
        wanted = decide_save(SaveEntry(key(), offered), standing)
        assert item.outcome == wanted, (offered, standing)
        row = contents.rows.get(where)
        assert (row and row.value) == (wanted.standing and encode_value(wanted.standing)), (offered, standing)


@pytest.mark.parametrize("mode", list(CommitMode))
def test_what_the_fast_path_takes_it_decides_as_a_commit(mode: CommitMode) -> None:
    """20,000 random pairs, whatever a hold would be."""
    pairs = [(offered, standing) for offered, standing in random_pairs(20_000, 3) if standing]
    store = Store()
    store.store.write({key(f"{at}"): standing for at, (_, standing) in enumerate(pairs)})
    taken = 0
    for at, (offered, standing) in enumerate(pairs):
        commit = OffsetRecord(offered.epoch, offered.offset, committed_at_ms=offered.committed_at_ms)
        sent = request(f"{at}", mode.value, offset=commit.offset, epoch=commit.epoch)
        if store.commit([sent], now_ms=commit.committed_at_ms) == [1]:
            taken += 1
            for holds in (True, False):
                assert store.store.get(key(f"{at}")) == decide(commit, standing, mode, holds=holds), (commit, standing)
    assert taken > len(pairs) / 20


async def test_columns_go_forward_as_commits_do(tmp_path: Path) -> None:
    """20,000 random pairs. Held records, and those of the largest epoch, are left to the rules."""
    drawn = random_pairs(20_000, 4)
    pairs = [(offered, found) for offered, found in drawn if not found or not (is_held(found.epoch) or found.epoch == EPOCH_MAX)]
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        core.ledger.store.write({key(f"{at}"): standing for at, (_, standing) in enumerate(pairs) if standing})
        for at, (offered, standing) in enumerate(pairs):
            column = Columns(key().group_key, [f"{at}"], [offered.offset], (), offered.committed_at_ms)
            await core.ledger.submit(Commit((), CommitMode.INCREASE_ONLY, columns=[column]))
            commit = OffsetRecord(0, offered.offset, committed_at_ms=offered.committed_at_ms)
            wanted = decide(commit, standing, CommitMode.INCREASE_ONLY) if standing else commit._replace(epoch=1)
            assert core.ledger.store.get(key(f"{at}")) == wanted, (commit, standing)
