"""The Meta Service behind a network that drops, delays, repeats and reorders. Each call of an adapter may meet a fault.

What arrived is served by tasks of the service: the death of the caller does not undo it, and a repeated save comes again later.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context
from enum import Enum
from typing import Any, ClassVar, NamedTuple, TypeVar

from adapter.errors import MetaUnavailableError, TransientError
from adapter.meta.client import GroupsPage, Page, Telling
from adapter.meta.kinds import WITH_EPOCHS
from adapter.meta.packed import Known, SaveLimits
from adapter.meta.store_marks import ServerReports
from adapter.model.codec import decode_key, encode_key, encode_record
from adapter.model.records import (
    ChangedGroups,
    GroupKey,
    KnownStore,
    OffsetKey,
    OffsetRecord,
    SaveEntry,
    SaveOutcome,
    Status,
    StoreMark,
    StoreReport,
)
from adapter.testing.fake_meta import differing_from
from tests.model.engine import MemoryEngine

R = TypeVar("R")

CLUSTER = "c"
WAY_S = 0.001  # of a request, or of an answer
SYNC_S = 0.001
TIMEOUT_S = 0.3
GROUP_PAGE = 3  # rows of a page of a group
LOAD_TIMEOUT_S = 0.2


class Fault(Enum):
    """What a call can meet."""

    NONE = "none"
    LOST = "lost"  # on its way there
    UNANSWERED = "unanswered"  # applied, but the answer is lost
    SLOW = "slow"  # on its way there, and in time
    LATE = "late"  # arrives after its caller gave up
    TWICE = "twice"  # comes again, behind what was sent after it
    REFUSED = "refused"  # a connection error at once


SLOW_S, LATE_S, AGAIN_S = 0.15, 0.7, 0.4
WAYS_S = {Fault.SLOW: SLOW_S, Fault.LATE: LATE_S}  # of a request that meets this


class SaveCall(NamedTuple):
    """A save as the network saw it."""

    at: float
    entries: Sequence[SaveEntry]


class Service:
    """The Meta Service: an engine that may be down."""

    engine_type: ClassVar[type[MemoryEngine]] = MemoryEngine

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.engine = self.engine_type(now_ms, SYNC_S)
        self.up = True
        self.refusing: set[OffsetKey] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def report_store(self, store: StoreReport, replaces: bytes) -> KnownStore | None:
        """As the production service."""
        return await self.engine.report_store(CLUSTER, store, replaces, 0)

    def standing(self, key: OffsetKey) -> OffsetRecord | None:
        """What it holds durably."""
        return self.engine.standing(CLUSTER, key)

    def crash(self) -> None:
        """A power cut: what is not synced is gone, and nobody is answered."""
        self.up = False
        for task in self._tasks:
            task.cancel()
        self.engine.crash()

    def serve(self, work: Coroutine[Any, Any, None]) -> None:
        """Work on a request, whatever becomes of its caller: not in the context of its process, which may be paused."""
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def save(
        self, entries: Sequence[SaveEntry], reported: StoreReport | None = None, *, tell: bool = False
    ) -> list[SaveOutcome]:
        """As the production service: a bad entry does not disturb the others."""
        refused = [entry.key in self.refusing for entry in entries]
        good = [entry for entry, bad in zip(entries, refused, strict=True) if not bad]
        saved = iter(await self.engine.save(CLUSTER, good, reported, tell=tell))
        return [SaveOutcome(Status.INVALID, None, "refused") if bad else next(saved) for bad in refused]


class Link:
    """One adapter's way to the Meta Service. It outlives the adapter's process."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.cut = False
        self.faults: deque[Fault] = deque()
        self.troubled_at = 0.0


