"""The gRPC service of offsets: conversion, validation, errors to status codes. It has no rule about what is stored.

A bad entry of a save gets INVALID in its row and the others are saved: a save carries the consumers of many brokers, and one bad
entry must not affect the others (invariant 10). A request that is bad as a whole gets INVALID_ARGUMENT.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from itertools import islice

from adapter import __version__
from adapter.errors import InvalidInputError, NotReadyError, OverloadedError
from adapter.meta.requests import parse_names
from adapter.meta.wire import add_result, namespace_of, reply_offset, save_entries
from adapter.metaservice import group_reads, scan_replies
from adapter.metaservice.bulk_checks import check, check_packed
from adapter.metaservice.clock_skew import SkewedClocks, check_proposal, shifted_entries, shifted_records
from adapter.metaservice.config import DEFAULT_CLUSTER
from adapter.metaservice.engine import SIZE, Differing, Engine, Overwrite, count_results
from adapter.metaservice.limits import Limits
from adapter.metaservice.metrics import MetaMetrics
from adapter.model.codec import pack_names
from adapter.model.names import check_metadata, check_name, check_topic, name_problem
from adapter.model.paging import (
    DEFAULT_PAGE,
    DEFAULT_SCAN_PAGE,
    MAX_SCAN_PAGE,
    parse_listed,
    parse_page,
    parse_page_token,
    parse_parts,
)
from adapter.model.records import (
    EPOCH_MAX,
    STORE_ID_BYTES,
    GroupKey,
    OffsetKey,
    SaveEntry,
    SaveOutcome,
    Status,
    StoreMark,
    StoreReport,
)
from adapter.rpc import meta_grpc, meta_pb
from adapter.runtime.clocks import wall_ms
from adapter.runtime.serving.large_calls import MAX_BYTES, MAX_NAMED
from adapter.runtime.serving.statuses import Context, answering
from adapter.runtime.slices import SLICE, in_slices, others

PATH_MAX_BYTES = 4096  # Linux's PATH_MAX
NO_ROOM = "the reply has no room for the stored record"
ANSWER_BYTES = 32 * 2**20  # records in the reply to a save or a merge; an adapter accepts messages of up to 64 MiB
IDLE_S = 60.0  # of the reader of a snapshot
MAX_SNAPSHOTS = 4  # that are read at the same time
MAX_PLACES = 1_000  # in a request: one for each Raft group
MAX_SAVED = 25_000  # entries of a save, which blocks the others meanwhile; an adapter sends up to 20,000


class MetaService(meta_grpc.MetaServiceServiceServicer):
    """The gRPC service `meta.service.common.MetaServiceService`; proto/meta_service.proto documents the calls."""

    def __init__(self, engine: Engine, limits: Limits, metrics: MetaMetrics, *, overwrite: bool = False) -> None:
        """`overwrite`: a lower offset without an epoch and a commit time is a rewind."""
        self._engine = engine
        self._bare = Overwrite if overwrite else SaveEntry
        self._limits = limits
        self._metrics = metrics
        self._clocks = SkewedClocks(metrics)
        self._snapshots = 0  # that are being read

    @answering
    async def SaveOffsetData(  # noqa: D102 - documented in the proto, as all RPCs
        self, request: meta_pb.SaveOffsetDataRequest, context: Context
    ) -> meta_pb.SaveOffsetDataReply:
        self._metrics.calls.labels("SaveOffsetData").inc()
        cluster, reported = _cluster(request.cluster_name), _reported(request)
        count = len(request.offsets)
        if count <= MAX_SAVED:  # of more groups not even the entries are counted
            count = sum(len(group.offsets) for group in request.offsets)
        if count > MAX_SAVED:
            raise InvalidInputError(f"offsets: are {count}, over {MAX_SAVED}; send several requests")
        with self._limits.offsets.admit(count):
            return await self._saved(cluster, request, reported)

    async def _saved(
        self, cluster: str, request: meta_pb.SaveOffsetDataRequest, reported: StoreReport | None
    ) -> meta_pb.SaveOffsetDataReply:
        entries: list[SaveEntry] = []
        now_ms = wall_ms()
        made = save_entries(request, now_ms, self._bare)
        newest_ms = 0
        while some := list(islice(made, SLICE)):
            entries += some
            newest_ms = max(newest_ms, *(entry.record.committed_at_ms for entry in some))
            await others()
        shift_ms = self._clocks.correction_ms(newest_ms, request.now_ms, now_ms, request.store.broker)
        if shift_ms is not None:
            entries = shifted_entries(entries, shift_ms, now_ms)
        with self._metrics.save_seconds.time():
            outcomes = await self._save(cluster, entries, reported, tell=request.tell)
        committed = all(outcome.status.acknowledged for outcome in outcomes)
        reply = meta_pb.SaveOffsetDataReply(committed=committed, marks=self._marks(), now_ms=wall_ms())
        room = ANSWER_BYTES
        async for entry_slice in in_slices(entries):
            at = len(reply.results)
            found = outcomes[at : at + len(entry_slice)]
            for entry, outcome in zip(entry_slice, found, strict=True):
                room -= _add_fitting(reply, entry, outcome, room)
            for status, count in Counter(outcome.status for outcome in found).items():
                self._metrics.results[status].inc(count)
        return reply

    @answering
    async def GetOffsetData(self, request: meta_pb.GetOffsetDataRequest, context: Context) -> meta_pb.GetOffsetDataReply:  # noqa: D102
        self._metrics.calls.labels("GetOffsetData").inc()
        namespace, group = _group(request.namespace, request.tenant, request.group)
        return await group_reads.whole(self._engine, _cluster(request.cluster_name), GroupKey(namespace, group))

    @answering
    async def DeleteOffsetData(  # noqa: D102
        self, request: meta_pb.DeleteOffsetDataRequest, context: Context
    ) -> meta_pb.DeleteOffsetDataReply:
        self._metrics.calls.labels("DeleteOffsetData").inc()
        namespace, group = _group(request.namespace, request.tenant, request.group)
        if len(request.shard_names) > MAX_NAMED:
            raise InvalidInputError(f"shard_names: are {len(request.shard_names)}, over {MAX_NAMED}; send several requests")
        shards = list(await parse_names(request.shard_names, "shard_names"))
        await self._engine.delete(_cluster(request.cluster_name), namespace, group, shards)
        return meta_pb.DeleteOffsetDataReply()

    @answering
    async def BatchGetOffsetData(  # noqa: D102
        self, request: meta_pb.BatchGetOffsetDataRequest, context: Context
    ) -> meta_pb.BatchGetOffsetDataReply:
        self._metrics.calls.labels("BatchGetOffsetData").inc()
        return await group_reads.batch(self._engine, _cluster(request.cluster_name), request)

    @answering
    async def ExpireOffsetData(  # noqa: D102
        self, request: meta_pb.ExpireOffsetDataRequest, context: Context
    ) -> meta_pb.ExpireOffsetDataReply:
        self._metrics.calls.labels("ExpireOffsetData").inc()
        cluster = _cluster(request.cluster_name)
        namespace, group = _group(request.namespace, "", request.group)
        check_proposal(request.before_ms, request.now_ms, wall_ms())
        expiry = await self._engine.expire(cluster, namespace, group, request.before_ms, request.now_ms)
        return meta_pb.ExpireOffsetDataReply(expired=expiry.expired, newest_ms=expiry.newest_ms)

    @answering
    async def ListOffsetData(self, request: meta_pb.ListOffsetDataRequest, context: Context) -> meta_pb.ListOffsetDataReply:  # noqa: D102
        self._metrics.calls.labels("ListOffsetData").inc()
        names = parse_page(request.namespace, request.group, request.page_size)
        cluster = _cluster(request.cluster_name)
        token = parse_page_token(request.page_token, pack_names(cluster, *names), 1 + len(OffsetKey._fields))
        page = await self._engine.list_page(cluster, names, request.page_size or DEFAULT_PAGE, token)
        reply = meta_pb.ListOffsetDataReply(next_page_token=page.after)
        room = MAX_BYTES
        async for entries in in_slices(page.entries):
            if room <= 0:
                return reply
            for key, record in entries:
                if record.live:
                    room -= reply.entries.add(group=key.group, offset=reply_offset(key, record)).ByteSize()
            if room <= 0 and entries[-1] != page.entries[-1]:
                reply.next_page_token = pack_names(cluster, *entries[-1][0])
        return reply

    @answering
    async def SplitOffsetData(self, request: meta_pb.SplitOffsetDataRequest, context: Context) -> meta_pb.SplitOffsetDataReply:  # noqa: D102
        self._metrics.calls.labels("SplitOffsetData").inc()
        names = parse_listed(request.namespace, request.group)
        found = await self._engine.split(_cluster(request.cluster_name), names, parse_parts(request.parts))
        return meta_pb.SplitOffsetDataReply(tokens=found.tokens, records=found.records)

    @answering
    async def ScanOffsetData(self, request: meta_pb.ScanOffsetDataRequest, context: Context) -> meta_pb.ScanOffsetDataReply:  # noqa: D102
        self._metrics.calls.labels("ScanOffsetData").inc()
        names = parse_page(request.namespace, request.group, request.page_size, MAX_SCAN_PAGE)
        cluster = _cluster(request.cluster_name)
        prefix, fields = pack_names(cluster, *names), 1 + len(OffsetKey._fields)
        after = parse_page_token(request.page_token, prefix, fields)
        until = parse_page_token(request.until_token, prefix, fields, "until_token")
        page = await self._engine.scan_page(cluster, names, request.page_size or DEFAULT_SCAN_PAGE, after, until)
        if request.as_packed:
            return meta_pb.ScanOffsetDataReply(packed=page.packed, next_page_token=page.after)
        return await scan_replies.by_row(page, cluster)

    @answering
    async def SnapshotOffsetData(  # type: ignore[override]  # noqa: D102 - a method that writes its replies
        self, request: meta_pb.SnapshotOffsetDataRequest, context: Context
    ) -> None:
        self._metrics.calls.labels("SnapshotOffsetData").inc()
        names, cluster = parse_listed(request.namespace, request.group), _cluster(request.cluster_name)
        if self._snapshots == MAX_SNAPSHOTS:
            raise OverloadedError(f"{MAX_SNAPSHOTS} snapshots are being read already; come back when one is", retry_after_s=1.0)
        self._snapshots += 1
        try:
            records = 0
            await _send(context, meta_pb.SnapshotOffsetDataReply(taken_at_ms=wall_ms()))
            async with aclosing(self._engine.snapshot(cluster, names)) as pages:
                async for page in pages:
                    await _send(context, meta_pb.SnapshotOffsetDataReply(packed=page.packed))
                    records += page.rows
            await _send(context, meta_pb.SnapshotOffsetDataReply(records=records))
        finally:
            self._snapshots -= 1

    @answering
    async def MergeOffsetData(self, request: meta_pb.MergeOffsetDataRequest, context: Context) -> meta_pb.MergeOffsetDataReply:  # noqa: D102
        self._metrics.calls.labels("MergeOffsetData").inc()
        cluster, reported = _cluster(request.cluster_name), _reported(request)
        differing: list[Differing] = []
        as_columns = request.HasField("packed")
        if as_columns and (request.keys or request.records):
            raise InvalidInputError("packed: come in place of keys and records, not beside them")
        count = len(request.packed.key_sizes) // SIZE.size if as_columns else len(request.keys)
        with self._limits.offsets.admit(count):
            now_ms = wall_ms()
            if as_columns:
                checked = await check_packed(request.packed, cluster, now_ms)
            else:
                checked = await check(request.keys, request.records, now_ms)
            shift_ms = self._clocks.correction_ms(checked.newest_ms, request.now_ms, now_ms, request.store.broker)
            records = checked.records
            if shift_ms is not None:
                records = await shifted_records(records, shift_ms, now_ms)
            with self._metrics.save_seconds.time():
                if request.tell_standing:
                    differing = await self._engine.save_packed(cluster, checked.keys, records, reported)
                    counts = count_results(len(checked.keys), differing)
                else:
                    counts = await self._engine.merge(cluster, checked.keys, records, reported, tell=request.tell)
        refused = checked.all_rejected(counts.rejected)
        for status, count in (
            (Status.APPLIED, counts.applied),
            (Status.SUPERSEDED, counts.superseded),
            (Status.INVALID, len(refused)),
            (Status.UNAVAILABLE, len(checked.keys) - counts.applied - counts.superseded - len(counts.rejected)),
        ):
            self._metrics.results[status].inc(count)
        rejected = [meta_pb.MergeOffsetDataReply.Rejected(index=at, message=message) for at, message in refused]
        reply = meta_pb.MergeOffsetDataReply(
            applied=counts.applied, superseded=counts.superseded, rejected=rejected, marks=self._marks(), now_ms=wall_ms()
        )
        await _add_standing(reply, [found for found in differing if found.status is not Status.INVALID], checked.places)
        return reply

    @answering
    async def ReportStore(self, request: meta_pb.ReportStoreRequest, context: Context) -> meta_pb.ReportStoreReply:  # noqa: D102
        self._metrics.calls.labels("ReportStore").inc()
        cluster, store = _cluster(request.cluster_name), _local_store(request.store)
        if request.replaces:
            _check_store_id(request.replaces, "replaces")
        known = await self._engine.report_store(cluster, store, request.replaces, wall_ms())
        reply = meta_pb.ReportStoreReply(marks=self._marks(), now_ms=wall_ms())
        if known:
            reply.known.CopyFrom(meta_pb.LocalStore(**known.store._asdict()))
            reply.known_at_ms = known.reported_at_ms
        return reply

    @answering
    async def ListChangedGroups(  # noqa: D102
        self, request: meta_pb.ListChangedGroupsRequest, context: Context
    ) -> meta_pb.ListChangedGroupsReply:
        self._metrics.calls.labels("ListChangedGroups").inc()
        cluster = _cluster(request.cluster_name)
        if len(request.after) > MAX_PLACES:
            raise InvalidInputError(f"after: are {len(request.after)} places, over {MAX_PLACES}")
        after = [StoreMark(mark.name, mark.store_id, mark.incarnation, mark.revision) for mark in request.after]
        found = await self._engine.changed_groups(cluster, after)
        reply = meta_pb.ListChangedGroupsReply(gap=found.gap, unanswered=found.unanswered)
        reply.places.extend(map(_mark, found.places))
        async for some in in_slices(found.groups):
            reply.groups.extend(meta_pb.ListChangedGroupsReply.Group(namespace=one.namespace, group=one.group) for one in some)
        return reply

    @answering
    async def GetStoreStatus(self, request: meta_pb.GetStoreStatusRequest, context: Context) -> meta_pb.GetStoreStatusReply:  # noqa: D102
        self._metrics.calls.labels("GetStoreStatus").inc()
        reply = meta_pb.GetStoreStatusReply(engine=self._engine.kind, version=__version__, marks=self._marks(), now_ms=wall_ms())
        loss = self._engine.loss()
        if loss:
            reply.loss.writes, reply.loss.found_at_ms, reply.loss.why = loss
        return reply

    def _marks(self) -> list[meta_pb.StoreMark]:
        return [_mark(mark) for mark in self._engine.marks()]

    async def _save(
        self, cluster: str, entries: Sequence[SaveEntry], reported: StoreReport | None, *, tell: bool
    ) -> list[SaveOutcome]:
        problems: list[str] = []
        async for some in in_slices(entries):
            problems += _problems(some, len(problems))
        good = [entry for entry, bad in zip(entries, problems, strict=True) if not bad]
        saved = iter(await self._engine.save(cluster, good, reported, tell=tell))
        return [SaveOutcome(Status.INVALID, None, bad) if bad else next(saved) for bad in problems]


def _mark(mark: StoreMark) -> meta_pb.StoreMark:
    return meta_pb.StoreMark(
        name=mark.name,
        store_id=mark.store_id,
        incarnation=mark.incarnation,
        revision=mark.revision,
        starts=[meta_pb.StoreMark.Start(id=start.id, revision=start.revision) for start in mark.starts],
    )


async def _send(context: Context, reply: meta_pb.SnapshotOffsetDataReply) -> None:
    """Send a part of a snapshot. Raises NotReadyError if nobody reads: a snapshot keeps files on the disk."""
    try:
        async with asyncio.timeout(IDLE_S):
            await context.write(reply)
    except TimeoutError as error:
        raise NotReadyError(f"the snapshot was ended: its reader did nothing for {IDLE_S:g} s") from error


def _add_fitting(reply: meta_pb.SaveOffsetDataReply, entry: SaveEntry, outcome: SaveOutcome, room: int) -> int:
    """Add the result of an entry to a reply, and return the bytes that count against `room`.

    Rows without metadata fit, however many they are. As in `_add_standing`, one that does not fit becomes UNAVAILABLE.
    """
    row = add_result(reply, entry, outcome)
    size = row.ByteSize() if row.metadata else 0
    if size > room:
        del reply.results[-1]
        add_result(reply, entry, SaveOutcome(Status.UNAVAILABLE, None, NO_ROOM))
        return room  # to keep the order, nothing smaller takes its place
    return size


async def _add_standing(reply: meta_pb.MergeOffsetDataReply, differing: Sequence[Differing], places: Sequence[int]) -> None:
    """Add the entries that are not stored as sent to a reply.

    Those that do not fit become UNAVAILABLE: the caller sends them again, and then they come first.
    """
    room = ANSWER_BYTES
    async for some in in_slices(differing):
        for at, status, record, message in some:
            room -= len(record)
            if room >= 0 or not record:
                reply.standing.add(index=places[at], status=_status(status), record=record, message=message)
            else:
                reply.standing.add(index=places[at], status=_status(Status.UNAVAILABLE), message=NO_ROOM)
                reply.superseded -= status is Status.SUPERSEDED
                reply.applied -= status is Status.APPLIED


def _status(status: Status) -> meta_pb.SaveOffsetResult.Status.ValueType:
    return meta_pb.SaveOffsetResult.Status.ValueType(status.value)


def _problems(entries: Sequence[SaveEntry], first: int) -> list[str]:
    """Why each entry cannot be saved; empty if it can. `first` is the index of the first entry.

    Most entries are valid and plain and are accepted after a few checks.
    """
    group: tuple[str, str] | None = None
    found = []
    for at, entry in enumerate(entries, first):
        namespace, name, shard = entry.key
        if (namespace, name) != group:
            group = None if name_problem(namespace) or name_problem(name) else (namespace, name)
        epoch, _, _, _, metadata, topic, _ = entry.record
        plain = group and not metadata and not topic and epoch <= EPOCH_MAX and not name_problem(shard)
        found.append("" if plain else _problem(at, entry))
    return found


def _problem(at: int, entry: SaveEntry) -> str:
    """Why an entry cannot be saved; empty if it can."""
    where = f"entry {at}: "
    try:
        check_name(entry.key.namespace, f"{where}namespace")
        check_name(entry.key.group, f"{where}group")
        check_name(entry.key.shard, f"{where}shard_name")
        check_topic(entry.record.topic, f"{where}topic")
        check_metadata(entry.record.metadata, f"{where}metadata")
        if entry.record.epoch > EPOCH_MAX:
            return f"{where}epoch {entry.record.epoch} is over {EPOCH_MAX}"
    except InvalidInputError as error:
        return str(error)
    return ""


def _cluster(name: str) -> str:
    """The checked name of the cluster; `default` if it is empty, as newer RobustMQ sends it."""
    return check_name(name or DEFAULT_CLUSTER, "cluster_name")


def _reported(request: meta_pb.SaveOffsetDataRequest | meta_pb.MergeOffsetDataRequest) -> StoreReport | None:
    """The local store that the entries come from; None if the request does not name it."""
    return _local_store(request.store) if request.HasField("store") else None


def _local_store(store: meta_pb.LocalStore) -> StoreReport:
    check_name(store.broker, "store.broker")
    if not 0 < len(store.path.encode()) <= PATH_MAX_BYTES:
        raise InvalidInputError(f"store.path is {len(store.path.encode())} bytes long; it must be 1 to {PATH_MAX_BYTES}")
    _check_store_id(store.store_id, "store.store_id")
    return StoreReport(store.broker, store.path, store.store_id, store.flushed_seq)


def _check_store_id(store_id: bytes, field: str) -> None:
    if len(store_id) != STORE_ID_BYTES:
        raise InvalidInputError(f"{field} is {len(store_id)} bytes long; it must be {STORE_ID_BYTES}")


def _group(namespace: str, tenant: str, group: str, where: str = "") -> tuple[str, str]:
    return check_name(namespace_of(namespace, tenant), f"{where}namespace"), check_name(group, f"{where}group")
