"""The bulk methods of every engine: a merge equals a save, a scan equals a listing, and the parts of a split cover everything."""

import asyncio
from itertools import pairwise, product

from adapter.metaservice.engine import Differing, Engine, MergeCounts, Parts, RawPage, differing
from adapter.metaservice.scan_replies import values
from adapter.model.codec import decode_record, encode_key, encode_record, pack_names, unpack_names
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, Status
from tests.contract.cases import CASES, CLUSTER, REQUESTS, save
from tests.contract.engines import TRICKY, Opened, everything, standing
from tests.unit.helpers import key, record, tombstone

A, B, C = key("a"), key("b"), key("c")
Rows = list[tuple[OffsetKey, OffsetRecord]]
NONE_EXPECTED = [case for case in CASES if case.expected_offset is None]
SCANNED: list[tuple[str, ...]] = [(), ("default",), ("g",), ("default", "g"), ("default", "nobody")]
NONE_EXPECTED_TWICE = [case for case in REQUESTS if all(expected is None for _, expected in case.entries)]


async def merge(engine: Engine, *entries: tuple[OffsetKey, OffsetRecord], cluster: str = CLUSTER) -> MergeCounts:
    """Merge records in one request."""
    return await engine.merge(
        cluster, [encode_key(where) for where, _ in entries], [encode_record(found) for _, found in entries]
    )


def rows_of(page: RawPage) -> Rows:
    """The rows of a page."""
    keys = values(page.packed.keys, page.packed.key_sizes)
    records = values(page.packed.records, page.packed.record_sizes)
    return [(OffsetKey(*unpack_names(where)[1:]), decode_record(found)) for where, found in zip(keys, records, strict=True)]


async def scanned(
    engine: Engine, *names: str, size: int = 1000, after: bytes = b"", until: bytes = b"", cluster: str = CLUSTER
) -> Rows:
    """All pages of a scan."""
    rows: Rows = []
    while True:
        page = await engine.scan_page(cluster, names, size, after, until)
        assert page.rows <= size
        rows += rows_of(page)
        after = page.after
        if not after:
            return rows


async def test_a_merge_ends_as_a_save_does(opened: Opened) -> None:
    """Same records and counts (2); other keys of the request are not affected."""
    async with opened() as engine:
        for case in NONE_EXPECTED:
            where, other = key("a", case.name), key("b", case.name)
            if case.before:
                await save(engine, (where, case.before))
            counts = await merge(engine, (other, record(1)), (where, case.offered))
            applied, superseded = case.status is Status.APPLIED, case.status is Status.SUPERSEDED
            assert counts[:2] == (1 + applied, superseded), case
            assert [at for at, _ in counts.rejected] == [1] * (case.status is Status.INVALID), case
            assert await standing(engine, where, other) == [case.after, record(1)], case
            assert sum((await merge(engine, (where, case.offered)))[:2]) == (case.status is not Status.INVALID), case
            assert await standing(engine, where) == [case.after], case


async def test_a_packed_save_tells_what_a_save_tells(opened: Opened) -> None:
    """For entries not stored as sent, with their index in a larger request (2)."""
    many = [(key(f"s{at:04}"), record(at + 1)) for at in range(600)]
    async with opened() as engine:
        await save(engine, (many[-1][0], record(9_999)))
        for case in NONE_EXPECTED:
            where = key("a", case.name)
            if case.before:
                await save(engine, (where, case.before))
            entries = [*many[:-1], (where, case.offered), many[-1]]
            found = await engine.save_packed(
                CLUSTER, [encode_key(name) for name, _ in entries], [encode_record(offered) for _, offered in entries]
            )
            told = differing([SaveEntry(where, case.offered)], [SaveOutcome(case.status, case.after)], first=599)
            last = Differing(600, Status.SUPERSEDED, encode_record(record(9_999)))
            assert [one._replace(message="") for one in found] == [*told, last], case
            assert await standing(engine, where) == [case.after], case


