"""Flushes in packed form: split into chunks, answered by rows, and always with the result of a save of single entries."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import MetaUnavailableError
from adapter.meta import packed
from adapter.meta.packed import Chunk, Outcomes, PlainRows, SaveLimits, chunks, merge_outcomes, merge_request, news
from adapter.meta.wire import outcomes_of, save_outcome, save_request
from adapter.metaservice import offset_service
from adapter.metaservice.config import LimitsSection
from adapter.metaservice.engine import Columns, Engine
from adapter.metaservice.limits import Limits
from adapter.metaservice.metrics import MetaMetrics
from adapter.metaservice.offset_service import MetaService
from adapter.model.codec import encode_key, encode_record, pack_names
from adapter.model.records import (
    EPOCH_MAX,
    GroupKey,
    Held,
    OffsetKey,
    OffsetRecord,
    Run,
    SaveEntry,
    SaveOutcome,
    Status,
    StoreReport,
    as_first,
)
from adapter.rpc import meta_pb
from adapter.runtime.clocks import wall_ms
from adapter.runtime.slices import SLICE
from adapter.sidecar.journal.notes import Flushed
from adapter.sidecar.journal.rows import rows_of
from adapter.testing.fake_meta import FakeMeta
from tests.embedded_engine import opened as rocksdb
from tests.model.engine import MemoryEngine
from tests.unit.helpers import commit, commit_of, core_over, key, record, send, tombstone

ROUNDS = 150
APPLIED, SUPERSEDED, INVALID, UNAVAILABLE = Status.APPLIED, Status.SUPERSEDED, Status.INVALID, Status.UNAVAILABLE
LONG = "m" * 5_000  # over what metadata may have
WHY = "raft-2 does not answer"


def chunk_of(entries: Sequence[tuple[OffsetKey, OffsetRecord]]) -> Chunk:
    """Records as a flush sends them, with write counters."""
    return Chunk([Run(where.group_key, [where.shard], [(found, 7, encode_key(where))]) for where, found in entries])


def service_over(engine: Engine) -> MetaService:
    """The gRPC service, called directly."""
    metrics = MetaMetrics()
    return MetaService(engine, Limits(LimitsSection(), metrics), metrics)


class PackedMeta(FakeMeta):
    """Saves chunks through the service into an engine, as the client does. `before` runs once a request has been made."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine
        self.service = service_over(engine)
        self.before: Any = None
        self.answers: list[meta_pb.MergeOffsetDataReply] = []

    async def save(self, entries: Sequence[SaveEntry]) -> Sequence[SaveOutcome]:  # type: ignore[override]
        """Save entries, those of a chunk in packed form."""
        assert isinstance(entries, Chunk)
        self._check()
        request = await merge_request("c", entries)
        if self.before:
            await self.before()
        nothing: Any = None
        self.answers.append(await self.service.MergeOffsetData(request, nothing))
        return await merge_outcomes(entries, self.answers[-1])

    async def standing(self, *keys: OffsetKey) -> dict[OffsetKey, OffsetRecord]:
        """What is stored."""
        return dict(await self.engine.get("c", keys))


@asynccontextmanager
async def packed_meta(directory: Path) -> AsyncIterator[PackedMeta]:
    """A PackedMeta over the embedded engine."""
    async with rocksdb(directory) as engine:
        yield PackedMeta(engine)


def timed(offset: int, epoch: int = 1) -> OffsetRecord:
    """A record with a commit time."""
    return record(offset, epoch, committed_at_ms=1)


def some_record(rng: Random, epochs: Sequence[int]) -> OffsetRecord:
    """Records with few values of each field, so that they collide."""
    return OffsetRecord(
        rng.choice(epochs),
        rng.choice((0, 2, 3)),
        live=rng.random() < 0.7,
        committed_at_ms=rng.choice((1, 2)),
        metadata=rng.choice(("", "", "m", "n")),
        topic=rng.choice(("", "", "t")),
        partition=rng.choice((0, 0, 1)),
    )


