"""A client that was there while its adapter was away, and one that comes after it."""

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from adapter.client import client as client_module
from adapter.client.client import OffsetClient
from adapter.model.records import ReadMode
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import PATIENCE_S

NEVER_MS = 3_600_000
TRIES = 3


async def test_a_new_client_does_not_wait_for_the_reconnect_of_an_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one has failed and pauses, here for an hour; the adapter is back, and the new one finds it."""
    config, meta = adapter_config(tmp_path), FakeMeta()
    address = f"unix:{config.server.unix_socket}"
    pauses = tuple((f"grpc.{which}_reconnect_backoff_ms", NEVER_MS) for which in ("initial", "min", "max"))
    monkeypatch.setattr(client_module, "CHANNEL_OPTIONS", pauses)
    async with OffsetClient.connect(address, PATIENCE_S, resend=False) as old:
        async with running_sidecar(config, meta):
            await old.commit("g", {"s": 1})
        for _ in range(TRIES):
            with pytest.raises(grpc.aio.AioRpcError):
                await old.commit("g", {"s": 2})
        async with running_sidecar(config, meta), OffsetClient.connect(address, PATIENCE_S, resend=False) as new:
            assert await new.commit("g", {"s": 3}) == []


async def test_where_a_consumer_begins_is_asked_until_the_adapter_answers(tmp_path: Path) -> None:
    """As a commit is. Who only looks, or wants no repetition, is told at once."""
    config, meta = adapter_config(tmp_path), FakeMeta()
    address = f"unix:{config.server.unix_socket}"
    async with (
        OffsetClient.connect(address, PATIENCE_S) as client,
        OffsetClient.connect(address, PATIENCE_S, resend=False) as impatient,
    ):
        begins = asyncio.create_task(client.read("g", mode=ReadMode.STORE))
        for fails in (
            client.read("g", mode=ReadMode.STORE, keep_hold=True),
            client.read("g", mode=ReadMode.MEMORY),
            impatient.read("g", mode=ReadMode.STORE),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await fails
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not begins.done()
        async with running_sidecar(config, meta):
            assert await begins == {}


async def test_a_read_is_repeated_no_longer_than_its_time(tmp_path: Path) -> None:
    """And then has the reason."""
    async with OffsetClient.connect(f"unix:{tmp_path / 'nobody.sock'}", 0.2) as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.read("g", mode=ReadMode.STORE)
        assert refused.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
