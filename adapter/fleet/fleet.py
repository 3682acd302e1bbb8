"""A fleet: the adapters of the settings, followed, and their groups as those of one.

    async with Fleet.open(section) as fleet:
        page = await fleet.groups(order=lag_pb.LAG, page_size=50)

All is kept in memory, and nothing is asked of an adapter for a page but shards of groups that several adapters have. Every method
is of one event loop. Memory: what `table`, `history` and `shards` say, each bounded by the settings.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic
from typing import Protocol, Self

import anyio
import anyio.to_thread
import grpc.aio
import structlog

from adapter.errors import OverloadedError
from adapter.fleet.discovery import Resolve, UnresolvedError, addresses_of, resolve
from adapter.fleet.history import History
from adapter.fleet.link import AdapterLink, NotUnderstoodError, why
from adapter.fleet.merging import Told, merge, sums
from adapter.fleet.section import DNS, FleetSection
from adapter.fleet.shards import ShardsCache
from adapter.fleet.table import GroupTable, Sorting
from adapter.fleet.views import AdapterView, Change, GroupPage, GroupShards, GroupView, Health, Key
from adapter.rpc import lag_pb
from adapter.runtime.clocks import wall_ms
from adapter.runtime.settings.certificates import PemFiles, read_client_files
from adapter.runtime.settings.reading import soon
from adapter.runtime.settings.renewed_files import renewed_client_files
from adapter.runtime.settings.secret_files import read_token
from adapter.runtime.slices import in_slices

log = structlog.get_logger(__name__)

WATCHERS_MAX = 1_000
MAX_PAGE = 10_000  # groups
NAMED_MAX = 1_000  # groups in one Change
MERGERS = 8  # groups whose shards are asked for at the same time
RESOLVE_S = 5.0  # for an answer of DNS
FILES_S = 5.0  # between two reads of the TLS files, while an adapter does not answer or a new one is found

_URGENCY = {health: number for number, health in enumerate(Health)}


class FleetApi(Protocol):
    """What a fleet answers; `Fleet` implements it. Tests of pages may bring their own."""

    @property
    def adapters(self) -> Sequence[AdapterView]:
        """All adapters, what is wrong first, then by name."""
        ...

    @property
    def problems(self) -> Sequence[str]:
        """Entries of the settings that lead to no adapter now, and why."""
        ...

    async def groups(
        self,
        filter: lag_pb.LagFilter | None = None,  # noqa: A002 - named as in ListGroupLag
        order: lag_pb.LagOrder.ValueType = lag_pb.WORST,
        page_size: int = 50,
        offset: int = 0,
        *,
        text: str = "",
    ) -> GroupPage:
        """Groups that match, in an order, `offset` skipped; at most 10,000. `text` is a part of namespace/group, in any case.

        An order of numbers has unknown values last, and equal ones in key order. Sorts in a thread, when something changed.
        """
        ...

    async def group(self, namespace: str, group: str) -> GroupShards | None:
        """A group with its shards from all adapters that have it; None if no adapter has it now. Asks within `timeout_ms`."""
        ...

    def changes(self, pause_s: float = 0.5) -> AsyncGenerator[Change, None]:
        """Yield what changed, at most once per `pause_s` seconds; the first one at once, with `many`.

        Raises OverloadedError when there are 1,000 callers already.
        """
        ...


class Fleet:
    """The adapters of the settings. Made by `open`; implements FleetApi, see there."""

    def __init__(
        self, section: FleetSection, files: PemFiles | None, token: str, resolving: Resolve, group: asyncio.TaskGroup
    ) -> None:
        self._section = section
        self._group = group
        self._files = files
        self._files_read_at = monotonic()
        self._token = token
        self._resolve = resolving
        self._timeout_s = section.timeout_ms / 1000
        self._table = GroupTable(section.max_groups)
        self._history = History(section.history_groups)
        self._shards = ShardsCache()
        self._links: dict[int, AdapterLink] = {}  # by slot
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._problems: dict[str, str] = {}  # entry -> why it leads to no adapter
        self._named: dict[str, Sequence[str]] = {}  # entry of a name in DNS -> the addresses that it had last
        self._taking = asyncio.Lock()  # else two entries would begin a link to the same address at once
        self._settled: set[str] = set()  # entries that were resolved at least once
        self._watchers: set[_Watcher] = set()
        self._sorting: Sorting | None = None
        self._sorting_lock = anyio.Lock()
        self._to_merge = asyncio.Event()
        self._failed: set[Key] = set()  # groups whose shards could not all be had
        self._comparisons = 0  # that have begun

    @classmethod
    @asynccontextmanager
    async def open(cls, section: FleetSection, *, resolving: Resolve = resolve) -> AsyncIterator[Self]:
        """Follow the adapters until the end of the context. Raises ConfigError for files that cannot be used."""
        files = read_client_files(section.tls, "fleet.tls") if section.tls else None
        token = _token_of(section)
        failure: Exception | None = None
        async with asyncio.TaskGroup() as tasks:
            fleet = cls(section, files, token, resolving, tasks)
            running: Sequence[asyncio.Task[None]] = ()
            try:
                running = await fleet._begin_tasks()
                yield fleet
            except Exception as error:  # noqa: BLE001 - raised below, as it is: a task group would wrap it
                failure = error
            finally:
                for task in (*running, *fleet._tasks.values()):
                    task.cancel()
        if failure:
            raise failure

    async def _begin_tasks(self) -> Sequence[asyncio.Task[None]]:
        begin, names = self._group.create_task, []
        for entry in self._section.adapters:
            if entry.startswith(DNS):
                names.append(entry)
            else:
                await self._begin(entry, entry)
                self._settled.add(entry)
        return [
            *(begin(self._discover(name), name=f"fleet.discovery {name}") for name in names),
            begin(self._sample(), name="fleet.history"),
            *(begin(self._merge_changed(), name="fleet.merging") for _ in range(MERGERS)),
        ]

    @property
    def section(self) -> FleetSection:
        """The settings."""
        return self._section

    @property
    def adapters(self) -> Sequence[AdapterView]:
        """All adapters, what is wrong first, then by name."""
        views = [self._view(link) for link in self._links.values()]
        return sorted(views, key=lambda view: (_URGENCY[view.health], view.lag_known, view.name, view.address))

    @property
    def problems(self) -> Sequence[str]:
        """Entries of the settings that lead to no adapter now, and why."""
        return list(self._problems.values())

    def not_settled(self) -> Sequence[str]:
        """Entries whose adapters were never known."""
        return [entry for entry in self._section.adapters if entry not in self._settled]

    async def groups(
        self,
        filter: lag_pb.LagFilter | None = None,  # noqa: A002 - as in FleetApi
        order: lag_pb.LagOrder.ValueType = lag_pb.WORST,
        page_size: int = 50,
        offset: int = 0,
        *,
        text: str = "",
    ) -> GroupPage:
        """As FleetApi says."""
        chosen = filter or lag_pb.LagFilter()
        async with self._sorting_lock:  # a second caller takes what the first one sorted
            sorting = self._sorting
            if sorting is None or sorting.version != self._table.version:
                sorting = self._table.sorting()
                sorting.follow(self._sorting)
                self._sorting = sorting
            found = await anyio.to_thread.run_sync(sorting.page, chosen, text, order, min(page_size, MAX_PAGE), offset)
        await self._compare([key for key in found.keys if key in self._table.unmerged])
        views: list[GroupView] = []
        async for keys in in_slices(found.keys):
            views += (view for view in map(self._group_view, keys) if view)
        return GroupPage(views, found.matching, self._table.groups, self._table.left_out, found.lag, found.statuses, found.stale)

    async def group(self, namespace: str, group: str, *, max_age_s: float = inf) -> GroupShards | None:
        """As FleetApi says. Shards that were asked for longer than `max_age_s` seconds ago are asked for again."""
        key = namespace, group
        if not self._table.owners(key):
            return None
        return await self._compared(key, max_age_s)

    async def changes(self, pause_s: float = 0.5) -> AsyncGenerator[Change, None]:
        """As FleetApi says."""
        if len(self._watchers) >= WATCHERS_MAX:
            raise OverloadedError(f"there are {WATCHERS_MAX:,} who wait for changes already")
        watcher = _Watcher()
        self._watchers.add(watcher)
        try:
            while True:
                await watcher.event.wait()
                yield watcher.take()
                await asyncio.sleep(pause_s)
        finally:
            self._watchers.discard(watcher)

    # What there is

    async def _discover(self, entry: str) -> None:
        """Keep one link for each address of a name in DNS, until cancelled."""
        left_at: dict[str, float] = {}
        links: dict[str, AdapterLink] = {}
        while True:
            try:
                addresses = await addresses_of(entry, self._resolve, RESOLVE_S)
            except UnresolvedError as error:
                # Its adapters stay: that a name is not answered does not mean that they are gone.
                self._problem(entry, str(error))
            else:
                self._settled.add(entry)
                self._problem(entry, "" if addresses else f"{entry}: has no address")
                async with self._taking:
                    await self._take_addresses(entry, addresses, links, left_at)
            await asyncio.sleep(self._section.resolve_ms / 1000)

    async def _take_addresses(
        self, entry: str, addresses: Sequence[str], links: dict[str, AdapterLink], left_at: dict[str, float]
    ) -> None:
        now = asyncio.get_running_loop().time()
        self._named[entry] = addresses
        for address in addresses:
            # An address that another entry has as well has one link.
            link = next((link for link in self._links.values() if link.view.address == address), None)
            if link is None:
                links[address] = await self._begin(address, entry)
            elif link.left:
                link.come_back()
        for address in [*links]:
            if any(address in named for named in self._named.values()):
                left_at.pop(address, None)
            elif not links[address].left:
                left_at[address] = now
                links[address].leave()
            elif now - left_at[address] >= self._section.forget_ms / 1000:
                del left_at[address]
                await self._end(links.pop(address))

    async def _begin(self, address: str, entry: str) -> AdapterLink:
        slot = next(number for number in range(len(self._tasks) + 1) if number not in self._tasks)
        self._table.open(slot)
        made: asyncio.Future[AdapterLink] = asyncio.get_running_loop().create_future()
        self._tasks[slot] = self._group.create_task(self._run_link(address, entry, slot, made), name=f"fleet.adapter {address}")
        link = await made
        self._links[slot] = link
        self._told(adapters=True)
        return link

    async def _run_link(self, address: str, entry: str, slot: int, made: "asyncio.Future[AdapterLink]") -> None:
        section, table = self._section, self._table
        async with AdapterLink.open(
            address,
            entry,
            slot,
            section,
            table,
            self._newest_files,
            self._token,
            self._told,
            lambda: soon(partial(_token_of, section)),
        ) as link:
            made.set_result(link)
            await link.run()

    def _newest_files(self) -> PemFiles | None:
        """The TLS files as they are now, or were when they could be used last: certificates are renewed while this runs."""
        if self._section.tls and monotonic() - self._files_read_at > FILES_S:
            self._files_read_at = monotonic()
            self._files = renewed_client_files(self._section.tls, "fleet.tls", self._files)
        return self._files

    async def _end(self, link: AdapterLink) -> None:
        """Forget an adapter that is gone for good, with all that it said."""
        slot = link.slot
        self._tasks[slot].cancel()
        await asyncio.wait([self._tasks[slot]])
        async for keys in in_slices(self._table.keys_of(slot)):
            for key in keys:
                self._table.remove(slot, key)
        self._shards.forget(slot)
        self._table.close(slot)
        del self._links[slot], self._tasks[slot]
        log.info("fleet.forgotten", address=link.view.address, help="its name has not had this address for forget_ms")
        self._told(adapters=True)

    def _problem(self, entry: str, problem: str) -> None:
        if problem == self._problems.get(entry, ""):
            return
        if problem:
            self._problems[entry] = problem
            log.warning("fleet.unresolved", problem=problem)
        else:
            del self._problems[entry]
        self._told(adapters=True)

    # What it comes to

    def _told(self, *, adapters: bool) -> None:
        """Wake those who wait for changes, and those who compare shards."""
        if self._table.unmerged:
            self._to_merge.set()
        changed, self._table.changed = self._table.changed, set()
        if changed or adapters:
            for watcher in self._watchers:
                watcher.put(changed, adapters=adapters)

    async def _merge_changed(self) -> None:
        """Compare the shards of groups that several adapters have and that changed, one group after the other."""
        unmerged = self._table.unmerged
        while True:
            if not unmerged:
                self._to_merge.clear()
                await self._to_merge.wait()
            elif (key := next(iter(unmerged), None)) is not None:
                await self._compared(key)
                self._told(adapters=False)
                await asyncio.sleep(0)

    async def _compare(self, keys: Sequence[Key]) -> None:
        """Compare the shards of these groups now, as far as that is possible within the timeout."""
        limit = asyncio.Semaphore(MERGERS)

        async def one(key: Key) -> None:
            async with limit:
                await self._compared(key)

        if keys:
            # Not anyio's: a cancelled call of grpc.aio ends with a CancelledError of its own, which no scope of anyio takes.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    await asyncio.gather(*map(one, keys))

    async def _compared(self, key: Key, max_age_s: float = inf) -> GroupShards | None:
        """The shards of a group, each once; what a group comes to that several adapters have is set by them."""
        owners = self._table.owners(key)
        said = {slot: words for slot in owners if (words := self._table.told(slot, key)) is not None}
        links = {slot: self._links[slot] for slot in owners}  # now: an adapter may be forgotten while others are asked
        self._table.unmerged.pop(key, None)
        self._comparisons = begun = self._comparisons + 1
        missing: dict[str, str] = {}
        try:
            told = await asyncio.gather(*(self._told_by(links[slot], key, said[slot], missing, max_age_s) for slot in owners))
        except BaseException:
            self._table.unmerged[key] = None  # still to do
            raise
        rows = merge(one for one in told if one)
        if len(owners) > 1 and self._table.owners(key) == owners:
            if missing:
                self._failed.add(key)
                self._keep_inexact(key, owners, begun)
            else:
                parts = {links[slot].view.address: lag_pb.GroupLag.FromString(said[slot]) for slot in owners}
                since = min((row.stale_since_ms for row in rows if row.stale_since_ms), default=0)
                self._table.set_merged(key, sums(*key, rows, parts), since, exact=True, begun=begun)
        view = self._group_view(key)
        return GroupShards(view, rows, missing) if view else None

    def _keep_inexact(self, key: Key, owners: Sequence[int], begun: int) -> None:
        """Mark that a part of a group cannot be had: what was found out before stays, and is not live."""
        if (known := self._table.get(key)) is None:
            return
        lag, _, exact = known
        since = [self._table.stale_since(slot) for slot in owners]
        self._table.set_merged(key, lag, min((one for one in since if one), default=wall_ms()), exact=exact, begun=begun)

    async def _told_by(self, link: AdapterLink, key: Key, said: bytes, missing: dict[str, str], max_age_s: float) -> Told | None:
        """The shards of a group that an adapter has: as they were got before, while nothing changed; else asked now."""
        slot, address, since = link.slot, link.view.address, self._table.stale_since(link.slot)
        if (kept := self._shards.get(slot, key, said, max_age_s)) is not None:
            return Told(address, kept.shards, since, kept.evaluated_at_ms)
        reason = link.view.error
        if not link.left and link.view.health is not Health.AWAY:
            try:
                reply = await link.shards(key)
            except (grpc.aio.AioRpcError, NotUnderstoodError) as error:
                reason, since = why(error), since or wall_ms()
            else:
                self._shards.put(slot, key, said, reply)
                return Told(address, reply.shards, since, reply.evaluated_at_ms)
        if (last := self._shards.last(slot, key)) is not None:
            return Told(address, last.shards, since, last.evaluated_at_ms)
        missing[address] = reason
        return None

    def _group_view(self, key: Key) -> GroupView | None:
        known = self._table.get(key)
        if known is None:
            return None
        lag, since, exact = known
        row = self._table.row_of(key)
        owners = [link.view.address for slot in self._table.owners(key) if (link := self._links.get(slot))]
        return GroupView(lag, owners, since, exact, () if row is None else self._history.of(row))

    def _view(self, link: AdapterLink) -> AdapterView:
        slot = link.slot
        return replace(link.view, groups=self._table.count_of(slot), left_out_groups=self._table.left_out_of(slot))

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(self._section.history_ms / 1000)
            self._history.sample(*self._table.take_samples())
            failed, self._failed = self._failed, set()
            self._table.unmerged.update(dict.fromkeys(failed))
            self._told(adapters=False)


def _token_of(section: FleetSection) -> str:
    """The token of the adapters; empty without a file. Raises ConfigError."""
    return read_token(section.token_file, "fleet.token_file") if section.token_file else ""


class _Watcher:
    """What one caller of `changes` has not taken yet."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.event.set()
        self._groups: set[Key] = set()
        self._adapters = True
        self._many = True

    def put(self, groups: set[Key], *, adapters: bool) -> None:
        self._adapters |= adapters
        if len(self._groups) + len(groups) > NAMED_MAX:
            self._many = True
        if not self._many:
            self._groups |= groups
        self.event.set()

    def take(self) -> Change:
        change = Change(self._adapters, frozenset(() if self._many else self._groups), self._many)
        self._groups, self._adapters, self._many = set(), False, False
        self.event.clear()
        return change
