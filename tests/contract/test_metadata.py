"""The contract of every metadata store. A new store is one more line in STORES."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from adapter.metaservice.config import EtcdSection
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.metadata import EtcdMetadata
from adapter.metaservice.metadata import KEY_MAX_BYTES, VALUE_MAX_BYTES, Entry, MetadataStore, RevisionConflictError
from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.metaservice.rocksdb.metadata import RocksDbMetadata
from tests.contract.etcd import shared_members, shared_section

Opened = Callable[[], AbstractAsyncContextManager[MetadataStore]]

CLUSTER = "cluster"
TRICKY = ["a", "a ", "a/", "a/b", "aa", "b", "m/", "schema", "revision", "\xa0", "ä", "\uffff", "\U0001f600", "k" * KEY_MAX_BYTES]


@asynccontextmanager
async def rocksdb(directory: Path) -> AsyncIterator[MetadataStore]:
    """The store in the embedded engine."""
    engine = RocksDbEngine.open(directory / "store")
    syncing = asyncio.create_task(engine.run())
    try:
        yield RocksDbMetadata(engine)
    finally:
        syncing.cancel()
        await asyncio.wait([syncing])
        engine.close()


@asynccontextmanager
async def etcd(directory: Path) -> AsyncIterator[MetadataStore]:
    """The store in the shared etcd; the same keys for the same directory."""
    section = _SECTIONS.setdefault(directory, shared_section())
    async with EtcdCluster.open("metadata", shared_members(), section) as cluster:
        yield EtcdMetadata(cluster, section.prefix)


_SECTIONS: dict[Path, EtcdSection] = {}

STORES: dict[str, Callable[[Path], AbstractAsyncContextManager[MetadataStore]]] = {"rocksdb": rocksdb, "etcd": etcd}


@pytest.fixture(params=STORES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens the store, as often as a test wants, over the same data."""
    return lambda: STORES[request.param](tmp_path)


async def listed(store: MetadataStore, prefix: str = "", size: int = 1000, cluster: str = CLUSTER) -> list[Entry]:
    """All pages of a listing; only the first may be empty."""
    rows: list[Entry] = []
    after = ""
    while True:
        page = await store.list_page(cluster, prefix, size, after)
        assert len(page.entries) <= size
        assert page.entries or not rows
        rows += page.entries
        after = page.after
        if not after:
            return rows


async def test_what_was_put_is_there_for_a_get_and_a_list(opened: Opened) -> None:
    """For any bytes, also after the store is opened again."""
    values = {"empty": b"", "binary": bytes(range(256)), "large": b"v" * VALUE_MAX_BYTES, "k" * KEY_MAX_BYTES: b"long key"}
    async with opened() as store:
        found = [Entry(key, value, await store.put(CLUSTER, key, value)) for key, value in values.items()]
        assert [await store.get(CLUSTER, key) for key in values] == found
    async with opened() as store:
        assert [await store.get(CLUSTER, key) for key in values] == found
        assert await listed(store) == sorted(found)


async def test_what_is_absent_is_none(opened: Opened) -> None:
    """Before the put, and after the delete."""
    async with opened() as store:
        assert await store.get(CLUSTER, "k") is None
        assert not await store.delete(CLUSTER, "k")
        await store.put(CLUSTER, "k", b"")
        assert await store.delete(CLUSTER, "k")
        assert await store.get(CLUSTER, "k") is None
        assert not await store.delete(CLUSTER, "k")
        assert await listed(store) == []


async def test_revisions_grow_with_every_put_and_are_never_used_again(opened: Opened) -> None:
    """Not after a delete, in another cluster, or after an open (the ABA problem)."""
    revisions = [0]
    for _ in range(2):
        async with opened() as store:
            for cluster, key in [("a", "k"), ("a", "other"), ("b", "k"), ("a", "k")]:
                revisions.append(await store.put(cluster, key, b"v"))
            await store.delete("a", "k")
            revisions.append(await store.put("a", "k", b"v"))
            await store.delete("a", "k")
    assert all(before < after for before, after in pairwise(revisions))


class Cas(NamedTuple):
    """A compare-and-set: whether the key exists, what is expected (0: absent; n: the revision plus n - 1), and success."""

    name: str
    stands: bool
    expected: int
    passes: bool


