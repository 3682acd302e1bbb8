"""A client that was there while its adapter was away, and one that comes after it."""

from pathlib import Path

import grpc.aio
import pytest

from adapter.client import client as client_module
from adapter.client.client import OffsetClient
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
