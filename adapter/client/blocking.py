"""BlockingOffsetClient: the methods of `OffsetClient` as blocking calls. An event loop in a background thread makes the calls.

Any number of threads may share one client; their concurrent commits share requests. Do not use it in a coroutine or after a fork.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from adapter.client.client import DEFAULT_TIMEOUT_S, OffsetClient
from adapter.client.pending import Committed
from adapter.client.progress import Progress
from adapter.model.records import DEFAULT_NAMESPACE, CommitMode, Member, ReadMode
from adapter.rpc import offsets_pb

if TYPE_CHECKING:  # loads pydantic, which a client without TLS does not need
    from adapter.runtime.settings.config import ClientTls

R = TypeVar("R")
Call: TypeAlias = Callable[[], Coroutine[Any, Any, R]]


class BlockingOffsetClient:
    """A client of one adapter, with the parameters of `OffsetClient.connect`. Use it as a context manager.

    Methods raise what those of `OffsetClient` raise. After `close` they raise RuntimeError. `close` waits for commits; other
    calls that are in flight then raise `concurrent.futures.CancelledError`.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        token: str = "",
        tls: "ClientTls | None" = None,
        resend: bool = True,
    ) -> None:
        self._thread = _LoopThread()
        self._stack = AsyncExitStack()
        try:
            connection = OffsetClient.connect(address, timeout_s, token=token, tls=tls, resend=resend)
            self._client = self._thread.do(partial(self._stack.enter_async_context, connection))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return the client; leaving the context closes it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the client."""
        self.close()

    def commit(
        self,
        group: str,
        offsets: Mapping[str, int | Progress],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        mode: CommitMode = CommitMode.INCREASE_ONLY,
        epochs: Mapping[str, int] = MappingProxyType({}),
        member: Member | None = None,
        check: bool = True,
    ) -> Committed:
        """Commit shard -> next offset to read; returns, once it is durable, the superseded rows. See `OffsetClient.commit`."""
        copy, known = dict(offsets), dict(epochs)  # other threads may change the originals meanwhile
        return self._thread.do(
            lambda: self._client.commit(group, copy, namespace=namespace, mode=mode, epochs=known, member=member, check=check)
        )

    def read(
        self,
        group: str,
        shards: Sequence[str] = (),
        *,
        namespace: str = DEFAULT_NAMESPACE,
        mode: ReadMode = ReadMode.MEMORY_FIRST_THEN_STORE,
        keep_hold: bool = False,
    ) -> dict[str, offsets_pb.ShardOffset]:
        """The offsets of a group's shards (of all if none is named), as `OffsetClient.read` returns them."""
        return self._thread.do(lambda: self._client.read(group, shards, namespace=namespace, mode=mode, keep_hold=keep_hold))

    def persist(self, group: str, shards: Sequence[str] = (), *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Return when the Meta Service has at least the present offsets."""
        self._thread.do(lambda: self._client.persist(group, shards, namespace=namespace))

    def remove(self, group: str, shards: Sequence[str] = (), *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Persist offsets and remove them from the adapter; returns how many were removed."""
        return self._thread.do(lambda: self._client.remove(group, shards, namespace=namespace))

    def commit_broadcast(
        self, group: str, client_id: str, offsets: Mapping[str, int], *, namespace: str = DEFAULT_NAMESPACE
    ) -> "list[offsets_pb.Superseded]":
        """Commit for one client of a broadcasting group; returns the superseded rows. See `OffsetClient.commit_broadcast`."""
        copy = dict(offsets)
        return self._thread.do(lambda: self._client.commit_broadcast(group, client_id, copy, namespace=namespace))

    def read_broadcast(
        self, group: str, shards: Sequence[str] = (), *, client_id: str = "", namespace: str = DEFAULT_NAMESPACE
    ) -> dict[str, offsets_pb.BroadcastOffset]:
        """The lowest offsets of a broadcasting group, and the client's own. See `OffsetClient.read_broadcast`."""
        return self._thread.do(lambda: self._client.read_broadcast(group, shards, client_id=client_id, namespace=namespace))

    def flush(self) -> int:
        """Send all dirty offsets to the Meta Service; returns how many it acknowledged."""
        return self._thread.do(self._client.flush)

    def status(self) -> offsets_pb.StatusReply:
        """The adapter's status."""
        return self._thread.do(self._client.status)

    def list(self, namespace: str = "", group: str = "", *, deleted: bool = False) -> "list[offsets_pb.ShardOffset]":
        """All local offsets, or those of a namespace or group, as one list in key order; with `deleted` also tombstones."""

        async def collected() -> "list[offsets_pb.ShardOffset]":
            return [row async for row in self._client.list(namespace, group, deleted=deleted)]

        return self._thread.do(collected)

    def watch(self, namespace: str = "", group: str = "") -> "Generator[offsets_pb.WatchOffsetsReply, None, None]":
        """Yield changes that did not come as ordinary commits, waiting for each. See `OffsetClient.watch`."""
        replies = self._client.watch(namespace, group)

        async def following() -> offsets_pb.WatchOffsetsReply | None:
            return await anext(replies, None)

        async def end() -> None:
            await replies.aclose()

        try:
            while (reply := self._thread.do(following)) is not None:
                yield reply
        finally:
            with suppress(RuntimeError):  # the client is closed, which has ended the watch
                self._thread.do(end)

    def close(self) -> None:
        """Refuse new calls, wait for pending commits (up to the timeout), and end the thread."""
        self._thread.close(self._stack.aclose)


class _LoopThread:
    """A thread that runs an event loop for calls of other threads. Concurrent calls wake the loop only once."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="offset-client", daemon=True)
        self._lock = threading.Lock()  # a call is either submitted before the close begins, or refused
        self._open = True
        self._calls: deque[tuple[Call[Any], Future[Any]]] = deque()
        self._running: dict[Future[Any], asyncio.Task[Any]] = {}
        self._thread.start()

    def do(self, call: Call[R]) -> R:
        """Run a coroutine in the loop and return its result or raise its error. Raises RuntimeError after the close."""
        future: Future[R] = Future()
        try:
            with self._lock:
                self._check_open()
                self._submit(call, future)
            return future.result()
        except BaseException:  # also KeyboardInterrupt: cancel the call, since nothing waits for it any more
            if self._open and not future.done():
                self._loop.call_soon_threadsafe(self._cancel, future)
            raise

    def close(self, last: Call[None]) -> None:
        """Refuse new calls, run `last`, cancel the remaining calls, and end the thread. A second call has no effect."""
        with self._lock:
            if not self._open:
                return
            self._open = False
        try:
            for work in (last, _cancel_others):
                done: Future[None] = Future()
                self._submit(work, done)
                done.result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("the client is closed")

    def _submit(self, call: Call[R], future: "Future[R]") -> None:
        self._calls.append((call, future))
        if len(self._calls) == 1:  # otherwise the loop is woken already and has not emptied the queue yet
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        """In the loop: start the submitted calls. The queue is emptied first, so that the next call wakes the loop again."""
        calls = []
        while self._calls:
            calls.append(self._calls.popleft())
        for call, future in calls:
            task = self._loop.create_task(call())
            self._running[future] = task
            task.add_done_callback(partial(self._finish, future))

    def _finish(self, future: "Future[R]", task: asyncio.Task[R]) -> None:
        del self._running[future]
        if task.cancelled():
            future.cancel()
            future.set_running_or_notify_cancel()
        elif error := task.exception():
            future.set_exception(error)
        else:
            future.set_result(task.result())

    def _cancel(self, future: "Future[Any]") -> None:
        if task := self._running.get(future):
            task.cancel()


async def _cancel_others() -> None:
    """Cancel all other tasks of this loop and wait for their end, because their callers wait in other threads."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
