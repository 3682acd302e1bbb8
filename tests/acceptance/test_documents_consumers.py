"""The consumer in docs/consumers.md runs as it stands there: it is stopped, reset and started again, and skips nothing."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from adapter.client.offset_store.local_file import LocalFileOffsetStore
from adapter.model.queues import MessageQueue, shard_of
from adapter.rpc import offsets_pb
from adapter.testing.waiting import PATIENCE_S
from tests.acceptance.documents import blocks, page, section
from tests.integration.helpers import serving

TEXT = section("OffsetStore", page("consumers"))
QUEUES = [MessageQueue("orders", number, "broker-a") for number in range(2)]
MESSAGES = 60  # of each queue
LIMIT_S = PATIENCE_S


class Message(NamedTuple):
    """One of a log."""

    queue: MessageQueue
    offset: int


class Log:
    """Queues in memory, and how often each message was handled."""

    def __init__(self) -> None:
        self.handled: Counter[Message] = Counter()
        self.news = asyncio.Event()

    async def poll(self, queue: MessageQueue, offset: int) -> list[Message]:
        """The next ten."""
        await asyncio.sleep(0.001)
        return [Message(queue, at) for at in range(offset, min(offset + 10, MESSAGES))]

    async def handle(self, message: Message) -> None:
        """Count it."""
        self.handled[message] += 1
        self.news.set()
        await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until so much was handled."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self.news.clear()
                await self.news.wait()


@pytest.fixture
def consumer() -> Any:
    """The class of the page, which persists more often here."""
    names: dict[str, Any] = {}
    exec(compile(blocks(TEXT, "python")[0], "consumers.md", "exec"), names)  # noqa: S102 - the example is what is tested
    names["PERSIST_S"] = 0.01
    return names["Consumer"]


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Stop a consumer."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_consumer_is_written_like_this(consumer: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A restart goes on where it stopped; a reset meanwhile is followed, and stays."""
    log = Log()
    async with serving(tmp_path_factory.mktemp("d")) as (_, client):

        def started() -> asyncio.Task[None]:
            return asyncio.create_task(consumer({"broker-a": client}, "billing", log.poll, log.handle).run(QUEUES))

        task = started()
        await log.until(lambda: log.handled[Message(QUEUES[0], 20)] == 1)
        await cancelled(task)
        standing = {shard: row.offset for shard, row in (await client.read("billing")).items()}
        assert standing[shard_of(QUEUES[0])] >= 20

        task = started()
        await log.until(lambda: len(log.handled) == 2 * MESSAGES)
        assert max(log.handled.values()) <= 2  # the one in hand when it was stopped
        assert sum(count > 1 for count in log.handled.values()) <= len(QUEUES)
        await cancelled(task)
        assert {row.offset for row in (await client.read("billing")).values()} == {MESSAGES}
        request = offsets_pb.ResetOffsetsRequest(namespace="default", group="billing", to_offset=50, execute=True)
        assert (await client.admin.ResetOffsets(request)).executed
        before = log.handled[Message(QUEUES[1], MESSAGES - 1)]
        task = started()
        await log.until(lambda: log.handled[Message(QUEUES[1], MESSAGES - 1)] > before)
        await cancelled(task)


async def test_a_broadcasting_consumer_is_written_like_this(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the file in its user's home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    names: dict[str, Any] = {}
    exec(compile(blocks(TEXT, "python")[1], "consumers.md", "exec"), names)  # noqa: S102
    store, positions = await names["resume"](QUEUES)
    assert isinstance(store, LocalFileOffsetStore)
    assert positions == dict.fromkeys(QUEUES)
    store.update_offset(QUEUES[0], 5)
    await store.persist_all(QUEUES)
    _, positions = await names["resume"](QUEUES)
    assert positions == {QUEUES[0]: 5, QUEUES[1]: None}
