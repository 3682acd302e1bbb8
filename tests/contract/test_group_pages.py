"""Groups in pages, over every engine and the gRPC service of the Meta Service: complete, ordered, bounded, each row once."""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from adapter.errors import InvalidInputError, TooLargeError
from adapter.meta.packed import differing_of, known_request
from adapter.metaservice import group_reads, scan_replies
from adapter.metaservice.engine import Engine
from adapter.model.codec import encode_key, encode_record, pack_names
from adapter.model.names import METADATA_MAX_BYTES
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord, SaveEntry
from adapter.rpc import meta_pb
from adapter.runtime.durable import rocks
from tests.contract.cases import CLUSTER
from tests.contract.engines import TRICKY, Opened, whole_group
from tests.embedded_engine import opened as rocksdb
from tests.model.engine import MemoryEngine
from tests.unit.helpers import key, record

G = GroupKey("default", "g")
Request = meta_pb.BatchGetOffsetDataRequest
Reply = meta_pb.BatchGetOffsetDataReply
Asked = tuple[str, Sequence[str]]  # a group and its shards


async def fill(engine: Engine, shards: Sequence[str], group: str = "g", metadata: str = "") -> list[OffsetKey]:
    """Save a group; returns its keys in the order of the store."""
    keys = [key(shard, group) for shard in shards]
    await engine.save(CLUSTER, [SaveEntry(where, record(at, metadata=metadata)) for at, where in enumerate(keys)])
    return sorted(keys, key=encode_key)


def request(asked: Sequence[Asked], rows: int = 0, token: bytes = b"") -> Request:
    """A request for these groups."""
    groups = [Request.Group(namespace="default", group=group, shard_names=shards) for group, shards in asked]
    return Request(cluster_name=CLUSTER, groups=groups, page_size=rows, page_token=token)


async def all_pages(engine: Engine, asked: Sequence[Asked], rows: int) -> list[Reply]:
    """All pages, requested as the adapter does."""
    pages: list[Reply] = []
    left, token = list(asked), b""
    while left:
        page = await group_reads.batch(engine, CLUSTER, request(left, rows, token))
        assert 0 < len(page.groups) <= len(left)
        assert sum(len(group.offsets) for group in page.groups) <= rows
        pages.append(page)
        token = page.next_page_token
        left = left[len(page.groups) - bool(token) :]
    return pages


def rows_of(asked: Sequence[Asked], pages: Sequence[Reply]) -> list[OffsetKey]:
    """The keys of all rows, in the order of the pages."""
    keys = []
    at = 0
    for page in pages:
        for number, group in enumerate(page.groups):
            keys += [key(item.shard_name, asked[at + number][0]) for item in group.offsets]
        at += len(page.groups) - bool(page.next_page_token)
    return keys


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
async def test_pages_of_a_group_have_each_row_once_and_in_order(opened: Opened, size: int) -> None:
    """For any names and page sizes; rows of other groups are not included."""
    async with opened() as engine:
        for other in ("f", "gg", "g/a"):
            await fill(engine, ["s"], other)
        keys = await fill(engine, TRICKY)
        found: list[OffsetKey] = []
        after, more = "", True
        while more:
            page = await engine.group_page(CLUSTER, *G, size, 2**20, after)
            assert len(page.entries) <= size
            assert page.entries or not page.more
            found += [where for where, _ in page.entries]
            after, more = found[-1].shard, page.more
        assert found == keys
        assert [where for where, _ in await whole_group(engine, CLUSTER, *G)] == keys


async def test_a_page_of_a_group_ends_by_bytes_too(opened: Opened) -> None:
    """It has at least one row, and ends soon after the bound."""
    async with opened() as engine:
        keys = await fill(engine, [f"s{at:02}" for at in range(20)], metadata="m" * 4_000)
        first = await engine.group_page(CLUSTER, *G, 100, 1, "")
        assert ([where for where, _ in first.entries], first.more) == (keys[:1], True)
        some = await engine.group_page(CLUSTER, *G, 100, 20_000, keys[0].shard)
        assert 4 <= len(some.entries) <= 5
        assert some.more


