"""The client of the Meta Service that the sidecar uses, for servers with and without epochs.

It never retries: the flusher and the recovery do, since by then they may have newer values to send.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from operator import itemgetter
from random import Random
from typing import NamedTuple, Protocol, TypeVar

import grpc
import grpc.aio
import structlog

from adapter.errors import AdapterError, MetaUnavailableError, RefusedError, TimedOutError
from adapter.meta.channel import CHANNEL_OPTIONS
from adapter.meta.config import MetaSection
from adapter.meta.endpoints import Endpoints, Opening, OtherKindError
from adapter.meta.group_saves import READS_AT_ONCE, GroupSaves, all_of
from adapter.meta.kinds import ServerKind
from adapter.meta.metadata import GrpcMetadata, MetadataClient
from adapter.meta.packed import (
    Chunk,
    Known,
    Outcomes,
    SaveLimits,
    all_news,
    differing_of,
    known_request,
    merge_outcomes,
    merge_request,
    news,
)
from adapter.meta.save_window import SaveWindow
from adapter.meta.slash_names import name_problem
from adapter.meta.store_marks import ServerReports
from adapter.meta.wire import group_of, outcomes_of, row_of, save_request
from adapter.model.records import (
    MAX_ENTRIES,
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
from adapter.rpc import meta_grpc, meta_pb
from adapter.runtime.channels import RetiredChannels, close_channels, open_channel_with
from adapter.runtime.clocks import wall_ms
from adapter.runtime.settings.certificates import PemFiles, read_client_files
from adapter.runtime.settings.live import NOTHING_NEW, Prepared
from adapter.runtime.slices import SLICE, in_slices, others
from adapter.runtime.telemetry.logs import harmless

R = TypeVar("R")

Entry = tuple[OffsetKey, OffsetRecord]
Page = tuple[list[Entry], bytes]

PAGE_ROWS = 10_000  # rows of a page that no commit waits for
LOAD_ROWS = 2_000  # rows of a page that a commit waits for
MIN_ROWS = 50  # smallest page, for a slow server
KEYS_AT_ONCE, GROUPS_AT_ONCE = 10_000, 1_000  # named in one request

LEAST_ENTRIES = 100  # of a save after one without an answer: more often the server was away than slow
FIRST_GROUPS, MAX_GROUPS = 16, 4_000  # groups of the first save, and of any save, to a server that writes one after the other

KIND_CHANGES = 4  # a read fails after the server changed so often between with and without epochs

RequestedGroups = Sequence[tuple[GroupKey, Sequence[str]]]  # no shards means the whole group


class GroupsPage(NamedTuple):
    """One page of records, group by group in key order.

    `left`: the groups that are not complete; the first of them continues after the token `after`.
    """

    entries: list[Entry]
    left: Sequence[GroupKey]
    after: bytes


log = structlog.get_logger(__name__)

order = Random()  # noqa: S311 - shuffles endpoints, keeps no secret


class Telling(list[SaveEntry]):
    """The entries of a save that an operator asked for: other adapters are told of their groups."""


class MetaClient(Protocol):
    """The calls of the Meta Service that the adapter needs.

    Every method raises MetaUnavailableError if the Meta Service does not answer. `patient` chooses the deadline of a read:
    `timeout_ms`, or the shorter `load_timeout_ms` where a commit waits for the result.
    """

    @property
    def available(self) -> bool:
        """False from a call that was not answered, or that no endpoint let in, until one is answered.

        An overloaded server counts as available.
        """

    @property
    def endpoint(self) -> str:
        """The endpoint that the next call tries first."""

    @property
    def kind(self) -> ServerKind:
        """Of the current server; another one after a failover to a server of the other kind."""

    @property
    def server_reports(self) -> ServerReports:
        """What client and server report to each other besides offsets: stores, revisions, clocks."""

    @property
    def limits(self) -> SaveLimits:
        """What the next save may carry, by what the server needed for the last ones."""

    @property
    def metadata(self) -> MetadataClient | None:
        """The metadata beside the offsets; None where the server keeps none."""

    async def save(self, entries: Sequence[SaveEntry]) -> Sequence[SaveOutcome]:
        """Merge entries; one outcome each, in order. A Chunk may be merged in parts; see docs/discussion.md.

        Other adapters are told of the groups of a Telling.
        """

    async def report_store(self, store: StoreReport, replaces: bytes = b"") -> KnownStore | None:
        """Report the local store that is open; return what the server knew before.

        `replaces`: the `store_id` of the store that this one replaces; empty if it replaces none.
        """

    async def changed_groups(self, after: Sequence[StoreMark]) -> ChangedGroups:
        """The groups that were changed other than by commits behind the places of a former call; without places, a gap."""

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        """Read the records of these keys, tombstones included. Absent keys are left out."""

    async def differing(self, rows: Sequence[tuple[bytes, bytes]]) -> dict[OffsetKey, OffsetRecord | None] | None:
        """Of encoded keys and records: what stands where something else does than the record (None: nothing).

        None instead of all: this server does not compare; `get` what it has.
        """

    async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
        """Read a page of these groups' records, tombstones included. No group may be named twice.

        Pass `left` and `after` of one page to read the next one. After a TimedOutError, the same call asks for a smaller page.
        """

    async def news_page(self, groups: Sequence[GroupKey], after: bytes, known: Known) -> GroupsPage:
        """As `groups_page`, but rows that are `known` may be left out of `entries`."""

    async def list_page(self, namespace: str, group: str, size: int, token: bytes) -> Page:
        """Read a page of all records, and the token of the next page (empty after the last one)."""

    async def expire(self, group: GroupKey, before_ms: int, now_ms: int) -> int:
        """Expire a group unless it has a commit at or after `before_ms`. Returns that commit's time, else 0 (Unix ms)."""

    async def delete(self, group: GroupKey, shards: Sequence[str]) -> None:
        """Delete shards of a group without naming an epoch; for servers without epochs."""


