"""What an engine of the Meta Service remembers of the adapters' local stores, and the guarantees of its marks."""

from pathlib import Path

import pytest

from adapter.model.records import SaveEntry, StoreReport
from tests.contract.cases import CLUSTER
from tests.contract.engines import etcd, memory
from tests.embedded_engine import opened as rocksdb
from tests.unit.helpers import key, record

ENGINES = {"rocksdb": rocksdb, "memory": memory}
EVERY = {**ENGINES, "etcd": etcd}
FIRST = StoreReport("broker-a", "/data/adapter", b"sixteen bytes, 1", 7)
OTHER = FIRST._replace(store_id=b"sixteen bytes, 2", flushed_seq=1)


@pytest.mark.parametrize("name", ENGINES)
async def test_the_highest_flushed_counter_of_a_store_is_remembered(name: str, tmp_path: Path) -> None:
    """For its broker and path; a later report may have a lower counter."""
    async with ENGINES[name](tmp_path) as engine:
        assert await engine.report_store(CLUSTER, FIRST, b"", 1) is None
        await engine.save(CLUSTER, [SaveEntry(key("a"), record(1))], FIRST._replace(flushed_seq=9))
        await engine.merge(CLUSTER, [], [], FIRST._replace(flushed_seq=8))
        known = await engine.report_store(CLUSTER, FIRST, FIRST.store_id, 2)
        assert known
        assert known.store == FIRST._replace(flushed_seq=9)
        for elsewhere in (FIRST._replace(path="/other"), FIRST._replace(broker="broker-b")):
            assert await engine.report_store(CLUSTER, elsewhere, b"", 3) is None
        assert await engine.report_store("other", FIRST, b"", 3) is None


@pytest.mark.parametrize("name", EVERY)
async def test_another_store_in_the_same_place_is_remembered_only_when_it_replaces_the_first(name: str, tmp_path: Path) -> None:
    """Until then the reply to each report has the first store."""
    async with EVERY[name](tmp_path) as engine:
        await engine.report_store(CLUSTER, FIRST, b"", 1)
        await engine.save(CLUSTER, [SaveEntry(key("a"), record(1))], OTHER)
        for replaces in (b"", b"sixteen bytes, 3", OTHER.store_id, FIRST.store_id):
            assert await engine.report_store(CLUSTER, OTHER, replaces, 2) == (FIRST, 1)
        assert await engine.report_store(CLUSTER, OTHER, b"", 3) == (OTHER, 2)


@pytest.mark.parametrize("name", EVERY)
async def test_stores_that_nobody_tells_of_are_forgotten(name: str, tmp_path: Path) -> None:
    """As those of brokers that were removed long ago."""
    async with EVERY[name](tmp_path) as engine:
        await engine.report_store(CLUSTER, FIRST, b"", 1)
        await engine.report_store(CLUSTER, OTHER._replace(broker="broker-b"), b"", 3)
        assert await engine.forget_stores(3) == 1
        assert await engine.report_store(CLUSTER, FIRST, b"", 4) is None
        assert await engine.forget_stores(3) == 0


@pytest.mark.parametrize("name", ENGINES)
async def test_a_mark_grows_with_what_is_acknowledged(name: str, tmp_path: Path) -> None:
    """Its store identity does not change."""
    async with ENGINES[name](tmp_path) as engine:
        marks = engine.marks()
        for offset in range(1, 4):
            await engine.save(CLUSTER, [SaveEntry(key("a"), record(offset))])
            marks += engine.marks()
        assert [mark.revision for mark in marks] == sorted({mark.revision for mark in marks})
        assert len({mark[:3] for mark in marks}) == 1
        assert engine.loss() is None
