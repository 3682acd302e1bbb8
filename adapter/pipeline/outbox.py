"""The offsets of streaming queries on their way to an adapter: the newest of each shard, and the thread that sends them.

An offset stays until the adapter has acknowledged it, or a newer one of its shard has taken its place. Callers never wait, except
in `flush`. Memory is bounded: beyond MAX_PENDING shards, new ones are dropped and counted.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import grpc.aio
import structlog
from grpc import StatusCode as Code
from prometheus_client import Counter

from adapter.client.client import DEFAULT_TIMEOUT_S, OffsetClient
from adapter.errors import ConfigError, PermanentError, TransientError
from adapter.rpc import offsets_pb
from adapter.runtime.retry import Attempts, retrying

if TYPE_CHECKING:
    from adapter.runtime.settings.config import ClientTls

log = structlog.get_logger(__name__)

MAX_PENDING = 100_000  # shards
MAX_REQUEST = 2_000  # offsets of a request: below gRPC's 4 MiB with the longest names
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 10.0  # between attempts while the adapter does not take offsets

OFFSETS = Counter(
    "offset_listener_offsets",
    "Offsets of streaming queries by result: committed, superseded (a larger one stands), refused, dropped (too many wait).",
    ["result"],
)
FAILURES = Counter("offset_listener_failures", "Requests that the adapter did not answer, and that are sent again.")

# What may succeed later. RESOURCE_EXHAUSTED: the disk is full, or too many large calls wait.
_LATER = frozenset({Code.UNAVAILABLE, Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED, Code.ABORTED})


class Commit(NamedTuple):
    """An offset of a shard. `rewind`: store it even if a larger one stands."""

    entry: offsets_pb.ShardCommit
    rewind: bool = False


Key: TypeAlias = tuple[str, str]  # group and shard


class Outbox:
    """The commits that the adapter at `address` has not acknowledged. Raises ConfigError for TLS files that cannot be used."""

    def __init__(self, address: str, namespace: str, tls: "ClientTls | None") -> None:
        self._address = address
        self._namespace = namespace
        self._pending: dict[Key, Commit] = {}
        self._changed = threading.Condition()  # with its lock, which a thread may take twice; guards `_pending` and `_gave_up`
        self._gave_up = False  # a flush ended in vain, and nothing was settled since
        self._superseded: set[str] = set()  # groups of which larger offsets stand
        self._loop = asyncio.new_event_loop()
        self._work = asyncio.Event()
        opened: Future[Attempts] = Future()
        self._task = self._loop.create_task(self._serve(opened, tls))
        self._thread = threading.Thread(target=self._run, name="offset-listener", daemon=True)
        self._thread.start()
        try:
            self._attempts = opened.result()
        except ConfigError:
            self._thread.join()
            raise

    def put(self, commits: Mapping[Key, Commit]) -> None:
        """Take newer commits. A rewind that is not acknowledged yet passes to the newer commit of its shard."""
        dropped = 0
        with self._changed:
            for key, commit in commits.items():
                before = self._pending.get(key)
                if before is None and len(self._pending) >= MAX_PENDING:
                    dropped += 1
                else:
                    self._pending[key] = Commit(commit.entry, commit.rewind or (before is not None and before.rewind))
        if dropped:
            OFFSETS.labels("dropped").inc(dropped)
            log.warning("listener.full", dropped=dropped, pending=MAX_PENDING)
        self._wake(self._work.set)

    def put_again(self, group: str, entries: Mapping[str, offsets_pb.ShardCommit]) -> None:
        """Take offsets of a group that were committed before: as of now, and without the end of the log, which may have grown.

        What is pending stays.
        """
        with self._changed:
            absent = [entry for shard, entry in entries.items() if (group, shard) not in self._pending]
            again = [
                offsets_pb.ShardCommit(shard=at.shard, offset=at.offset, topic=at.topic, partition=at.partition) for at in absent
            ]
            self.put({(group, entry.shard): Commit(entry) for entry in again})

    def flush(self, limit_s: float) -> bool:
        """Wait until what is pending now is acknowledged or replaced, or for `limit_s` seconds; returns whether it is.

        If the last flush ended in vain and the adapter has acknowledged nothing since, it does not wait.
        """
        with self._changed:
            pending = dict(self._pending)
            self._wake(self._attempts.try_now)
            done = self._changed.wait_for(
                lambda: not any(self._pending.get(key) is commit for key, commit in pending.items()),
                0 if self._gave_up else limit_s,
            )
            self._gave_up = not done
        return done

    def close(self, limit_s: float) -> None:
        """Flush, and end the thread."""
        if self._thread.is_alive():
            self.flush(limit_s)
            self._wake(self._task.cancel)
            self._thread.join()

    def _wake(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed; Spark still calls the listener
            self._loop.call_soon_threadsafe(call)

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    async def _serve(self, opened: Future[Attempts], tls: "ClientTls | None") -> None:
        try:
            async with OffsetClient.connect(self._address, tls=tls) as client:
                attempts = retrying("commit of offsets of Spark", first_s=FIRST_PAUSE_S, max_s=MAX_PAUSE_S)
                opened.set_result(attempts)
                while await self._work.wait():
                    self._work.clear()
                    await attempts(self._send_pending, client)
        except ConfigError as error:
            opened.set_exception(error)

    async def _send_pending(self, client: OffsetClient) -> None:
        """Send all that is pending. Raises the last TransientError; what it concerns is still pending."""
        with self._changed:
            pending = dict(self._pending)
        failure: TransientError | None = None
        for group, mode, commits in _requests(pending):
            entries = [commit.entry for commit in commits.values()]
            groups = [offsets_pb.GroupCommits(namespace=self._namespace, group=group, shards=entries)]
            try:
                reply = await _committed(client, offsets_pb.CommitOffsetsRequest(groups=groups, mode=mode))
            except TransientError as error:
                FAILURES.inc()
                failure = error
                continue
            except PermanentError as error:
                OFFSETS.labels("refused").inc(len(commits))
                log.warning("listener.refused", group=group, error=str(error))
            else:
                self._note_answer(group, commits, reply)
            self._settle(group, commits)
        if failure:
            raise failure

    def _note_answer(self, group: str, commits: Mapping[str, Commit], reply: offsets_pb.CommitOffsetsReply) -> None:
        """Count. Warn of a group whose offsets are below those that stand: once, until all of them are taken again."""
        OFFSETS.labels("superseded").inc(len(reply.superseded))
        OFFSETS.labels("committed").inc(len(commits) - len(reply.superseded))
        if not reply.superseded:
            self._superseded.discard(group)
        elif group not in self._superseded:
            self._superseded.add(group)
            row = reply.superseded[0]
            offset = commits[row.shard].entry.offset
            log.warning("listener.superseded", group=group, shard=row.shard, offset=offset, stands=row.offset, held=row.held)

    def _settle(self, group: str, commits: Mapping[str, Commit]) -> None:
        """Remove what has its answer, unless a newer commit has taken its place."""
        with self._changed:
            for shard, commit in commits.items():
                if self._pending.get((group, shard)) is commit:
                    del self._pending[group, shard]
            self._gave_up = False
            self._changed.notify_all()


def _requests(pending: Mapping[Key, Commit]) -> Iterator[tuple[str, offsets_pb.CommitMode.ValueType, dict[str, Commit]]]:
    """Group, mode and shard -> commit of each request. One has one group: another's refusal must not concern it."""
    for rewind, mode in ((True, offsets_pb.OVERWRITE), (False, offsets_pb.INCREASE_ONLY)):
        rows = sorted(key for key, commit in pending.items() if commit.rewind is rewind)
        for group, keys in groupby(rows, key=lambda key: key[0]):
            shards = [shard for _, shard in keys]
            for start in range(0, len(shards), MAX_REQUEST):
                yield group, mode, {shard: pending[group, shard] for shard in shards[start : start + MAX_REQUEST]}


async def _committed(client: OffsetClient, request: offsets_pb.CommitOffsetsRequest) -> offsets_pb.CommitOffsetsReply:
    """The answer to a request. Raises TransientError if it may succeed later, PermanentError otherwise."""
    try:
        return await client.store.CommitOffsets(request, timeout=DEFAULT_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        kind = TransientError if error.code() in _LATER else PermanentError
        raise kind(f"{error.code().name}: {error.details()}") from error
