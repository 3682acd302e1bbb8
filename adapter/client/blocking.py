"""The client for threads: the methods of `client.OffsetClient`, blocking, over a thread with an event loop of its own.

Any number of threads may share one; their commits share requests. Not for use from a coroutine, nor across a fork.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from adapter.client.client import DEFAULT_TIMEOUT_S, OffsetClient
from adapter.model.records import DEFAULT_NAMESPACE, CommitMode, Member, ReadMode
from adapter.rpc import offsets_pb

if TYPE_CHECKING:  # a client without TLS does without what checks settings
    from adapter.runtime.config import ClientTls

R = TypeVar("R")
Call: TypeAlias = Callable[[], Coroutine[Any, Any, R]]


class BlockingOffsetClient:
    """One channel to one adapter, as `OffsetClient.connect` opens it; a context manager. Methods raise what that one's do.

    After the close they raise RuntimeError. Calls under way then, but not commits, end with `concurrent.futures.CancelledError`.
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
        """The client, closed at the end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """See `close`."""
        self.close()

    def commit(
        self,
        group: str,
        offsets: Mapping[str, int],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        mode: CommitMode = CommitMode.INCREASE_ONLY,
        epochs: Mapping[str, int] = MappingProxyType({}),
        member: Member | None = None,
    ) -> list[offsets_pb.Superseded]:
        """See `OffsetClient.commit`."""
        copy, known = dict(offsets), dict(epochs)  # what other threads change meanwhile is not looked at
        return self._thread.do(
            lambda: self._client.commit(group, copy, namespace=namespace, mode=mode, epochs=known, member=member)
        )

    def read(
        self,
        group: str,
        shards: Sequence[str] = (),
        *,
        namespace: str = DEFAULT_NAMESPACE,
        mode: ReadMode = ReadMode.MEMORY_FIRST_THEN_STORE,
    ) -> dict[str, offsets_pb.ShardOffset]:
        """See `OffsetClient.read`."""
        return self._thread.do(lambda: self._client.read(group, shards, namespace=namespace, mode=mode))

    def persist(self, group: str, shards: Sequence[str] = (), *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """See `OffsetClient.persist`."""
        self._thread.do(lambda: self._client.persist(group, shards, namespace=namespace))

    def remove(self, group: str, shards: Sequence[str] = (), *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """See `OffsetClient.remove`."""
        return self._thread.do(lambda: self._client.remove(group, shards, namespace=namespace))

    def commit_broadcast(
        self, group: str, client_id: str, offsets: Mapping[str, int], *, namespace: str = DEFAULT_NAMESPACE
    ) -> "list[offsets_pb.Superseded]":
        """See `OffsetClient.commit_broadcast`."""
        copy = dict(offsets)
        return self._thread.do(lambda: self._client.commit_broadcast(group, client_id, copy, namespace=namespace))

    def read_broadcast(
        self, group: str, shards: Sequence[str] = (), *, client_id: str = "", namespace: str = DEFAULT_NAMESPACE
    ) -> dict[str, offsets_pb.BroadcastOffset]:
        """See `OffsetClient.read_broadcast`."""
        return self._thread.do(lambda: self._client.read_broadcast(group, shards, client_id=client_id, namespace=namespace))

    def flush(self) -> int:
        """See `OffsetClient.flush`."""
        return self._thread.do(self._client.flush)

    def status(self) -> offsets_pb.StatusReply:
        """See `OffsetClient.status`."""
        return self._thread.do(self._client.status)

    def list(self, namespace: str = "", group: str = "") -> "list[offsets_pb.ShardOffset]":
        """See `OffsetClient.list`; all of them at once."""

        async def collected() -> "list[offsets_pb.ShardOffset]":
            return [row async for row in self._client.list(namespace, group)]

        return self._thread.do(collected)

    def close(self) -> None:
        """Refuse new calls, wait for the answers of the commits under way (up to the timeout), and end the thread."""
        self._thread.close(self._stack.aclose)


class _LoopThread:
    """A thread with an event loop, and calls from other threads: those that come at the same time wake it once."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="offset-client", daemon=True)
        self._lock = threading.Lock()  # what is taken is taken before the close begins
        self._open = True
        self._calls: deque[tuple[Call[Any], Future[Any]]] = deque()
        self._running: dict[Future[Any], asyncio.Task[Any]] = {}
        self._thread.start()

    def do(self, call: Call[R]) -> R:
        """Run a coroutine there; returns or raises what it does. Raises RuntimeError after the close."""
        future: Future[R] = Future()
        try:
            with self._lock:
                self._check_open()
                self._submit(call, future)
            return future.result()
        except BaseException:  # an interrupt, too: what nobody waits for any more is given up
            if self._open and not future.done():
                self._loop.call_soon_threadsafe(self._give_up, future)
            raise

    def close(self, last: Call[None]) -> None:
        """Refuse new calls, run `last`, cancel what is left, and end the thread. A second time nothing happens."""
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
        if len(self._calls) == 1:  # else somebody has woken it, and it has not come to this one yet
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        """In the loop: begin what was submitted. Empties the queue first, so that the next call wakes the loop again."""
        calls = []
        while self._calls:
            calls.append(self._calls.popleft())
        for call, future in calls:
            task = self._loop.create_task(call())
            self._running[future] = task
            task.add_done_callback(partial(self._tell, future))

    def _tell(self, future: "Future[R]", task: asyncio.Task[R]) -> None:
        del self._running[future]
        if task.cancelled():
            future.cancel()
            future.set_running_or_notify_cancel()
        elif error := task.exception():
            future.set_exception(error)
        else:
            future.set_result(task.result())

    def _give_up(self, future: "Future[Any]") -> None:
        if task := self._running.get(future):
            task.cancel()


async def _cancel_others() -> None:
    """Cancel whatever is left in this loop, and wait for it: its callers wait in other threads."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