class SimMeta:
    """The client of one process."""

    endpoint = "simulated"
    kind = WITH_EPOCHS
    metadata = None
    limits = SaveLimits()

    def __init__(self, link: Link, on_save: Callable[[SaveCall], None]) -> None:
        self._link = link
        self._service = link.service
        self._on_save = on_save
        self.available = True
        self.dead = False
        self.server_reports = ServerReports()
        self._unanswered = 0  # calls
        self._reported_unanswered = -1  # at the last report of the local store

    async def report_store(self, store: StoreReport, replaces: bytes = b"") -> KnownStore | None:
        unanswered = self._unanswered
        found = await self._reported(lambda: self._service.report_store(store, replaces))
        self._reported_unanswered = unanswered
        return found

    async def changed_groups(self, after: Sequence[StoreMark]) -> ChangedGroups:
        """Without the faults that are meant for other calls: it comes all the time, and a lost one is repeated."""
        return await self._call(lambda: self._service.engine.changed_groups(CLUSTER, after), faults=False)

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        sent = list(entries)
        if not self.dead:
            self._on_save(SaveCall(asyncio.get_running_loop().time(), sent))
        store = self.server_reports.store  # it goes with a save as production sends it
        reported = store() if store and self._reported_unanswered == self._unanswered else None
        tell = isinstance(entries, Telling)
        return await self._reported(lambda: self._service.save(sent, reported, tell=tell))

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        return dict(await self._call(lambda: self._service.engine.get(CLUSTER, keys), TIMEOUT_S if patient else LOAD_TIMEOUT_S))

    async def differing(self, rows: Sequence[tuple[bytes, bytes]]) -> dict[OffsetKey, OffsetRecord | None] | None:
        return differing_from(rows, await self.get([decode_key(key) for key, _ in rows])) if self.kind.reads_pages else None

    async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
        """Of the first group alone, and of a few rows."""
        first = groups[0]
        page = await self._call(
            lambda: self._service.engine.group_page(CLUSTER, *first, GROUP_PAGE, 2**20, after.decode()),
            TIMEOUT_S if patient else LOAD_TIMEOUT_S,
        )
        last = page.entries[-1][0].shard.encode() if page.more else b""
        return GroupsPage(page.entries, groups if page.more else groups[1:], last)

    async def news_page(self, groups: Sequence[GroupKey], after: bytes, known: Known) -> GroupsPage:
        page = await self.groups_page(groups, after)
        same = known([encode_key(key) for key, _ in page.entries], [encode_record(record) for _, record in page.entries])
        return page._replace(entries=[entry for entry, left_out in zip(page.entries, same, strict=True) if not left_out])

    async def list_page(self, namespace: str, group: str, size: int, token: bytes) -> Page:
        """Live records only."""
        names = [name for name in (namespace, group) if name]
        page = await self._call(lambda: self._service.engine.list_page(CLUSTER, names, size, token))
        return [(key, record) for key, record in page.entries if record.live], page.after

    async def expire(self, group: GroupKey, before_ms: int, now_ms: int) -> int:
        return (await self._call(lambda: self._service.engine.expire(CLUSTER, *group, before_ms, now_ms))).newest_ms

    async def delete(self, group: GroupKey, shards: Sequence[str]) -> None:
        await self._call(lambda: self._service.engine.delete(CLUSTER, *group, shards))

    async def _reported(self, work: Callable[[], Awaitable[R]]) -> R:
        """A call whose reply has the marks of the store behind the service."""
        known_before = self.server_reports.marks.snapshot()

        async def with_marks() -> tuple[R, list[StoreMark]]:
            return await work(), self._service.engine.marks()

        try:
            found, marks = await self._call(with_marks)
        except MetaUnavailableError:
            self.server_reports.changed.set()
            raise
        self.server_reports.take(known_before, marks, self.endpoint)
        return found

    async def _call(self, work: Callable[[], Awaitable[R]], timeout_s: float = TIMEOUT_S, *, faults: bool = True) -> R:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        fault = self._link.faults.popleft() if faults and self._link.faults else Fault.NONE
        if fault is not Fault.NONE or self._link.cut or not self._service.up:
            self._link.troubled_at = loop.time()
        if self.dead:
            await answer
        if fault is Fault.REFUSED:
            self.available = False
            self._unanswered += 1
            raise MetaUnavailableError("refused by the test")
        self._service.serve(self._deliver(fault, work, answer))
        timer = loop.call_later(timeout_s, _give_up, answer)
        try:
            found = await answer
        except MetaUnavailableError as error:
            self.available = False
            self._unanswered += 1
            raise MetaUnavailableError(str(error)) from None
        finally:
            timer.cancel()
        self.available = True
        return found

    async def _deliver(self, fault: Fault, work: Callable[[], Awaitable[R]], answer: asyncio.Future[R]) -> None:
        """One request and its answer, each on its own way."""
        await asyncio.sleep(WAY_S if fault is Fault.NONE else WAYS_S.get(fault, WAY_S))
        if not self._reachable() or fault is Fault.LOST:
            return
        failure: TransientError | None = None
        try:
            found = await work()
        except TransientError as error:
            failure = error
            self._link.troubled_at = asyncio.get_running_loop().time()
        if fault is Fault.TWICE:
            self._service.serve(self._again(work))
        await asyncio.sleep(WAY_S)
        if not self._reachable() or fault is Fault.UNANSWERED or answer.done():
            return
        if failure:
            answer.set_exception(MetaUnavailableError(str(failure)))
            answer.exception()  # its caller may be killed before it looks
        else:
            answer.set_result(found)

    async def _again(self, work: Callable[[], Awaitable[R]]) -> None:
        await asyncio.sleep(AGAIN_S)
        with suppress(TransientError):
            await work()

    def _reachable(self) -> bool:
        if self._link.cut or not self._service.up:
            self._link.troubled_at = asyncio.get_running_loop().time()
            return False
        return True


def _give_up(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(MetaUnavailableError("no answer in time"))
