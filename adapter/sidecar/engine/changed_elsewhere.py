"""Learns of groups that were deleted, reset, cloned onto, imported or expired elsewhere, and loads what is here of them.

Asks the Meta Service every two seconds which groups were changed behind the place up to which it is told, and loads those of
their local keys where by the rules of merge the other record stands. What is larger here stays as it is: to send it is for flush
and recovery. A live record is larger than the tombstone of its expiry; such a group is handed to `Expiry`, which looks whether it
is old here, too. The place moves on when the groups are loaded, so nothing is missed by a failure, or while the Meta Service is
away. Where that does not know any more which groups were changed, all local keys are compared, paced.
"""

from collections.abc import Sequence

import anyio
import structlog

from adapter.errors import AdapterError, RefusedError, UnknownCallError
from adapter.meta.client import MetaClient
from adapter.model.codec import group_prefix
from adapter.model.records import ChangedGroups, GroupKey, OffsetKey, StoreMark, meet
from adapter.runtime.backoff import jitter
from adapter.runtime.clocks import Clocks
from adapter.runtime.serving.large_calls import SLICE_ROWS
from adapter.runtime.slices import others
from adapter.sidecar.engine.expiry import Expiry
from adapter.sidecar.engine.group_loader import LOAD_KEYS, GroupLoader
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.ledger.write_batch import Stored

log = structlog.get_logger(__name__)

ASK_S = 2.0  # between two questions, at most
REST = 4  # so many times as long as a page of a comparison takes, the Meta Service has for others
OFF = (
    "this Meta Service does not tell which groups are changed elsewhere: what is here of them stays until it is read or committed"
)


class ChangedElsewhere:
    """Keeps the local records of groups that others change as the Meta Service has them.

    `told_at_ms`: when all that was changed before was known here (Unix time); 0: not yet. `groups`: how many groups it was told
    of. `comparing`: all local keys are being compared. `problem`: why it is not told now.
    """

    def __init__(self, store: LocalStore, loader: GroupLoader, expiry: Expiry, meta: MetaClient, clocks: Clocks) -> None:
        self._store = store
        self._loader = loader
        self._expiry = expiry
        self._meta = meta
        self._clocks = clocks
        self._places: Sequence[StoreMark] = ()
        self._comparisons = 0  # losses and moves of the Meta Service that were known when the places were taken
        self._after: OffsetKey | None = None  # up to where the comparison has come
        self._expired: dict[GroupKey, None] = {}  # there, and maybe not here
        self.comparing = False
        self.told_at_ms = 0
        self.groups = 0
        self.problem = ""

    async def begin(self) -> None:
        """Take the place behind which changes are told, unless it is taken. Call it before a comparison of all keys.

        Raises MetaUnavailableError.
        """
        if self._places or not self._meta.kind.tells_changes:
            return
        try:
            self._places = (await self._ask()).places
        except RefusedError as error:
            self._failed(error)

    async def run(self) -> None:
        """Ask until cancelled. Must not run before the recovery is done."""
        while True:
            try:
                await self.ask()
                until = self._clocks.monotonic() + ASK_S
                await self._expire(until)
                await self._compare(until)
                if self.comparing or self._expired:
                    continue  # it rests by itself
            except AdapterError as error:
                self._failed(error)
            await anyio.sleep(ASK_S * jitter.uniform(0.8, 1))

    async def ask(self) -> None:
        """Ask once, and load what was changed. Where this raises an AdapterError, the next call asks for the same again."""
        if not self._meta.kind.tells_changes:
            self._places, self.problem = (), OFF
            return
        if self._comparisons != self._meta.server_reports.comparisons:
            self._places = ()  # it may be another store, or an older copy
        asked_ms = self._clocks.now_ms()
        found = await self._ask()
        if found.gap:
            log.info("changed_elsewhere.gap", keys=self._store.keys, help="all local keys are compared with the Meta Service")
            self.comparing, self._after = True, None
        if found.groups:
            log.info("changed_elsewhere.told", groups=len(found.groups), example="/".join(found.groups[0]))
        await self._load_groups(found.groups)
        self.groups += len(found.groups)
        self._places = found.places
        self.problem = found.unanswered
        if not self.comparing and not found.unanswered:
            self.told_at_ms = asked_ms

    async def _ask(self) -> ChangedGroups:
        comparisons = self._meta.server_reports.comparisons  # a loss that is found meanwhile concerns these places, too
        found = await self._meta.changed_groups(self._places)
        self._comparisons = comparisons
        return found

    def _failed(self, error: AdapterError) -> None:
        if isinstance(error, UnknownCallError):
            self._places = ()
        problem = OFF if isinstance(error, UnknownCallError) else str(error)
        if problem != self.problem:
            log.info("changed_elsewhere.not_told", error=problem)
        self.problem = problem

    async def _load_groups(self, groups: Sequence[GroupKey]) -> None:
        """Load the local keys of these groups, those of many in a call."""
        rows: list[Stored] = []
        for group in groups:
            after: OffsetKey | None = None
            while page := self._store.first(SLICE_ROWS, prefix=group_prefix(group), after=after):
                rows += page
                after = page[-1].key
                if len(rows) >= LOAD_KEYS:
                    await self._load(rows)
                    rows = []
                await others()
        await self._load(rows)

    async def _compare(self, until: float) -> None:
        """Go on with a comparison, if there is one, until this monotonic time."""
        while self.comparing and self._clocks.monotonic() < until:
            began = self._clocks.monotonic()
            page = await self._store.page(LOAD_KEYS, after=self._after)
            await self._load(page)
            if len(page) < LOAD_KEYS:
                self.comparing = False
                log.info("changed_elsewhere.compared", keys=self._store.keys)
                return
            self._after = page[-1].key
            await anyio.sleep((self._clocks.monotonic() - began) * REST)

    async def _expire(self, until: float) -> None:
        """Look at groups that expired elsewhere, until this monotonic time."""
        while self._expired and self._clocks.monotonic() < until:
            group = next(iter(self._expired))
            await self._expiry.look_at(group)
            del self._expired[group]

    async def _load(self, rows: Sequence[Stored]) -> None:
        """Load the keys for which the Meta Service's record stands. The others need no place in memory."""
        if not rows:
            return
        held = await self._meta.get([key for key, _, _ in rows])
        stands: list[OffsetKey] = []
        for key, record, _ in rows:
            found = held.get(key, record)
            if found != record and meet(found, record) == found:
                stands.append(key)
            elif record.live and not found.live:
                self._expired[key.group_key] = None
        if stands:
            await self._loader.load_keys(stands)