async def test_the_entries_of_a_merge_count_one_after_the_other(opened: Opened) -> None:
    """Each entry is decided against the result of those before it, also for the same key."""
    async with opened() as engine:
        for case in NONE_EXPECTED_TWICE:
            where = key("a", case.name)
            if case.before:
                await save(engine, (where, case.before))
            counts = await merge(engine, *((where, offered) for offered, _ in case.entries))
            applied = sum(outcome.status is Status.APPLIED for outcome in case.outcomes)
            assert counts == MergeCounts(applied, len(case.outcomes) - applied), case
            assert await standing(engine, where) == [case.after], case


async def test_a_long_merge_is_one_whole_and_can_be_repeated(opened: Opened) -> None:
    """The same key is in its first and last slice; a retry after a lost reply finds everything stored."""
    entries = [(A, record(1)), *((key(str(at)), record(at)) for at in range(1_200)), (A, record(2, 0)), (A, record(1))]
    wanted = {**dict(entries), A: record(2)}
    async with opened() as engine:
        assert await merge(engine, *entries) == MergeCounts(1_202, 1)
        assert dict(await everything(engine)) == wanted
        # Of the key that came several times only the largest stands now.
        assert await merge(engine, *entries) == MergeCounts(1_201, 2)
        assert dict(await everything(engine)) == wanted
    async with opened() as engine:
        assert dict(await everything(engine)) == wanted


async def test_an_empty_merge_does_nothing(opened: Opened) -> None:
    """It does not wait for a sync either."""
    async with opened() as engine:
        assert await merge(engine) == MergeCounts(0, 0)
        assert await everything(engine) == []


async def test_merges_saves_and_deletes_at_the_same_time_end_with_the_largest(opened: Opened) -> None:
    """No call decides on a record that another one is replacing (2, 7)."""
    async with opened() as engine:
        keys = [key(str(at)) for at in range(1_100)]
        await merge(engine, *((where, record(1)) for where in keys))
        await asyncio.gather(
            save(engine, *((where, record(30)) for where in keys)),
            merge(engine, *((where, record(40)) for where in keys)),
            merge(engine, *((where, record(20)) for where in reversed(keys))),
            *(save(engine, (where, record(25))) for where in keys[::100]),
        )
        assert await standing(engine, *keys) == [record(40)] * len(keys)
        await asyncio.gather(merge(engine, *((where, record(90)) for where in keys)), engine.delete(CLUSTER, "default", "g", []))
        assert {found.live for found in await standing(engine, *keys) if found} == {False}


async def test_a_merge_in_the_middle_of_a_long_save_is_not_undone(opened: Opened) -> None:
    """The save is written after all of it is decided, and must not lower what the merge stored meanwhile (2)."""
    keys = [key(str(at)) for at in range(1_200)]
    first = keys[:50]
    async with opened() as engine:
        for turn in range(16):
            offset = 10 * (turn + 1)
            saving = asyncio.create_task(save(engine, *((where, record(offset)) for where in keys)))
            for _ in range(4 * turn):  # each turn a little later in the save
                await asyncio.sleep(0)
            await merge(engine, *((where, record(offset + 5)) for where in first))
            await saving
            assert await standing(engine, *first) == [record(offset + 5)] * len(first)


async def test_a_merge_does_not_leave_its_cluster(opened: Opened) -> None:
    """The same key in another cluster is another key."""
    async with opened() as engine:
        await merge(engine, (A, record(5)))
        await merge(engine, (A, record(9)), cluster="other")
        assert await scanned(engine) == [(A, record(5))]
        assert await scanned(engine, cluster="other") == [(A, record(9))]
        assert await scanned(engine, cluster="clu") == []


async def filled(engine: Engine) -> None:
    """Several namespaces and groups, tombstones, and similar names."""
    names = [key(name, group, namespace) for name in TRICKY for group in ("g", "gg") for namespace in ("default", "g")]
    await merge(engine, *((where, record(at)) for at, where in enumerate(names)))
    await merge(engine, (key("dead"), tombstone(2)), (key("whole"), record(1, 2, metadata="m", topic="t", partition=4)))
    await merge(engine, (A, record(1)), cluster="other")


