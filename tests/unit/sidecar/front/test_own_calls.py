"""What a delete of the broker waits for."""

import asyncio
from typing import Any, cast

import pytest

from adapter.sidecar.front.own_calls import FLUSH_S, OwnCalls


async def test_a_delete_waits_for_the_flush_behind_the_one_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's flushes come one after the other: what it committed before the delete may be in the second."""
    calls = OwnCalls(*cast("Any", [None] * 6))
    ends = {b"first": asyncio.Event(), b"second": asyncio.Event()}

    async def until_ended(data: bytes) -> bytes:
        await ends[data].wait()
        return data

    monkeypatch.setattr(calls, "_save", until_ended)
    first = asyncio.create_task(calls.save(b"first"))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(calls._flushed())
    later = asyncio.get_running_loop().call_later
    later(3 * FLUSH_S, ends[b"first"].set)
    await first
    second = asyncio.create_task(calls.save(b"second"))
    later(3 * FLUSH_S, ends[b"second"].set)
    await waiting
    assert ends[b"second"].is_set()
    await second