CASES = [
    Cas("absent, as expected", stands=False, expected=0, passes=True),
    Cas("absent, not expected", stands=False, expected=1, passes=False),
    Cas("there, as expected", stands=True, expected=1, passes=True),
    Cas("there, expected absent", stands=True, expected=0, passes=False),
    Cas("there, later expected", stands=True, expected=2, passes=False),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_compare_and_set_writes_only_over_what_was_expected(opened: Opened, case: Cas) -> None:
    """Otherwise the reply has the stored entry, and nothing changes; for put and delete."""
    async with opened() as store:
        for key in ("put", "deleted"):
            before = await store.put(CLUSTER, key, b"before")
            if not case.stands:
                await store.delete(CLUSTER, key)
            standing = await store.get(CLUSTER, key)
            expected = before + case.expected - 1 if case.expected else 0

            async def change(key: str = key, expected: int = expected) -> int:
                if key == "deleted":
                    return await store.delete(CLUSTER, key, expected)
                return await store.put(CLUSTER, key, b"after", expected)

            if case.passes:
                done = await change()
                assert await store.get(CLUSTER, key) == (Entry(key, b"after", done) if key == "put" else None)
                assert done > before if key == "put" else done is case.stands
            else:
                with pytest.raises(RevisionConflictError, match=f"revision {before} stands" if case.stands else "it is absent"):
                    await change()
                assert await store.get(CLUSTER, key) == standing


async def test_an_old_revision_does_not_pass_over_a_key_that_was_made_anew(opened: Opened) -> None:
    """Although its value is the same."""
    async with opened() as store:
        old = await store.put(CLUSTER, "k", b"v")
        await store.delete(CLUSTER, "k")
        new = await store.put(CLUSTER, "k", b"v", 0)
        with pytest.raises(RevisionConflictError, match=f"revision {new} stands, expected was revision {old};"):
            await store.put(CLUSTER, "k", b"w", old)


async def test_of_concurrent_compare_and_sets_exactly_one_wins(opened: Opened) -> None:
    """The others get its entry, which is the stored one."""
    async with opened() as store:
        expected = 0
        for _ in range(5):
            tries = [store.put(CLUSTER, "k", f"{number}".encode(), expected) for number in range(20)]
            done = await asyncio.gather(*tries, return_exceptions=True)
            [(winner, revision)] = [(number, made) for number, made in enumerate(done) if isinstance(made, int)]
            assert await store.get(CLUSTER, "k") == Entry("k", f"{winner}".encode(), revision)
            lost = [error for error in done if isinstance(error, RevisionConflictError)]
            assert len(lost) == 19
            assert all(f"revision {revision} stands" in str(error) for error in lost)
            expected = revision


async def test_counting_by_compare_and_set_loses_nothing(opened: Opened) -> None:
    """Concurrent puts and deletes between a read and its write are detected."""

    async def count(times: int) -> None:
        for _ in range(times):
            while True:
                found = await store.get(CLUSTER, "k")
                try:
                    await store.put(
                        CLUSTER, "k", str(int(found.value) + 1 if found else 1).encode(), found.revision if found else 0
                    )
                except RevisionConflictError:
                    continue
                break

    async with opened() as store:
        await asyncio.gather(*(count(10) for _ in range(4)))
        found = await store.get(CLUSTER, "k")
        assert found is not None
        assert found.value == b"40"


async def test_of_concurrent_puts_the_one_with_the_largest_revision_stands(opened: Opened) -> None:
    """Each put has a revision of its own."""
    async with opened() as store:
        revisions = await asyncio.gather(*(store.put(CLUSTER, "k", f"{number}".encode()) for number in range(50)))
        assert len({*revisions}) == 50
        last = max(revisions)
        assert await store.get(CLUSTER, "k") == Entry("k", f"{revisions.index(last)}".encode(), last)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_a_list_is_in_key_order_and_leaves_nothing_out(opened: Opened, size: int) -> None:
    """In the order of the keys' bytes, for any page size; a prefix may end within a character."""
    async with opened() as store:
        made = [Entry(key, b"v", await store.put(CLUSTER, key, b"v")) for key in TRICKY]
        await store.put("clus", "ter", b"another cluster")
        made.sort(key=lambda entry: entry.key.encode())
        assert await listed(store, size=size) == made
        for prefix in ("a", "a/", "k", "\U0001f600", "nobody", TRICKY[-1]):
            assert await listed(store, prefix, size) == [entry for entry in made if entry.key.startswith(prefix)]
        assert await listed(store, cluster="nobody") == []


MIB = 2**20
SIZES = [
    ([MIB, MIB, 3, MIB // 2, MIB // 2, MIB - 2_000, *[10] * 100], [1, 1, 3, 101]),
    ([MIB, 3, MIB], [1, 2]),
    ([MIB, MIB, 3], [1, 1, 1]),
]


@pytest.mark.parametrize(("sizes", "counts"), SIZES)
async def test_pages_that_are_cut_by_the_size_of_their_values_are_all_of_the_list(
    opened: Opened, sizes: list[int], counts: list[int]
) -> None:
    """A page ends at 1 MiB of values; many small entries fit on one page."""
    async with opened() as store:
        made = [
            Entry(f"{at:03}", bytes(size), await store.put(CLUSTER, f"{at:03}", bytes(size))) for at, size in enumerate(sizes)
        ]
        assert await listed(store) == made
        after = ""
        pages: list[int] = []
        while not pages or after:
            page = await store.list_page(CLUSTER, "", 1000, after)
            pages.append(len(page.entries))
            after = page.after
        assert pages == counts


async def test_entries_that_come_or_go_between_two_pages_do_not_move_the_others(opened: Opened) -> None:
    """A page continues after the last key, even if that was removed."""
    async with opened() as store:
        for key in ("a", "c", "d"):
            await store.put(CLUSTER, key, b"")
        page = await store.list_page(CLUSTER, "", 2, "")
        assert ([entry.key for entry in page.entries], page.after) == (["a", "c"], "c")
        await store.delete(CLUSTER, "c")
        await store.put(CLUSTER, "b", b"")
        page = await store.list_page(CLUSTER, "", 2, page.after)
        assert ([entry.key for entry in page.entries], page.after) == (["d"], "")


async def test_a_key_does_not_leave_its_cluster(opened: Opened) -> None:
    """Also if cluster and key of two entries form the same text."""
    async with opened() as store:
        for cluster, key in [("a", "bc"), ("ab", "c")]:
            await store.put(cluster, key, cluster.encode())
        assert await store.get("a", "c") is None
        assert [entry.value for entry in await listed(store, cluster="a")] == [b"a"]
        assert [entry.value for entry in await listed(store, cluster="ab")] == [b"ab"]
