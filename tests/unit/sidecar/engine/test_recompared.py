"""Before a server without epochs: going back while all is compared once more, as when endpoints were replaced by a reload."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapter.errors import NotReadyError
from adapter.meta.kinds import OFFSETS_ONLY
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Reset, To
from adapter.sidecar.ledger.operations import Reconcile
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import commit_of, core_over, key, record, send
from tests.unit.sidecar.engine.fast_requests import request

A = key("a")
OVERWRITE = 1


@asynccontextmanager
async def compared_again(directory: Path) -> AsyncIterator[tuple[Core, FakeMeta]]:
    """A core with the offset 100 of A, which the server has as well, at the begin of a second comparison."""
    meta = FakeMeta({A: record(100, 0)})
    meta.kind = OFFSETS_ONLY
    async with core_over(directory, meta) as core:
        await core.ledger.submit(Reconcile([(A, record(100))]))
        core.recovery.again()
        yield core, meta


async def test_an_overwrite_waits_until_all_is_compared_once_more(tmp_path: Path) -> None:
    """Taken before, one that goes back would be undone by the adapter's own older offset (1)."""
    async with compared_again(tmp_path) as (core, meta):
        with pytest.raises(NotReadyError, match="OVERWRITE is taken when that is done"):
            await send(core, commit_of({A: 50}, overwrite=True))
        assert core.ledger.commit_plain([[request("a", offset=150, mode=OVERWRITE)]], 0).counts == [0]
        assert core.ledger.commit_plain([[request("a", offset=110)]], 0).counts == [1]
        await core.recovery.run()
        await send(core, commit_of({A: 50}, overwrite=True))
        await core.flusher.flush_once()
        assert core.ledger.store.get(A) == record(50, 2)
        assert meta.records[A].offset == 50


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_reset_stands_that_is_made_while_all_is_compared_once_more(tmp_path: Path, *, flushed: bool) -> None:
    """Its group is compared first (1)."""
    async with compared_again(tmp_path) as (core, meta):
        await core.resets.reset(Wanted(A.group_key, ()), Reset(To.OFFSET, 50), execute=True)
        if flushed:
            await core.flusher.flush_once()
        await core.recovery.run()
        await core.flusher.flush_once()
        standing = core.ledger.store.get(A)
        assert standing
        assert standing.offset == 50
        assert meta.records[A].offset == 50