async def test_a_scan_and_a_snapshot_show_what_a_listing_shows(opened: Opened) -> None:
    """In the same order, with tombstones, for pages of any size, and nothing of other clusters."""
    async with opened() as engine:
        await filled(engine)
        for names in SCANNED:
            rows = await everything(engine, *names)
            assert rows == sorted(rows, key=lambda row: pack_names(CLUSTER, *row[0]))
            assert await snapshot(engine, *names) == rows, names
            for size in (1, 2, 7, 1000):
                assert await scanned(engine, *names, size=size) == rows, (names, size)


async def test_the_parts_of_a_split_are_all_of_the_listing(opened: Opened) -> None:
    """Each row is in one part; no part is empty unless there are no rows."""
    async with opened() as engine:
        await filled(engine)
        for names, parts in product(SCANNED, (1, 2, 3, 20, 1000)):
            rows = await everything(engine, *names)
            found = await engine.split(CLUSTER, names, parts)
            assert found.records == len(rows)
            assert len(found.tokens) == max(0, min(parts, len(rows)) - 1)
            read = [
                await scanned(engine, *names, size=size, after=begin, until=end)
                for (begin, end), size in zip(pairwise([b"", *found.tokens, b""]), [1, 2, 3, 1000] * parts, strict=False)
            ]
            assert [row for part in read for row in part] == rows, (names, parts)
            assert all(read) or not rows


async def test_a_scan_ends_with_its_last_key_without_an_empty_page(opened: Opened) -> None:
    """If the last key is the one to read up to, there is no further page."""
    async with opened() as engine:
        await merge(engine, (A, record(1)), (B, record(2)), (C, record(3)))
        until = pack_names(CLUSTER, *B)
        page = await engine.scan_page(CLUSTER, (), 2, b"", until)
        assert (rows_of(page), page.after) == ([(A, record(1)), (B, record(2))], b"")
        assert await scanned(engine, after=until, until=until) == []
        assert await scanned(engine, after=pack_names(CLUSTER, *C), until=until) == []


async def test_rows_that_come_between_two_pages_do_not_move_the_others(opened: Opened) -> None:
    """A page continues after the last key, even if that was removed."""
    async with opened() as engine:
        await merge(engine, (A, record(1)), (C, tombstone(1)), (key("d"), record(4)))
        page = await engine.scan_page(CLUSTER, (), 2, b"", b"")
        await merge(engine, (B, record(2)), (key("e"), record(5)))
        await engine.drop_tombstones(1)
        assert await scanned(engine, after=page.after) == [(key("d"), record(4)), (key("e"), record(5))]


async def test_an_empty_store_has_no_parts(opened: Opened) -> None:
    """Having nothing to read is no error."""
    async with opened() as engine:
        assert await engine.split(CLUSTER, (), 8) == Parts([], 0)
        assert await scanned(engine) == []


async def snapshot(engine: Engine, *names: str) -> Rows:
    """All rows of a snapshot."""
    return [row async for page in engine.snapshot(CLUSTER, names) for row in rows_of(page)]


async def test_a_snapshot_is_of_one_instant(opened: Opened) -> None:
    """What changes while it is read is not in it, however long it takes."""
    async with opened() as engine:
        keys = [key(f"{at:05}") for at in range(12_000)]
        await merge(engine, *((where, record(1)) for where in keys))
        pages = engine.snapshot(CLUSTER, ())
        found = [row[1] for row in rows_of(await anext(pages))]
        assert len(found) < len(keys)
        await merge(engine, (keys[0], record(2)), (keys[-1], record(2)), (key("a-new-one"), record(2)))
        await engine.delete(CLUSTER, "default", "g", [keys[-2].shard])
        found += [row[1] async for page in pages for row in rows_of(page)]
        assert found == [record(1)] * len(keys)
        assert len(await snapshot(engine)) == len(keys) + 1
