"""`meta copy` between two real Meta Services."""

import json
from pathlib import Path

import anyio.to_thread
import pytest
from click.testing import CliRunner

from adapter.cli.connection import CallError
from adapter.cli.main import cli
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.records import DEFAULT_NAMESPACE, OffsetKey, OffsetRecord, SaveEntry, next_era
from adapter.testing.processes import ended, free_port, meta_process


def copy(source: str, target: str) -> dict[str, int]:
    """Run the command; what it says as JSON."""
    done = CliRunner().invoke(cli, ["meta", "copy", source, "--address", target, "--json"], catch_exceptions=False)
    found: dict[str, int] = json.loads(done.stdout)
    return found


async def test_everything_is_copied_and_the_larger_value_stays(tmp_path: Path) -> None:
    """Tombstones too; a second time changes nothing."""
    kept, gone, ahead = (OffsetKey(DEFAULT_NAMESPACE, "g", shard) for shard in ("kept", "gone", "ahead"))
    buried = OffsetRecord(next_era(1), 0, live=False)
    old, new = meta_process(tmp_path / "old"), meta_process(tmp_path / "new")
    with ended(old, new):
        await anyio.to_thread.run_sync(old.start)
        await anyio.to_thread.run_sync(new.start)
        async with GrpcMetaClient.open(MetaSection(endpoints=(old.address,))) as client:
            records = {kept: OffsetRecord(1, 42), gone: buried, ahead: OffsetRecord(1, 5)}
            await client.save([SaveEntry(*each) for each in records.items()])
        async with GrpcMetaClient.open(MetaSection(endpoints=(new.address,))) as client:
            await client.save([SaveEntry(ahead, OffsetRecord(1, 7))])
            for _ in range(2):
                counts = await anyio.to_thread.run_sync(copy, old.address, new.address)
                assert counts == {"read": 3, "applied": 2, "superseded": 1}
                found = await client.get([kept, gone, ahead])
                assert {key.shard: record[:3] for key, record in found.items()} == {
                    "kept": (1, 42, True),
                    "gone": (next_era(1), 0, False),
                    "ahead": (1, 7, True),
                }


def test_a_meta_service_that_is_not_there_is_named() -> None:
    """And that the command may be repeated."""
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(CallError, match=f"{address}: UNAVAILABLE.*run it again"):
        copy(address, f"127.0.0.1:{free_port()}")