ASKED: list[Asked] = [
    ("few", []),
    ("many", []),
    ("none", []),
    ("many", ["m3", "absent", "m1", "m3"]),
    ("few", ["f0"]),
    ("few", []),
    ("many", []),
    ("last", []),
]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 1000])
async def test_pages_of_groups_and_named_shards_are_complete(opened: Opened, rows: int) -> None:
    """A page continues where the former one ended, also within a group or a list of names."""
    async with opened() as engine:
        await fill(engine, [f"f{at}" for at in range(3)], "few")
        await fill(engine, [f"m{at}" for at in range(9)], "many")
        await fill(engine, ["l"], "last")
        pages = await all_pages(engine, ASKED, rows)
        found = rows_of(ASKED, pages)
        many, few = [key(f"m{at}", "many") for at in range(9)], [key(f"f{at}", "few") for at in range(3)]
        # What is named twice is answered once in a page, so with small pages once more in a later one.
        head = [*few, *many, key("m3", "many"), key("m1", "many"), few[0]]
        assert found[: len(head)] == head
        assert found[-1] == key("l", "last")
        if rows == 1000:
            assert len(pages) == 1
            assert found == [*head, key("l", "last")]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from([f"s{at}" for at in range(9)] + ["x"]), unique=True)),
        unique_by=lambda each: each[0],
    ),
    st.integers(1, 12),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)),
)
async def test_any_request_is_answered_by_its_pages_as_by_one(asked: list[Asked], rows: int, sizes: dict[str, int]) -> None:
    """Each row exactly once, named ones in the order of their names."""
    engine = MemoryEngine(lambda: 1)
    stored = {group: await fill(engine, [f"s{at}" for at in range(size)], group) for group, size in sizes.items() if size}
    expected = [
        [where for name in shards if (where := key(name, group)) in stored.get(group, [])] if shards else stored.get(group, [])
        for group, shards in asked
    ]
    assert rows_of(asked, await all_pages(engine, asked, rows)) == list(chain(*expected))


async def test_a_small_request_cannot_make_a_large_answer() -> None:
    """A group named a thousand times is returned once; without a page size the default bounds apply (8)."""
    engine = MemoryEngine(lambda: 1)
    await fill(engine, [f"s{at}" for at in range(1_000)], metadata="m" * 4_000)
    page = await group_reads.batch(engine, CLUSTER, request([("g", [])] * 1_000))
    assert page.ByteSize() < 4 * 2**20
    assert (len(page.groups), bool(page.next_page_token)) == (1, True)
    named = await group_reads.batch(engine, CLUSTER, request([("g", ["s1", "s2"] * 10)] * 1_000))
    assert [len(group.offsets) for group in named.groups] == [2] + [0] * 999


@pytest.mark.parametrize(
    ("asked", "token", "rows"),
    [
        ([("g", [])], b"\xff", 0),
        ([("g", [])], b"\0", 0),
        ([("g", ["a", "b"])], b"c", 0),
        ([], b"a", 0),
        ([("g", [])], b"", 10_001),
    ],
)
async def test_a_bad_token_or_size_is_refused(asked: list[Asked], token: bytes, rows: int) -> None:
    """The error names the field (10)."""
    with pytest.raises(InvalidInputError, match="page_size: 10001 is over" if rows else "page_token: is not the next_page_token"):
        await group_reads.batch(MemoryEngine(lambda: 1), CLUSTER, request(asked, rows, token))


async def test_a_request_that_names_too_much_is_refused() -> None:
    """A page of it would take too long to compute (8)."""
    engine = MemoryEngine(lambda: 1)
    names = [f"s{at}" for at in range(group_reads.MAX_NAMED - 1)]
    assert len((await group_reads.batch(engine, CLUSTER, request([("g", names)]))).groups) == 1
    with pytest.raises(InvalidInputError, match="groups: name 50,001 groups and shards, over 50,000; send several requests"):
        await group_reads.batch(engine, CLUSTER, request([("g", [*names, "one"])]))


async def test_a_group_that_is_too_large_for_one_reply_says_how_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """RobustMQ's own call has no pages."""
    monkeypatch.setattr(group_reads, "MAX_GROUP_BYTES", 1_000)
    engine = MemoryEngine(lambda: 1)
    await fill(engine, [f"s{at}" for at in range(10)])
    assert len((await group_reads.whole(engine, CLUSTER, G)).offsets) == 10
    await fill(engine, [f"s{at:03}" for at in range(300)])
    with pytest.raises(TooLargeError, match="default/g: has 310 offsets, more than the 1000 bytes of one reply hold"):
        await group_reads.whole(engine, CLUSTER, G)


