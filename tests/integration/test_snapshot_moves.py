"""A snapshot over etcd while offsets move to other Raft groups: it fails or is whole, and the next one has everything."""

from pathlib import Path

import pytest

from adapter.errors import MetaUnavailableError
from adapter.metaservice.etcd.engine import EtcdEngine
from adapter.model.codec import encode_key, encode_record
from tests.contract.engines import etcd
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