class GrpcMetaClient:
    """The client over gRPC. It calls one endpoint until it fails, then the next one."""

    def __init__(
        self,
        section: MetaSection,
        channels: Mapping[str, grpc.aio.Channel],
        channel: Opening | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`channel` opens a channel to a leader that is none of the endpoints; without it, none is followed."""
        self._cluster = section.cluster
        self._timeout_s = section.timeout_ms / 1000
        self._load_timeout_s = section.load_timeout_ms / 1000
        self._clock = clock
        self._retired = RetiredChannels(2 * max(self._timeout_s, self._load_timeout_s))  # a call, and the question before it
        self._endpoints = Endpoints(section.endpoints, channels, channel, self._retired.add)
        self._metadata = GrpcMetadata(self._endpoints, section.cluster, self._timeout_s)
        self._by_offset = SaveWindow(self._timeout_s, first=MAX_ENTRIES, most=MAX_ENTRIES, least=LEAST_ENTRIES)
        self.group_window = SaveWindow(self._timeout_s, first=FIRST_GROUPS, most=MAX_GROUPS)
        self._group_saves = GroupSaves(self._endpoints, section.cluster, self._timeout_s, self.group_window, clock)
        self._patient_pages, self._load_pages = _PageSize(PAGE_ROWS), _PageSize(LOAD_ROWS)
        self._reported_unanswered = -1  # `Endpoints.unanswered` at the last report of the local store
        self._names = frozenset(section.endpoints)
        self._files: PemFiles | None = None
        self._channels = channels
        self._told_names = False  # that rows are left out

    @classmethod
    @asynccontextmanager
    async def open(cls, section: MetaSection, *, spread: bool = False) -> AsyncIterator["GrpcMetaClient"]:
        """Open a client over new channels. Connects on first use. Raises ConfigError if a TLS file cannot be read.

        With `spread` the endpoints are tried in random order, so that a fleet with one configuration uses all of them.
        """
        if spread:
            section = section.model_copy(update={"endpoints": _shuffled(section.endpoints)})
        files = _files_of(section)
        channel = _opening(files)
        client = cls(section, {name: channel(name) for name in section.endpoints}, channel)
        client._files = files
        try:
            yield client
        finally:
            await client._retired.close()
            await close_channels(client._open_channels())

    def prepare(self, section: MetaSection) -> Prepared:
        """Read the TLS files again, for the endpoints of these settings. Raises ConfigError.

        Taken where endpoints or files are others: calls then use new channels. Those under way end on the old ones, by their
        deadline. With none of the former endpoints left it is another Meta Service: all local records are compared with it.
        """
        files = _files_of(section)
        names = frozenset(section.endpoints)
        if files == self._files and names == self._names:
            return NOTHING_NEW

        def apply() -> None:
            old = self._open_channels()
            channel = _opening(files)
            self._channels = {name: channel(name) for name in _shuffled(section.endpoints)}
            self._endpoints.replace(tuple(self._channels), self._channels, channel)
            if names.isdisjoint(self._names):
                self.server_reports.record_move()
            self._files, self._names = files, names
            self._retired.add(old)

        return Prepared(apply, ["meta.tls"] if files != self._files else ())

    def _open_channels(self) -> list[grpc.aio.Channel]:
        return [*self._channels.values(), *self.named_leaders.values()]

    @property
    def available(self) -> bool:
        """False from a call that failed until one succeeds."""
        return self._endpoints.available

    @property
    def endpoint(self) -> str:
        """The endpoint that the next call tries first."""
        return self._endpoints.current

    @property
    def kind(self) -> ServerKind:
        """Of the current server."""
        return self._endpoints.kind

    @property
    def server_reports(self) -> ServerReports:
        """What client and server report to each other besides offsets."""
        return self._endpoints.server_reports

    @property
    def metadata(self) -> MetadataClient | None:
        """The metadata beside the offsets; RobustMQ's is another."""
        return self._metadata if self.kind.keeps_metadata else None

    @property
    def named_leaders(self) -> Mapping[str, grpc.aio.Channel]:
        """The channels to leaders that are none of the endpoints."""
        return self._endpoints.opened

    @property
    def limits(self) -> SaveLimits:
        """What the next save may carry."""
        if self.kind.merges:
            window, name = self._by_offset, len(self._cluster.encode()) + 1
            return SaveLimits(offsets=window.size, cluster_bytes=name, seconds_per_offset=window.seconds_each)
        window = self.group_window
        return SaveLimits(offsets=MAX_ENTRIES, groups=window.size, seconds_per_group=window.seconds_each)

    async def save(self, entries: Sequence[SaveEntry]) -> Sequence[SaveOutcome]:
        """Merge entries; one outcome each, in order.

        A Chunk goes to a server with epochs in packed form and may be merged in parts; other entries go as one request. A server
        without epochs overwrites, or compares and sets where an entry has `expected_offset`; see `group_saves`.

        The request carries the report of the local store, except after an unanswered call: the server may have been restarted
        since, and must first say in answer to `report_store` what it still remembers of this store.

        Raises MetaUnavailableError, with `retry_after_s` set if the server is overloaded. Whether the save was applied is then
        unknown; sending it again is safe. Raises its subclass OtherKindError if nothing was sent because `kind` has
        changed since the caller read it.
        """
        kind = self.kind  # read before the first await: the caller has just checked it
        if not kind.merges:
            if not all(kind.keeps(entry.record) for entry in entries):
                raise RefusedError(f"{self.endpoint}: stores only offsets and would store a tombstone as offset 0")
            return await self._group_saves.save(entries)
        if isinstance(entries, Chunk):
            return await self._merge(entries)
        request = await save_request(self._cluster, entries)
        request.tell = isinstance(entries, Telling)
        self._attach_report(request)
        reply = await self._call(
            lambda stub: stub.SaveOffsetData(request, timeout=self._timeout_s), timeout_s=self._timeout_s, epochs=True
        )
        if entries:
            self._endpoints.set_kind(epochs=bool(reply.results))
        try:
            return await outcomes_of(entries, reply)
        except MetaUnavailableError as error:
            raise MetaUnavailableError(f"{self.endpoint}: {error}") from error

    async def _merge(self, chunk: Chunk) -> Outcomes:
        request = await merge_request(self._cluster, chunk)
        self._attach_report(request)
        started = self._clock()
        try:
            reply = await self._call(
                lambda stub: stub.MergeOffsetData(request, timeout=self._timeout_s), timeout_s=self._timeout_s, epochs=True
            )
        except TimedOutError:
            self._by_offset.timed_out(len(chunk))
            raise
        self._by_offset.answered(len(chunk), self._clock() - started)
        try:
            return await merge_outcomes(chunk, reply)
        except MetaUnavailableError as error:
            raise MetaUnavailableError(f"{self.endpoint}: {error}") from error

    async def report_store(self, store: StoreReport, replaces: bytes = b"") -> KnownStore | None:
        """Report the local store that is open; return what the server knew before.

        Raises MetaUnavailableError, RefusedError, or its subclass UnknownCallError where the server does not record stores
        (RobustMQ).
        """
        request = meta_pb.ReportStoreRequest(
            cluster_name=self._cluster, store=meta_pb.LocalStore(**store._asdict()), replaces=replaces, now_ms=wall_ms()
        )
        unanswered = self._endpoints.unanswered
        reply = await self._call(
            lambda stub: stub.ReportStore(request, timeout=self._timeout_s), timeout_s=self._timeout_s, needed=False
        )
        self._reported_unanswered = unanswered
        if not reply.HasField("known"):
            return None
        known = reply.known
        return KnownStore(StoreReport(known.broker, known.path, known.store_id, known.flushed_seq), reply.known_at_ms)

    async def changed_groups(self, after: Sequence[StoreMark]) -> ChangedGroups:
        """The groups that were changed other than by commits behind the places of a former call; without places, a gap.

        Raises MetaUnavailableError, RefusedError, or its subclass UnknownCallError where the server does not note them (RobustMQ,
        or an older one).
        """
        places = [
            meta_pb.StoreMark(name=place.name, store_id=place.store_id, incarnation=place.incarnation, revision=place.revision)
            for place in after
        ]
        request = meta_pb.ListChangedGroupsRequest(cluster_name=self._cluster, after=places)
        reply = await self._call(
            lambda stub: stub.ListChangedGroups(request, timeout=self._timeout_s), timeout_s=self._timeout_s, needed=False
        )
        groups: list[GroupKey] = []
        async for some in in_slices(reply.groups):
            groups += [group for one in some if (group := group_of(one.namespace, one.group))]
        marks = [StoreMark(mark.name, mark.store_id, mark.incarnation, mark.revision) for mark in reply.places]
        return ChangedGroups(groups, marks, reply.gap, harmless(reply.unanswered))

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        """Read the records of these keys, tombstones included. `keys` must be sorted or at least grouped by group.

        Without keys it only checks that a server answers. Continues with smaller pages when the server becomes slow; raises
        TimedOutError if even the first page takes too long.
        """
        if not keys:
            await self._endpoints.probe(self._timeout_s)
            return {}
        found: dict[OffsetKey, OffsetRecord] = {}
        progress = False
        for at in range(0, len(keys), KEYS_AT_ONCE):
            named = keys[at : at + KEYS_AT_ONCE]
            left: RequestedGroups = [
                (GroupKey(*group), [key.shard for key in members]) for group, members in groupby(named, itemgetter(0, 1))
            ]
            wanted, after = set(named), b""
            while left:
                try:
                    if self.kind.reads_pages or after:
                        entries, left, after = await self._page(left, after, patient=patient)
                    else:
                        entries, left = await self._some_groups(left, patient=patient)
                except TimedOutError:
                    if not progress:
                        raise
                    progress = False
                else:
                    progress = True
                    found.update((key, record) for key, record in entries if key in wanted)
        return found

    async def differing(self, rows: Sequence[tuple[bytes, bytes]]) -> dict[OffsetKey, OffsetRecord | None] | None:
        """Compare them there, in columns. A timeout is raised; the next call names fewer rows at a time."""
        found: dict[OffsetKey, OffsetRecord | None] = {}
        at, size = 0, self._patient_pages
        with contextlib.suppress(OtherKindError):
            while self.kind.reads_pages:
                if at >= len(rows):
                    return found
                some = rows[at : at + size.rows]
                try:
                    reply = await self._compare(known_request(self._cluster, some))
                except TimedOutError:
                    size.halve()
                    raise
                if not reply.compared:
                    return None
                try:
                    found |= await differing_of(reply, some)
                except MetaUnavailableError as error:
                    raise MetaUnavailableError(f"{self.endpoint}: {error}") from error
                size.grow()
                at += reply.compared
        return None

    def _compare(self, request: meta_pb.BatchGetOffsetDataRequest) -> Awaitable[meta_pb.BatchGetOffsetDataReply]:
        return self._call(
            lambda stub: stub.BatchGetOffsetData(request, timeout=self._timeout_s), timeout_s=self._timeout_s, epochs=True
        )

    async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
        """Read a page of these groups' records from the token `after` on, tombstones included.

        Raises TimedOutError if that took too long. The same call then asks for a smaller page.
        """
        if not groups:
            return GroupsPage([], (), b"")
        return await self._groups_page(groups, after, patient=patient, known=all_news)

    async def news_page(self, groups: Sequence[GroupKey], after: bytes, known: Known) -> GroupsPage:
        """Of columns, which a server sends of groups in key order if it has them, only rows that are not known become objects."""
        return await self._groups_page(groups, after, patient=True, known=known)

    async def _groups_page(self, groups: Sequence[GroupKey], after: bytes, *, patient: bool, known: Known) -> GroupsPage:
        some = groups[:GROUPS_AT_ONCE]
        entries, left, after = await self._page([(group, ()) for group in some], after, patient=patient, known=known)
        return GroupsPage(entries, groups[len(some) - len(left) :], after)

    async def list_page(self, namespace: str, group: str, size: int, token: bytes) -> Page:
        """Read a page of all records, and the token of the next page (empty after the last one)."""
        request = meta_pb.ListOffsetDataRequest(
            cluster_name=self._cluster, namespace=namespace, group=group, page_size=size, page_token=token
        )
        reply = await self._call(lambda stub: stub.ListOffsetData(request, timeout=self._timeout_s), timeout_s=self._timeout_s)
        keys = [OffsetKey(entry.offset.namespace, entry.group, entry.offset.shard_name) for entry in reply.entries]
        return self._rows(keys, [entry.offset for entry in reply.entries]), reply.next_page_token

    async def expire(self, group: GroupKey, before_ms: int, now_ms: int) -> int:
        """Expire a group unless it has a commit at or after `before_ms`. Returns that commit's time, else 0 (Unix ms)."""
        request = meta_pb.ExpireOffsetDataRequest(
            cluster_name=self._cluster, namespace=group.namespace, group=group.group, before_ms=before_ms, now_ms=now_ms
        )
        reply = await self._call(lambda stub: stub.ExpireOffsetData(request, timeout=self._timeout_s), timeout_s=self._timeout_s)
        return reply.newest_ms

    async def delete(self, group: GroupKey, shards: Sequence[str]) -> None:
        """Delete shards of a group without naming an epoch; for servers without epochs."""
        request = meta_pb.DeleteOffsetDataRequest(
            tenant=group.namespace, namespace=group.namespace, group=group.group, shard_names=shards, cluster_name=self._cluster
        )
        await self._call(lambda stub: stub.DeleteOffsetData(request, timeout=self._timeout_s), timeout_s=self._timeout_s)

    async def _page(
        self, wanted: RequestedGroups, after: bytes, *, patient: bool, known: Known | None = None
    ) -> tuple[list[Entry], RequestedGroups, bytes]:
        """Read a page by the call that the server supports.

        BatchGetOffsetData exists only on our server. GetOffsetData is RobustMQ's call, and on our server it leaves out
        tombstones.
        """
        timeout_s = self._timeout_s if patient else self._load_timeout_s
        for _ in range(KIND_CHANGES):
            with contextlib.suppress(OtherKindError):
                if self.kind.reads_pages:
                    size = self._patient_pages if patient else self._load_pages
                    return await self._batch_page(wanted, after, size, timeout_s, known)
                found = await self._get_group(wanted[0][0], timeout_s)
                if not self.kind.reads_pages:
                    return found, wanted[1:], b""
        raise MetaUnavailableError(f"{self.endpoint}: its servers change all the time between those with and without epochs")

    async def _some_groups(self, wanted: RequestedGroups, *, patient: bool) -> tuple[list[Entry], RequestedGroups]:
        """Read some groups of a server that has a call for each; returns what is left to be read."""
        pages = await all_of(self._page([part], b"", patient=patient) for part in wanted[:READS_AT_ONCE])
        # One that is not complete, since a server with epochs has come, is read again.
        again = [part for part, (_, left, _) in zip(wanted, pages, strict=False) if left]
        return [entry for entries, _, _ in pages for entry in entries], [*again, *wanted[READS_AT_ONCE:]]

    async def _batch_page(
        self, wanted: RequestedGroups, after: bytes, size: "_PageSize", timeout_s: float, known: Known | None
    ) -> tuple[list[Entry], RequestedGroups, bytes]:
        request = meta_pb.BatchGetOffsetDataRequest(
            cluster_name=self._cluster, page_size=size.rows, page_token=after, as_packed=known is not None
        )
        async for some in in_slices(wanted):
            for group, shards in some:
                request.groups.add(namespace=group.namespace, group=group.group, shard_names=shards)
        try:
            reply = await self._call(
                lambda stub: stub.BatchGetOffsetData(request, timeout=timeout_s), timeout_s=timeout_s, epochs=True
            )
        except TimedOutError:
            size.halve()
            raise
        if not 0 < len(reply.groups) <= len(wanted):
            raise MetaUnavailableError(f"{self.endpoint}: answered with {len(reply.groups)} groups when asked for {len(wanted)}")
        entries: list[Entry] = []
        for (group, _), found in zip(wanted, reply.groups, strict=False):
            rows = found.offsets
            for at in range(0, len(rows), SLICE):
                entries += self._rows_of(group, rows[at : at + SLICE])
                await others()
        if known:
            try:
                entries += await news(reply.packed, self._cluster, {group for group, _ in wanted}, known)
            except MetaUnavailableError as error:
                raise MetaUnavailableError(f"{self.endpoint}: {error}") from error
        left = wanted[len(reply.groups) - bool(reply.next_page_token) :]
        if left:
            size.grow()
        return entries, left, reply.next_page_token

    async def _get_group(self, group: GroupKey, timeout_s: float) -> list[Entry]:
        request = meta_pb.GetOffsetDataRequest(
            tenant=group.namespace, namespace=group.namespace, group=group.group, cluster_name=self._cluster
        )
        if name_problem(group):
            return []  # it would answer with another group's
        reply = await self._endpoints.call(
            lambda stub: stub.GetOffsetData(request, timeout=timeout_s),
            timeout_s=timeout_s,
            epochs=False,
            first=self._group_saves.leader_of(group),
        )
        if any(item.epoch for item in reply.offsets):
            self._endpoints.set_kind(epochs=True)
        return self._rows_of(group, reply.offsets)

    def _rows_of(self, group: GroupKey, items: Sequence[meta_pb.GetOffsetDataReplyOffset]) -> list[Entry]:
        return self._rows([OffsetKey(*group, item.shard_name) for item in items], items)

    def _rows(self, keys: Sequence[OffsetKey], items: Sequence[meta_pb.GetOffsetDataReplyOffset]) -> list[Entry]:
        """The rows of a reply, without those that no adapter takes. Raises MetaUnavailableError for one that cannot be right."""
        try:
            found = [row for key, item in zip(keys, items, strict=True) if (row := row_of(key, item))]
        except MetaUnavailableError as error:
            raise MetaUnavailableError(f"{self.endpoint}: {error}") from error
        if len(found) < len(items) and not self._told_names:
            self._told_names = True
            taken = {key for key, _ in found}
            log.warning(
                "meta.names_left_out",
                group=harmless("/".join(next(key for key in keys if key not in taken)[:2])),
                help="others have stored offsets under names that no adapter takes: over 255 bytes, or with control characters",
            )
        return found

    def _attach_report(self, request: meta_pb.SaveOffsetDataRequest | meta_pb.MergeOffsetDataRequest) -> None:
        request.now_ms = wall_ms()
        if self.server_reports.store and self._reported_unanswered == self._endpoints.unanswered:
            request.store.CopyFrom(meta_pb.LocalStore(**self.server_reports.store()._asdict()))

    async def _call(
        self,
        call: "Callable[[meta_grpc.MetaServiceServiceAsyncStub], Awaitable[R]]",
        *,
        timeout_s: float,
        epochs: bool | None = None,
        needed: bool = True,
    ) -> R:
        return await self._endpoints.call(call, timeout_s=timeout_s, epochs=epochs, needed=needed)


def _shuffled(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(order.sample(names, len(names)))


def _files_of(section: MetaSection) -> PemFiles | None:
    """The TLS files, if there are any. Raises ConfigError."""
    return read_client_files(section.tls, "meta.tls") if section.tls else None


def _opening(files: PemFiles | None) -> Opening:
    return lambda name: open_channel_with(name, files, CHANNEL_OPTIONS)


class _PageSize:
    """The number of rows to request per page. Halved after a timeout, raised slowly after pages that came in time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows = most

    def halve(self) -> None:
        """Call after a page that took too long."""
        self.rows = max(self.rows // 2, MIN_ROWS)

    def grow(self) -> None:
        """Call after a full page in time. It doubles after about 22 of them, so that failed attempts stay rare."""
        self.rows = min(self.rows + self.rows // 32 + 1, self._most)


def failure_of(key: OffsetKey, outcome: SaveOutcome) -> AdapterError:
    """Why an entry is not acknowledged.

    MetaUnavailableError: it is unknown whether it was saved. RefusedError: it was not.
    """
    if outcome.status is Status.UNAVAILABLE:
        return MetaUnavailableError(f"{'/'.join(key)}: the Meta Service did not answer for it: {outcome.message}".rstrip(": "))
    return RefusedError(f"{'/'.join(key)}: the Meta Service refused it: {outcome.status.name} {outcome.message}".rstrip())
