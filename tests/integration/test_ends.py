"""The order of ends: the servers, their handlers, the metrics, the store. Nothing is used by anybody once it has been closed."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest

from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.durable import rocks
from adapter.runtime.serving.listener import listening
from adapter.sidecar.config import AdapterServerSection
from tests.integration.helpers import PATIENCE_S

SERVER = AdapterServerSection(listen="127.0.0.1:0", unix_socket="")
KEYS = [b"%d" % number for number in range(1_000)]


class Waiting(offsets_grpc.OffsetStoreServicer):
    """Calls that never end by themselves."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.open = 0

    async def CommitOffsets(self, request: offsets_pb.CommitOffsetsRequest, context: Any) -> offsets_pb.CommitOffsetsReply:  # noqa: ARG002
        self.open += 1
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.open -= 1
        raise AssertionError


async def test_a_server_whose_owner_is_cancelled_has_ended_before_the_owner_goes_on() -> None:
    """As when a sync fails: no handler may use a store that is being closed."""
    waiting = Waiting()  # type: ignore[abstract]  # none of the others is called
    address = ""
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            nonlocal address
            add = lambda server: offsets_grpc.add_OffsetStoreServicer_to_server(waiting, server)  # noqa: E731
            with anyio.CancelScope() as failing:
                async with listening(SERVER, (), add) as server:
                    (address,) = server.addresses
                    tasks.start_soon(call, failing)
                    await anyio.sleep_forever()
            assert waiting.open == 0
            with pytest.raises(OSError, match=r"refused|reset|failed"):
                await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))

        async def call(failing: anyio.CancelScope) -> None:
            async with grpc.aio.insecure_channel(address) as channel:
                commit = offsets_grpc.OffsetStoreStub(channel).CommitOffsets(
                    offsets_pb.CommitOffsetsRequest(), timeout=PATIENCE_S
                )
                await waiting.begun.wait()
                failing.cancel()
                with pytest.raises(grpc.aio.AioRpcError):
                    await commit

        with anyio.fail_after(PATIENCE_S):
            await serve()


@contextmanager
def reading(part: Any) -> Iterator[threading.Event]:
    """Another thread reads most of the time, until the store is closed."""
    under_way, ended = threading.Event(), threading.Event()

    def read() -> None:
        try:
            while True:
                part.get(KEYS)
                under_way.set()
                time.sleep(0.001)
        except Exception:  # noqa: BLE001 - whatever rocksdict says of a store that is closed, or being closed
            ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert under_way.wait(PATIENCE_S)
    try:
        yield ended
    finally:
        with suppress(Exception):  # mostly it is closed
            part.close()
        thread.join(PATIENCE_S)


def test_a_store_that_is_being_read_is_closed_when_the_read_has_ended(tmp_path: Path) -> None:
    """Else it would stay open, and its lock with it."""
    store = rocks.open_store(tmp_path / "db", ("default",), "")
    with reading(store.db) as ended:
        store.close()
        assert ended.wait(PATIENCE_S)
    rocks.open_store(tmp_path / "db", ("default",), "").close()


class Refusing:
    """A part of a store whose last flush fails. It is closed nevertheless."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        """As the part."""
        return getattr(self._part, name)

    def close(self) -> None:
        """Raise what RocksDB does after a failed fsync."""
        self._part.close()
        raise Exception("IO error: While fdatasync: 000008.log: Input/output error")  # noqa: TRY002 - as rocksdict


@pytest.mark.parametrize("part", ["_data", "_meta", "_db"])
async def test_a_meta_store_that_fails_is_closed_whole(tmp_path: Path, part: str) -> None:
    """None of its parts stays open, nothing is raised over the error that ends the process, and the metrics go on without it."""
    engine = RocksDbEngine.open(tmp_path / "meta")
    assert engine.gauges()
    setattr(engine, part, Refusing(getattr(engine, part)))
    engine.close()
    assert not any(name.startswith("rocksdb_") for name in engine.gauges())
    again = RocksDbEngine.open(tmp_path / "meta")
    again.close()