async def test_a_packed_save_ends_as_a_save_of_its_entries(tmp_path: Path) -> None:
    """Rewinds, tombstones, labels, unknown epochs, bad entries: the same outcomes and stored records (2)."""
    rng = Random(15)
    nothing: Any = None
    async with rocksdb(tmp_path) as engine:
        meta = service_over(engine)
        for turn in range(ROUNDS):
            keys = [key(f"s{at}", f"g{at // 5}") for at in range(15)]
            before = [SaveEntry(where, some_record(rng, (1, 2, 2**32))) for where in keys if rng.random() < 0.7]
            for cluster in (f"one-{turn}", f"packed-{turn}"):
                await engine.save(cluster, before)
            entries = [SaveEntry(where, some_record(rng, (0, 0, 1, 2, 2**32, 2**33))) for where in keys]
            bad = rng.randrange(len(entries))
            broken = rng.choice(({"metadata": LONG}, {"epoch": EPOCH_MAX + 1}, {"topic": "\n"}))
            entries[bad] = entries[bad]._replace(record=entries[bad].record._replace(**broken))
            rows = await meta.SaveOffsetData(await save_request(f"one-{turn}", entries), nothing)
            wanted = list(map(save_outcome, entries, rows.results))
            chunk = chunk_of([entry[:2] for entry in entries])
            answer = await meta.MergeOffsetData(await merge_request(f"packed-{turn}", chunk), nothing)
            found = list(await merge_outcomes(chunk, answer))
            assert [outcome[:2] for outcome in found] == [outcome[:2] for outcome in wanted]
            assert found[bad].status is INVALID
            assert dict(await engine.get(f"packed-{turn}", keys)) == dict(await engine.get(f"one-{turn}", keys))


async def test_only_what_stands_otherwise_has_a_row() -> None:
    """An entry without a row is stored as it was sent, an unknown epoch as the first one."""
    engine = MemoryEngine(wall_ms)
    meta = PackedMeta(engine)
    standing = {"b": record(9), "d": record(3, 4), "e": record(5, 1)}
    await engine.save("c", [SaveEntry(key(shard), found) for shard, found in standing.items()])
    sent = {"a": timed(5), "b": timed(5), "c": timed(5, 0), "d": timed(5, 0), "e": timed(6, 0), "f": timed(1, 2**63)}
    outcomes = await meta.save(chunk_of([(key(shard), found) for shard, found in sent.items()]))
    assert [(row.index, row.status) for row in meta.answers[0].standing] == [(1, 2), (3, 1)]
    assert [row.index for row in meta.answers[0].rejected] == [5]
    assert list(outcomes)[:5] == [
        SaveOutcome(APPLIED, timed(5)),
        SaveOutcome(SUPERSEDED, record(9)),
        SaveOutcome(APPLIED, timed(5, 1)),
        SaveOutcome(APPLIED, timed(5, 4)),
        SaveOutcome(APPLIED, timed(6, 1)),
    ]


async def test_places_are_those_of_the_request_also_behind_refused_entries() -> None:
    """Otherwise the answer to one key would mark another as clean (3)."""
    engine = MemoryEngine(wall_ms)
    await engine.save("c", [SaveEntry(key(shard), record(9)) for shard in "bd"])
    bad = record(5, metadata=LONG)
    sent = [(key("a"), bad), (key("b"), record(5)), (key("c"), bad), (key("d"), record(10)), (key("e"), bad)]
    outcomes = await PackedMeta(engine).save(chunk_of(sent))
    assert [outcome.status for outcome in outcomes] == [INVALID, SUPERSEDED, INVALID, APPLIED, INVALID]


class PartedEngine(MemoryEngine):
    """An engine of which a part does not answer: the groups in `gone`. If all are gone, every call fails."""

    gone: frozenset[str] = frozenset()

    async def save(
        self, cluster: str, entries: Sequence[SaveEntry], reported: StoreReport | None = None, *, tell: bool = False
    ) -> list[SaveOutcome]:
        """Save entries; those of groups in `gone` are unavailable."""
        there = [entry for entry in entries if entry.key.group not in self.gone]
        if entries and not there:
            raise MetaUnavailableError(WHY)
        saved = iter(await super().save(cluster, there, reported, tell=tell))
        return [SaveOutcome(UNAVAILABLE, None, WHY) if entry.key.group in self.gone else next(saved) for entry in entries]


