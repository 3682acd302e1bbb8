"""The embedded store of metadata: replies wait for the sync, and the engine's own keys stay untouched."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from adapter.metaservice.metadata import Entry, Page, RevisionConflictError
from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.metaservice.rocksdb.metadata import RocksDbMetadata

C = "c"
Work = Callable[[RocksDbMetadata], Awaitable[object]]
STANDING = Entry("k", b"v", 1)

WORK: dict[str, tuple[Work, object]] = {
    "put": (lambda store: store.put(C, "new", b"v"), 2),
    "compare-and-set": (lambda store: store.put(C, "k", b"v", 1), 2),
    "delete": (lambda store: store.delete(C, "k"), True),
    "a delete of nothing": (lambda store: store.delete(C, "nothing"), False),
    "get": (lambda store: store.get(C, "k"), STANDING),
    "list": (lambda store: store.list_page(C, "", 10, ""), Page([STANDING], "")),
    "a conflict": (lambda store: _conflict(store.put(C, "k", b"v", 0)), "revision 1 stands"),
    "a conflict of a delete": (lambda store: _conflict(store.delete(C, "k", 2)), "revision 1 stands"),
}


async def _conflict(work: Awaitable[object]) -> str:
    with pytest.raises(RevisionConflictError) as caught:
        await work
    return str(caught.value).partition(": ")[2].partition(",")[0]


@pytest.mark.parametrize("name", WORK)
async def test_the_embedded_store_answers_after_the_sync_of_what_it_tells(tmp_path: Path, name: str) -> None:
    """Also reads and conflicts: a power cut must not remove what a caller has seen."""
    work, answer = WORK[name]
    engine = RocksDbEngine.open(tmp_path / "meta")
    store = RocksDbMetadata(engine)
    store._put(b"m/\x01c", "k", b"v", None)
    doing = asyncio.ensure_future(work(store))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not doing.done()
    syncing = asyncio.create_task(engine.run())
    assert await doing == answer
    syncing.cancel()
    await asyncio.wait([syncing])
    engine.close()


async def test_an_embedded_store_reads_what_is_synced_without_another_sync(tmp_path: Path) -> None:
    """No sync runs in this test, so a wait would never end."""
    engine = RocksDbEngine.open(tmp_path / "meta")
    store = RocksDbMetadata(engine)
    assert await store.get(C, "k") is None
    assert await store.list_page(C, "", 10, "") == Page([], "")
    engine.close()


async def test_an_embedded_store_leaves_the_keys_of_the_engine_alone(tmp_path: Path) -> None:
    """For any entry name: a store with an overwritten schema could not be opened."""
    for turn in range(2):
        engine = RocksDbEngine.open(tmp_path / "meta")
        syncing = asyncio.create_task(engine.run())
        store = RocksDbMetadata(engine)
        for key in ("schema", "revision", "m/"):
            assert await store.delete(C, key) is bool(turn)
            await store.put(C, key, b"mine")
        syncing.cancel()
        await asyncio.wait([syncing])
        engine.close()
