"""The blocking client, against a real sidecar in an event loop of the test's own."""

import asyncio
import signal
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from adapter.client.blocking import BlockingOffsetClient, _LoopThread
from adapter.errors import ConfigError
from adapter.model.records import CommitMode, Member, ReadMode
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import sidecar_in_thread

THREADS = 16
COMMITS = 40  # of each
PATIENCE_S = 60.0


def test_every_method_does_what_the_async_one_does(tmp_path: Path) -> None:
    """Same values, errors and rows."""
    meta = FakeMeta()
    with sidecar_in_thread(tmp_path, meta) as address, BlockingOffsetClient(address, PATIENCE_S) as client:
        assert client.commit("g", {"a": 5, "b": 6}, member=Member(2, "m")) == []
        assert [row.offset for row in client.commit("g", {"a": 4}, epochs={"a": 1})] == [5]
        assert client.commit("g", {"a": 3}, mode=CommitMode.OVERWRITE) == []
        with pytest.raises(grpc.aio.AioRpcError, match="ILLEGAL_GENERATION"):
            client.commit("g", {"a": 9}, member=Member(1, "old"))
        assert {shard: row.offset for shard, row in client.read("g", mode=ReadMode.MEMORY).items()} == {"a": 3, "b": 6}
        assert [row.shard for row in client.list("default", "g")] == ["a", "b"]
        client.persist("g")
        assert len(meta.records) == 2
        assert client.flush() == 0
        assert client.status().stored_keys == 2
        assert client.remove("g", ["b"]) == 1


def test_threads_share_one_client(tmp_path: Path) -> None:
    """Each thread sees its own commits acknowledged, and nothing is lost."""
    with sidecar_in_thread(tmp_path) as address, BlockingOffsetClient(address, PATIENCE_S) as client:

        def consume(number: int) -> None:
            for offset in range(1, COMMITS + 1):
                assert client.commit("g", {f"s{number}": offset}) == []

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(consume, range(THREADS)))
        assert {row.offset for row in client.read("g").values()} == {COMMITS}
        assert len(client.read("g")) == THREADS


def test_a_close_waits_for_the_commits_of_other_threads(tmp_path: Path) -> None:
    """They get their replies; later calls raise RuntimeError. A second close does nothing."""
    with sidecar_in_thread(tmp_path) as address:
        client = BlockingOffsetClient(address, PATIENCE_S)
        done: list[int] = []
        errors: list[Exception] = []
        begun = threading.Barrier(THREADS + 1)

        def consume(number: int) -> None:
            try:
                for offset in range(1, 100_000):
                    client.commit("g", {f"s{number}": offset})
                    done[number] = offset
                    if offset == 1:
                        begun.wait(PATIENCE_S)
            except (RuntimeError, grpc.aio.AioRpcError) as error:
                errors.append(error)

        done.extend([0] * THREADS)
        with ThreadPoolExecutor(THREADS) as threads:
            running = [threads.submit(consume, number) for number in range(THREADS)]
            begun.wait(PATIENCE_S)
            client.close()
            for one in running:
                one.result(PATIENCE_S)
        assert all(isinstance(error, RuntimeError) or "the client is closed" in str(error) for error in errors)
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            client.status()
        with BlockingOffsetClient(address, PATIENCE_S) as again:
            assert {shard: row.offset for shard, row in again.read("g").items()} == {f"s{at}": one for at, one in enumerate(done)}


def test_a_watch_ends_with_its_client(tmp_path: Path) -> None:
    """In another thread as any call that is under way; one that was left behind can be closed."""
    with sidecar_in_thread(tmp_path) as address, ThreadPoolExecutor() as threads:
        client = BlockingOffsetClient(address, PATIENCE_S)
        left, under_way = client.watch(), client.watch()
        assert next(left).resync
        assert next(under_way).resync
        waiting = threads.submit(next, under_way)
        while not client._thread._running:
            time.sleep(0.001)
        client.close()
        with pytest.raises(CancelledError):
            waiting.result(PATIENCE_S)
        left.close()


def test_what_cannot_be_opened_leaves_no_thread() -> None:
    """The error is that of `OffsetClient.connect`."""
    with pytest.raises(ConfigError):
        BlockingOffsetClient("example.com:1", token="0123456789abcdef")  # noqa: S106 - an example
    assert "offset-client" not in {thread.name for thread in threading.enumerate()}


def test_an_adapter_that_is_not_there_is_an_error_in_time(tmp_path: Path) -> None:
    """With `resend` after the timeout, without it immediately."""
    for resend in (False, True):
        with (
            BlockingOffsetClient(f"unix:{tmp_path}/none", 0.3, resend=resend) as client,
            pytest.raises(grpc.aio.AioRpcError) as caught,
        ):
            client.commit("g", {"s": 1})
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_what_an_interrupted_thread_waited_for_is_given_up() -> None:
    """Ctrl-C cancels the call itself, not only the wait; other threads continue."""
    begun, ended = threading.Event(), threading.Event()
    here = threading.get_ident()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist ignores it

    async def never() -> None:
        begun.set()
        try:
            asyncio.get_running_loop().call_soon(signal.pthread_kill, here, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            ended.set()

    thread = _LoopThread()
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.do(never)
    finally:
        signal.signal(signal.SIGINT, before)
    assert begun.is_set()
    assert ended.wait(PATIENCE_S)
    thread.do(_nothing)
    thread.close(_nothing)


def test_calls_that_come_while_the_loop_is_busy_wake_it_once() -> None:
    """A wake-up costs more than the call that it brings."""
    thread = _LoopThread()
    busy, go_on = threading.Event(), threading.Event()
    begun: list[int] = []

    async def block() -> None:
        busy.set()
        go_on.wait(PATIENCE_S)  # the loop is to be busy

    async def call(number: int) -> None:
        begun.append(number)

    wakes: list[object] = []
    wake = thread._loop.call_soon_threadsafe

    def counted(*args: Any) -> Any:
        wakes.append(args)
        return wake(*args)

    with ThreadPoolExecutor(THREADS) as threads:
        first = threads.submit(thread.do, block)
        assert busy.wait(PATIENCE_S)
        thread._loop.call_soon_threadsafe = counted  # type: ignore[method-assign,assignment]
        rest = [threads.submit(thread.do, partial(call, number)) for number in range(THREADS - 1)]
        while len(thread._calls) < THREADS - 1:
            pass
        go_on.set()
        for one in (first, *rest):
            one.result(PATIENCE_S)
    assert sorted(begun) == list(range(THREADS - 1))
    assert len(wakes) == 1
    thread.close(_nothing)


async def _nothing() -> None:
    pass