async def test_a_part_that_does_not_answer_is_told_by_rows(tmp_path: Path) -> None:
    """Its groups are set aside, the others become clean (3, 4)."""
    engine = PartedEngine(wall_ms)
    engine.gone = frozenset({"gone"})
    meta = PackedMeta(engine)
    up, gone = key("s", "up"), key("s", "gone")
    async with core_over(tmp_path, meta, knows=["up", "gone"]) as core:
        await send(core, commit_of({up: 5, gone: 5}))
        assert await core.flusher.flush_once() == 1
        assert (core.ledger.dirty.keys(), core.ledger.dirty.aside) == ({gone}, 1)
        assert core.flusher.last_error == f"default/gone/s: UNAVAILABLE {WHY}"
        engine.gone = frozenset()
        assert await core.flusher.flush_all() == 1
    assert [found.offset for found in (await meta.standing(up, gone)).values()] == [5, 5]


async def test_what_an_answer_has_no_room_for_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if many small entries meet large records, the reply stays below the message limit."""
    engine = MemoryEngine(wall_ms)
    await engine.save("c", [SaveEntry(key(shard), record(9, metadata="m" * 100)) for shard in "abcd"])
    monkeypatch.setattr(offset_service, "ANSWER_BYTES", 300)
    outcomes = await PackedMeta(engine).save(chunk_of([(key(shard), record(5)) for shard in "abcde"]))
    assert [outcome.status for outcome in outcomes] == [SUPERSEDED, SUPERSEDED, UNAVAILABLE, UNAVAILABLE, APPLIED]


async def test_so_is_what_the_answer_to_a_save_of_single_entries_has_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 entries below records with the longest metadata would exceed the message limit, with each retry again."""
    engine = MemoryEngine(wall_ms)
    await engine.save("c", [SaveEntry(key(shard), record(9, metadata="m" * 100)) for shard in "abcd"])
    monkeypatch.setattr(offset_service, "ANSWER_BYTES", 300)
    entries = [SaveEntry(key(shard), record(5)) for shard in "abcde"]
    nothing: Any = None
    reply = await service_over(engine).SaveOffsetData(await save_request("c", entries), nothing)
    outcomes = await outcomes_of(entries, reply)
    assert [outcome.status for outcome in outcomes] == [SUPERSEDED, SUPERSEDED, UNAVAILABLE, UNAVAILABLE, APPLIED]
    assert outcomes[2].message == offset_service.NO_ROOM


GROUPS = st.dictionaries(st.sampled_from("ghijkl"), st.integers(1, 9), max_size=6)
SAVE_LIMITS = st.builds(SaveLimits, st.integers(1, 9), st.integers(1, 3), st.integers(0, 256))


@given(GROUPS, SAVE_LIMITS, st.integers(200, 2_000))
def test_chunks_hold_everything_once_within_all_bounds(groups: Mapping[str, int], limits: SaveLimits, max_bytes: int) -> None:
    """Also if acknowledged entries leave the batch while it is being split (4, 5)."""
    batch: dict[GroupKey, dict[str, Held]] = {
        GroupKey("n", group): {f"s{at}": (record(at), at + 1, encode_key(key(f"s{at}", group, "n"))) for at in range(size)}
        for group, size in groups.items()
    }
    wanted = {OffsetKey(*group, shard): held[0] for group, shards in batch.items() for shard, held in shards.items()}

    async def cut() -> list[list[SaveEntry]]:
        found = []
        async for chunk in chunks(batch, max_bytes, lambda: limits):
            found.append(list(chunk))
            for group, shards, _ in chunk.runs:
                for shard in shards:
                    del batch[group][shard]
                if not batch[group]:
                    del batch[group]
        return found

    found = asyncio.run(cut())
    entries = [entry for chunk in found for entry in chunk]
    assert [entry.key for entry in entries] == list(wanted)
    assert {entry.key: entry.record for entry in entries} == wanted
    assert all(0 < len(chunk) <= limits.offsets for chunk in found)
    assert all(len({entry.key.group for entry in chunk}) <= limits.groups for chunk in found)
    sizes = [
        sum(packed.entry_bytes(entry.record, encode_key(entry.key)) + limits.cluster_bytes for entry in chunk) for chunk in found
    ]
    assert all(size <= max_bytes or len(chunk) == 1 for size, chunk in zip(sizes, found, strict=True))


