"""Bulk reads over etcd: a snapshot while offsets move to other Raft groups, and splits that do not read all keys again."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from adapter.errors import MetaUnavailableError, RefusedError
from adapter.metaservice.etcd import engine as etcd_engine
from adapter.metaservice.etcd import reads as etcd_reads
from adapter.metaservice.etcd.engine import EtcdEngine
from adapter.metaservice.etcd.reads import Widths, batchers_of, count_ranges
from adapter.model.codec import encode_key, encode_record, pack_names, prefix_end
from adapter.rpc import etcd_grpc, etcd_pb
from tests.contract.engines import TRICKY, etcd
from tests.contract.etcd import shared_members
from tests.unit.helpers import key, record

COUNT = 6_000


async def test_a_snapshot_ends_with_an_error_when_the_layout_changes(tmp_path: Path) -> None:
    """Its Raft groups are no longer all that there are; while offsets are moved, a new one has each of them once."""
    async with etcd(tmp_path) as engine:
        assert isinstance(engine, EtcdEngine)
        keys = [encode_key(key(f"{at:05}", f"g{at % 7}")) for at in range(COUNT)]
        await engine.merge("c", keys, [encode_record(record(1))] * COUNT)
        pages = engine.snapshot("c", ())
        assert (await anext(pages)).rows < COUNT
        await engine.fences.change(engine.fences.layout, engine.fences.layout.move_to(["contract"]))
        with pytest.raises(MetaUnavailableError, match="take the snapshot again"):
            async for _ in pages:
                pass
        assert sum([page.rows async for page in engine.snapshot("c", ())]) == COUNT


async def test_a_snapshot_that_etcd_has_compacted_says_what_to_do(tmp_path: Path) -> None:
    """It reads at one revision, which etcd keeps for a while."""
    async with etcd(tmp_path) as engine:
        keys = [encode_key(key(f"{at:05}", f"g{at % 7}")) for at in range(COUNT)]
        await engine.merge("c", keys, [encode_record(record(1))] * COUNT)
        pages = engine.snapshot("c", ())
        await anext(pages)
        await engine.merge("c", keys[:10], [encode_record(record(2))] * 10)
        for name in ("contract", "contract-2"):
            with grpc.insecure_channel(shared_members(name).endpoints[0]) as channel:
                kv = etcd_grpc.KVStub(channel)
                revision = kv.Range(etcd_pb.RangeRequest(key=b"any")).header.revision
                kv.Compact(etcd_pb.CompactionRequest(revision=revision))
        with pytest.raises(RefusedError, match="--auto-compaction-retention"):
            async for _ in pages:
                pass


async def test_a_large_listing_is_divided_again_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the keys of the last time, which are good places to cut for a while; a small one is read each time."""
    monkeypatch.setattr(etcd_engine, "EXACT", 1_000)
    monkeypatch.setattr(etcd_reads, "PAGE", 400)
    async with etcd(tmp_path) as engine:

        async def add(start: int, end: int) -> None:
            keys = [encode_key(key(f"{at:05}")) for at in range(start, end)]
            await engine.merge("c", keys, [encode_record(record(1))] * len(keys))

        await add(0, 500)
        assert (await engine.split("c", (), 4)).records == 500
        await add(500, 2_000)
        assert (await engine.split("c", (), 4)).records == 2_000
        await add(2_000, 2_500)
        known = await engine.split("c", (), 4)
        assert (known.records, len(known.tokens)) == (2_000, 3)
        assert len((await engine.split("c", (), 10)).tokens) == 9
        monkeypatch.setattr(etcd_engine, "SAMPLE_S", -1.0)
        assert (await engine.split("c", (), 4)).records == 2_500


async def test_counted_ranges_have_every_key_once_and_few_of_them_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However unevenly the keys lie, in two Raft groups; again by what the first time learned."""
    monkeypatch.setattr(etcd_reads, "PAGE", 200)
    async with etcd(tmp_path) as engine:
        assert isinstance(engine, EtcdEngine)
        keys = [key(f"orders/{at % 9}", f"group-{at // 9}") for at in range(4_000)]
        keys += [key(f"{name}{at}", other) for at in range(120) for name, other in zip(TRICKY[:3], TRICKY[4:7], strict=True)]
        keys += [key("s" * at, "long") for at in range(1, 256)]
        await engine.merge("c", [encode_key(each) for each in keys], [encode_record(record(1))] * len(keys))
        layout, prefix = engine.fences.layout, engine._keys.offsets + pack_names("c")
        where = sorted(engine._keys.offset("c", each) for each in keys)
        read: list[bytes] = []
        plain = etcd_reads.read

        async def counting(*arguments: Any) -> list[etcd_reads.Found]:
            found = await plain(*arguments)
            read.extend(row.where for part in found for row in part.rows)
            return found

        monkeypatch.setattr(etcd_reads, "read", counting)
        batchers, widths = batchers_of(engine._batchers, layout), Widths()
        for _ in range(2):
            read.clear()
            at = 0
            async for first, count in count_ranges(batchers, layout, engine.fences, prefix, prefix_end(prefix), widths):
                assert (first, count <= 200) == (where[at], True)
                at += count
            assert at == len(where)
            assert len(read) < len(where) / 2