async def test_a_deleted_offset_is_not_in_the_reply_but_on_the_page() -> None:
    """Pages show tombstones, RobustMQ's own call does not."""
    engine = MemoryEngine(lambda: 1)
    await fill(engine, ["a", "b"])
    await engine.delete(CLUSTER, *G, ["a"])
    assert [item.shard_name for item in (await group_reads.whole(engine, CLUSTER, G)).offsets] == ["b"]
    (group,) = (await group_reads.batch(engine, CLUSTER, request([("g", [])]))).groups
    assert [(item.shard_name, item.tombstone) for item in group.offsets] == [("a", True), ("b", False)]
    assert OffsetRecord(1, 1) in [found for _, found in await engine.get(CLUSTER, [key("b")])]


async def test_groups_that_are_read_together_are_complete() -> None:
    """Small groups share a page; a large one among them takes further pages."""
    engine = MemoryEngine(lambda: 1)
    asked: list[Asked] = [(name, ()) for name in (*(f"none{at}" for at in range(40)), "large0", "large1", "few", "large2")]
    expected = []
    for group, size in (("large0", 400), ("large1", 500), ("few", 3), ("large2", 400)):
        expected += await fill(engine, [f"s{at:03}" for at in range(size)], group)
    pages = await all_pages(engine, asked, 1_000)
    assert rows_of(asked, pages) == expected
    assert len(pages) == 2


async def test_columns_have_the_rows_of_the_groups_that_were_asked_for(tmp_path: Path) -> None:
    """As pages of messages have them, whatever stands between the groups; each page within its size."""
    counts = {"a": 3, "b": 40, "c": 1, "d": 0, "e": 7, "f": 9, "h": 12}
    async with rocksdb(tmp_path) as engine:
        kept = {group: await fill(engine, [f"s{at}" for at in range(count)], group) for group, count in counts.items()}
        for size in (1, 2, 7, 12, 40, 1_000):
            asked: list[Asked] = [(group, ()) for group in ("b", "d", "e", "h", "x")]
            found: list[bytes] = []
            token = b""
            while asked:
                wanted = request(asked, size, token)
                wanted.as_packed = True
                page = await group_reads.batch(engine, CLUSTER, wanted)
                assert page.HasField("packed")
                keys = list(scan_replies.values(page.packed.keys, page.packed.key_sizes))
                assert len(keys) <= size
                found += keys
                token = page.next_page_token
                asked = asked[len(page.groups) - bool(token) :]
            assert found == [pack_names(CLUSTER, *where) for group in "beh" for where in kept[group]]
        for others in ([("e", ()), ("b", ())], [("b", ("s1",))]):
            wanted = request(others)
            wanted.as_packed = True
            page = await group_reads.batch(engine, CLUSTER, wanted)
            assert not page.HasField("packed")
            assert rows_of(others, [page])


Here = dict[OffsetKey, OffsetRecord]


def known(here: Here, cluster: str = CLUSTER) -> Request:
    """A request for what stands instead of these records."""
    made = known_request(cluster, [(encode_key(where), encode_record(stands, 7)) for where, stands in here.items()])
    made.cluster_name = CLUSTER
    return made


async def compared(engine: Engine, here: Here) -> dict[OffsetKey, OffsetRecord | None] | None:
    """What stands instead, by as many requests as it takes; None if the engine does not compare."""
    found: dict[OffsetKey, OffsetRecord | None] = {}
    left = list(here.items())
    while left:
        reply = await group_reads.batch(engine, CLUSTER, known(dict(left)))
        if not reply.compared:
            assert not reply.differing
            return None
        found |= await differing_of(reply, [(encode_key(where), encode_record(stands)) for where, stands in left])
        left = left[reply.compared :]
    return found