RUNS = st.lists(st.integers(0, 5), max_size=6)


@given(RUNS, st.sets(st.integers(0, 30)), st.integers(1, 7))
def test_a_chunk_and_its_outcomes_are_sequences_that_are_made_when_asked(sizes: list[int], places: set[int], count: int) -> None:
    """Indexing, slicing and iterating give the same values; `without` gives the rest of a chunk."""
    entries = [
        SaveEntry(key(f"s{at}", f"g{number}"), record(at, at % 2)) for number, size in enumerate(sizes) for at in range(size)
    ]
    runs = [
        Run(
            GroupKey("default", f"g{number}"),
            [f"s{at}" for at in range(size)],
            [(record(at, at % 2), 1, b"") for at in range(size)],
        )
        for number, size in enumerate(sizes)
    ]
    chunk = Chunk(runs)
    others = {at: SaveOutcome(INVALID, None, str(at)) for at in places if at < len(entries)}
    outcomes = Outcomes(chunk, others)
    wanted = [others.get(at, SaveOutcome(APPLIED, as_first(entry.record))) for at, entry in enumerate(entries)]
    for lazy, whole in ((chunk, entries), (outcomes, wanted)):
        assert list(lazy) == whole
        assert [lazy[at] for at in range(len(whole))] == whole
        assert lazy[1:4] == whole[1:4]
        assert len(lazy) == len(whole)
    pieces = list(chunk.without(others, count))
    left = [entry.key for runs in pieces for entry in Chunk(runs)]
    assert left == [entry.key for at, entry in enumerate(entries) if at not in others]
    for some in pieces:
        assert len({run.group for run in some}) == len(some)


async def test_outcomes_of_single_saves_are_told_apart_in_the_same_way() -> None:
    """A server without epochs answers entry by entry; the entries not stored as sent are `differing`."""
    entries = [SaveEntry(key(shard), record(5, epoch)) for shard, epoch in zip("abcd", (1, 0, 0, 1), strict=True)]
    plain = [
        SaveOutcome(APPLIED, record(5)),
        SaveOutcome(APPLIED, record(5, 1)),
        SaveOutcome(APPLIED, record(5, 4)),
        SaveOutcome(SUPERSEDED, record(5)),
    ]
    outcomes = await Outcomes.of(entries, plain)
    assert outcomes.differing == {2: plain[2], 3: plain[3]}
    with pytest.raises(ValueError, match="shorter"):
        await Outcomes.of(entries, plain[:3])


async def test_unknown_epochs_become_known_here_by_one_flush(tmp_path: Path) -> None:
    """An offset alone, one with metadata, and one under a raised epoch; nothing is left to send (2, 3)."""
    async with packed_meta(tmp_path) as meta, core_over(tmp_path, meta) as core:
        plain, labelled, raised = key("plain"), key("labelled"), key("raised")
        await meta.engine.save("c", [SaveEntry(raised, record(1, 4))])
        await core.ledger.submit(commit_of({plain: 5, raised: 5}, committed_at_ms=7))
        await core.ledger.submit(commit_of({labelled: 5}, committed_at_ms=7, metadata="m"))
        assert await core.flusher.flush_once() == 3
        wanted = {
            plain: record(5, 1, committed_at_ms=7),
            labelled: record(5, 1, committed_at_ms=7, metadata="m"),
            raised: record(5, 4, committed_at_ms=7),
        }
        assert await meta.standing(plain, labelled, raised) == wanted
        assert {where: core.ledger.store.get(where) for where in wanted} == wanted
        assert (len(core.ledger.dirty), await core.flusher.flush_once()) == (0, 0)