CHANGES: dict[str, Callable[[OffsetRecord], OffsetRecord]] = {
    "offset": lambda stands: stands._replace(offset=stands.offset + 1),
    "epoch": lambda stands: stands._replace(epoch=stands.epoch + 1),
    "time": lambda stands: stands._replace(committed_at_ms=stands.committed_at_ms + 1),
    "metadata": lambda stands: stands._replace(metadata="other"),
    "topic": lambda stands: stands._replace(topic="other"),
    "partition": lambda stands: stands._replace(partition=stands.partition + 1),
    "tombstone": lambda stands: stands._replace(live=False, offset=0),
}


@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("between", [False, True])
async def test_only_what_differs_from_the_callers_records_is_answered(tmp_path: Path, order: str, *, between: bool) -> None:
    """Whatever differs, wherever others stand between, and in any order."""
    async with rocksdb(tmp_path) as engine:
        there = {
            where: record(at, metadata="m")
            for at, where in enumerate(await fill(engine, [f"{at:03}" for at in range(300)], metadata="m"))
        }
        if between:
            await fill(engine, [f"{at:03}x" for at in range(0, 300, 2)])
        here, expected = dict(there), dict[OffsetKey, OffsetRecord | None]()
        for at, change in enumerate(CHANGES.values()):
            where = key(f"{41 * at:03}")
            here[where], expected[where] = change(there[where]), there[where]
        here[key("299y")], expected[key("299y")] = record(1), None
        names = sorted(here, key=encode_key, reverse=order == "descending")
        assert await compared(engine, {where: here[where] for where in names}) == expected
        assert await compared(engine, there) == {}


async def test_a_comparison_of_which_all_differs_is_answered_in_parts(tmp_path: Path) -> None:
    """No reply is beyond what a client takes, and none is left out."""
    async with rocksdb(tmp_path) as engine:
        where = await fill(engine, [f"{at:04}" for at in range(1_500)], metadata="m" * METADATA_MAX_BYTES)
        reply = await group_reads.batch(engine, CLUSTER, known(dict.fromkeys(where, record(9_999))))
        assert 0 < reply.compared < len(where)
        assert reply.ByteSize() < 4 * 2**20
        found = await compared(engine, dict.fromkeys(where, record(9_999)))
        assert found is not None
        assert list(found) == where


async def test_an_engine_that_does_not_compare_says_so() -> None:
    """The caller asks for the records then."""
    engine = MemoryEngine(lambda: 1)
    (where,) = await fill(engine, ["s"])
    assert await compared(engine, {where: record(5)}) is None


@pytest.mark.parametrize("bad", ["cluster", "columns", "sizes", "groups", "many"])
async def test_a_comparison_that_cannot_be_meant_is_refused(tmp_path: Path, bad: str) -> None:
    """The error names the field; of another cluster nothing is told."""
    request = known({key("s"): record(1)}, cluster="other" if bad == "cluster" else CLUSTER)
    if bad == "columns":
        request.known.record_sizes += b"\0\0"
    elif bad == "sizes":
        request.known.keys += b"x"
    elif bad == "groups":
        request.groups.add(group="g")
    elif bad == "many":
        request = known({key(f"s{at}"): record(1) for at in range(group_reads.MAX_ROWS + 1)})
    async with rocksdb(tmp_path) as engine:
        with pytest.raises(InvalidInputError, match="groups" if bad == "groups" else "packed.key" if bad == "sizes" else "known"):
            await group_reads.batch(engine, CLUSTER, request)


def test_rows_below_prefixes_are_read_over_many_deleted_ones(tmp_path: Path) -> None:
    """Nothing of a group is left out, and nothing between two groups comes."""
    db = Rdict(str(tmp_path / "db"), Options(raw_mode=True))
    names = [b"a%05d" % at for at in range(5_000)]
    for name in [*names, b"b1", b"c1", b"c2"]:
        db[name] = b"v"
    for name in names[1:-1]:
        del db[name]
    assert [key for key, _ in rocks.rows_below(db, [b"a", b"c"], b"", b"d")] == [names[0], names[-1], b"c1", b"c2"]
    assert [key for key, _ in rocks.rows_below(db, [b"a", b"c"], names[0], b"d")] == [names[-1], b"c1", b"c2"]
    assert list(rocks.rows_below(db, [b"bb", b"e"], b"", b"f")) == []
    db.close()