@pytest.mark.parametrize("epoch", [0, 1])
async def test_a_commit_during_a_packed_flush_stays_dirty(tmp_path: Path, epoch: int) -> None:
    """Whether the flush learns its epoch or it was known: the newer commit goes with the next flush (3)."""
    async with packed_meta(tmp_path) as meta, core_over(tmp_path, meta, knows=["g"] if epoch else []) as core:
        await core.ledger.submit(commit_of({key(): 5, key("other"): 5}))

        async def more() -> None:
            meta.before = None
            await core.ledger.submit(commit_of({key(): 6}))

        meta.before = more
        assert await core.flusher.flush_once() == 2
        assert core.ledger.dirty.keys() == {key()}
        assert core.ledger.store.get(key()) == record(6)
        assert (await meta.standing(key()))[key()].offset == 5
        assert await core.flusher.flush_once() == 1
        assert (await meta.standing(key()))[key()].offset == 6
        assert len(core.ledger.dirty) == 0


async def test_a_delete_and_a_rewind_go_through_a_packed_flush(tmp_path: Path) -> None:
    """A stored tombstone is adopted, a local rewind is stored (2, 7)."""
    async with packed_meta(tmp_path) as meta, core_over(tmp_path, meta, knows=["g"]) as core:
        await commit(core, 9, "rewound")
        await commit(core, 9, "deleted")
        await core.flusher.flush_once()
        await meta.engine.delete("c", "default", "g", ["deleted"])
        await commit(core, 3, "rewound", overwrite=True)
        await commit(core, 10, "deleted")
        assert await core.flusher.flush_once() == 2
        stands = await meta.standing(key("rewound"), key("deleted"))
        assert stands[key("rewound")].position == (2, 3)
        assert not stands[key("deleted")].live
        assert core.ledger.store.get(key("deleted")) == stands[key("deleted")]
        assert len(core.ledger.dirty) == 0


async def test_the_journal_has_what_stands_after_a_packed_flush() -> None:
    """One row for each stored record, none for a refused one, whenever the journal's thread runs."""
    sent = {key("a"): record(5), key("b"): record(5, 0), key("c"): record(5), key("d"): tombstone(2)}
    chunk = chunk_of(list(sent.items()))
    outcomes = Outcomes(chunk, {0: SaveOutcome(SUPERSEDED, record(9)), 2: SaveOutcome(INVALID, None, "no")})
    rows = list(rows_of(Flushed(1, chunk, outcomes)))
    assert [(where, stands) for _, _, where, stands, _ in rows] == [
        (key("a"), record(9)),
        (key("b"), record(5, 1)),
        (key("d"), tombstone(2)),
    ]


async def test_a_packed_entry_that_says_no_time_stands_with_the_time_of_arrival() -> None:
    """As in a save; the reply has no row for it."""
    engine = MemoryEngine(wall_ms)
    meta = PackedMeta(engine)
    outcomes = await meta.save(chunk_of([(key(), record(5))]))
    assert list(outcomes) == [SaveOutcome(APPLIED, record(5))]
    assert (await meta.standing(key()))[key()].committed_at_ms > 0


def columns(*rows: tuple[bytes, bytes]) -> meta_pb.PackedRows:
    """Rows as a Meta Service sends them."""
    page = Columns()
    page.add([pack_names("c") + where for where, _ in rows], [record for _, record in rows])
    return page.packed()


async def test_of_columns_only_what_is_not_known_becomes_a_row() -> None:
    """A topic that is the name of the shard is none, as in a row of messages."""
    first, second = OffsetKey("n", "g", "a"), OffsetKey("n", "g", "b")
    record = OffsetRecord(1, 7, topic="b")
    page = columns((encode_key(first), encode_record(record)), (encode_key(second), encode_record(record)))
    found = await news(page, "c", {GroupKey("n", "g")}, lambda keys, _: [key == encode_key(first) for key in keys])
    assert found == [(second, record._replace(topic=""))]


NO_ROWS = pytest.mark.parametrize(
    "page",
    [
        columns((pack_names("n", "other", "a"), encode_record(OffsetRecord(1, 7)))),
        columns((pack_names("n", "g"), encode_record(OffsetRecord(1, 7)))),
        columns((pack_names("n", "g", "a"), b"short")),
        columns((pack_names("n", "g", "a"), encode_record(OffsetRecord(2**63, 7)))),
        columns((pack_names("n", "g", "a")[:-1], encode_record(OffsetRecord(1, 7)))),
        meta_pb.PackedRows(keys=b"abc", key_sizes=b"\1\0", records=b"a", record_sizes=b"\1\0"),
        meta_pb.PackedRows(keys=b"abc", key_sizes=b"\3"),
        meta_pb.PackedRows(keys=b"abc", key_sizes=b"\3\0"),
    ],
)


@NO_ROWS
async def test_columns_that_are_no_rows_are_an_answer_that_cannot_be_right(page: meta_pb.PackedRows) -> None:
    """Of a group that was not asked for, without a shard, cut, of an epoch that nobody stores, of other sizes."""
    with pytest.raises(MetaUnavailableError):
        await news(page, "c", {GroupKey("n", "g")}, lambda keys, _: [False] * len(keys))


@NO_ROWS
async def test_columns_that_are_no_rows_are_not_taken(page: meta_pb.PackedRows) -> None:
    """The same of rows that are taken as they are."""
    with pytest.raises(MetaUnavailableError):
        await news(page, "c", {GroupKey("n", "g")}, PlainRows({GroupKey("n", "g")}))


@pytest.mark.parametrize("where", [b"", b"\2b", b"\1b\1c", b"\0", b"\1\n", b"\1\xff"])
async def test_every_key_that_is_taken_is_one(where: bytes) -> None:
    """Also behind one of the same group: without a shard, cut, too long, empty, with a control character, no UTF-8."""
    rows = [
        (pack_names("n", "g", "a"), encode_record(OffsetRecord(1, 7))),
        (pack_names("n", "g") + where, encode_record(OffsetRecord(1, 7))),
    ]
    with pytest.raises(MetaUnavailableError):
        await news(columns(*rows), "c", {GroupKey("n", "g")}, PlainRows({GroupKey("n", "g")}))


async def test_only_what_is_only_an_offset_is_taken_as_it_is() -> None:
    """The rest becomes objects; each row is in one of both."""
    first, second = OffsetKey("n", "g", "a"), OffsetKey("n", "g", "b")
    rows = (
        (encode_key(first), encode_record(OffsetRecord(1, 7))),
        (encode_key(second), encode_record(OffsetRecord(1, 7, topic="t"))),
    )
    taken = PlainRows({GroupKey("n", "g")})
    assert await news(columns(*rows), "c", {GroupKey("n", "g")}, taken) == [(second, OffsetRecord(1, 7, topic="t"))]
    assert taken.rows == [rows[0]]


async def test_others_have_turns_while_what_differs_becomes_objects() -> None:
    """A recovery of 10,000 keys that another adapter has moved does not hold up commits (0.1 s)."""
    slices = 6
    rows = [(encode_key(key(f"s{at:05}")), encode_record(record(at))) for at in range(slices * SLICE)]
    columns = Columns()
    columns.add([where for where, _ in rows], [encode_record(record(9_999))] * len(rows))
    columns_of = columns.packed()
    reply = meta_pb.BatchGetOffsetDataReply(compared=len(rows), differing=range(len(rows)), packed=columns_of)
    turns = 0
    made = asyncio.ensure_future(packed.differing_of(reply, rows))
    while not made.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(await made) == len(rows)
    assert turns > slices
