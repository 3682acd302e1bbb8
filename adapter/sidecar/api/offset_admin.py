"""The gRPC service `offsets.v1.OffsetAdmin`: messages <-> model. Who may call it, and the audit log, are in `access`.

Has no rules about offsets: changes are planned and made by `engine.resets`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing

from adapter.errors import InvalidInputError, OverloadedError
from adapter.meta.requests import parse_groups
from adapter.model.codec import encode_key, encode_record, is_live, pack_names
from adapter.model.paging import DEFAULT_PAGE, parse_listed, parse_page
from adapter.model.records import CommitMode
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.serving.statuses import Context
from adapter.runtime.settings.reloading import Reloading
from adapter.runtime.slices import in_slices
from adapter.sidecar.api.access import Access, audited
from adapter.sidecar.api.commit_requests import parse_in_slices, size_of
from adapter.sidecar.api.describing import Describing
from adapter.sidecar.api.listing import stored_row
from adapter.sidecar.api.replies import change_reply, noted_change
from adapter.sidecar.api.requests import parse_change_id, parse_group, parse_reset, parse_shards, parse_topics, parse_wanted
from adapter.sidecar.api.status import SidecarStatus
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import LOAD_GROUPS, Wanted
from adapter.sidecar.engine.history import MAX_CHANGES, History
from adapter.sidecar.engine.unexported import missing

DEFAULT_CHANGES = 100  # of ListChanges
MAX_SNAPSHOTS = 8  # that are read at the same time


class OffsetAdmin(offsets_grpc.OffsetAdminServicer):
    """`offsets.v1.OffsetAdmin`. `core` gives the open core, or raises NotReadyError."""

    def __init__(
        self,
        reloading: Reloading[AdapterConfig],
        status: SidecarStatus,
        core: Callable[[], Awaitable[Core]],
        access: Access,
        history: History,
    ) -> None:
        self._reloading = reloading
        self._status = status
        self._core = core
        self._access = access
        self._history = history

    @audited
    async def Status(self, request: offsets_pb.StatusRequest, context: Context) -> offsets_pb.StatusReply:  # noqa: D102
        return self._status.reply()

    @audited
    async def Flush(self, request: offsets_pb.FlushRequest, context: Context) -> offsets_pb.FlushReply:  # noqa: D102
        return offsets_pb.FlushReply(flushed=await (await self._core()).flusher.flush_all())

    @audited
    async def ListGroups(self, request: offsets_pb.ListGroupsRequest, context: Context) -> offsets_pb.ListGroupsReply:  # noqa: D102
        core = await self._core()
        prefix = pack_names(*parse_page(request.namespace, "", request.page_size))
        page = await core.groups.page(prefix, request.page_token, request.page_size or DEFAULT_PAGE, context)
        rows = [
            offsets_pb.ListGroupsReply.Group(
                namespace=row.group.namespace,
                group=row.group.group,
                shards=row.shards,
                dirty=row.dirty,
                last_commit_at_ms=row.last_commit_at_ms,
            )
            for row in page.rows
            if row.shards
        ]
        return offsets_pb.ListGroupsReply(groups=rows, next_page_token=page.after)

    @audited
    async def DescribeGroup(  # noqa: D102
        self, request: offsets_pb.DescribeGroupRequest, context: Context
    ) -> offsets_pb.DescribeGroupReply:
        describing = Describing(await self._core(), self._reloading.settings.mode_of, context)
        return await describing.one(Wanted(parse_group(request.namespace, request.group), await parse_shards(request.shards)))

    @audited
    async def DescribeGroups(  # noqa: D102
        self, request: offsets_pb.DescribeGroupsRequest, context: Context
    ) -> AsyncIterator[offsets_pb.DescribeGroupsReply]:
        describing = Describing(await self._core(), self._reloading.settings.mode_of, context)
        async for reply in describing.many(await parse_groups(request.namespace, request.groups)):
            yield reply

    @audited
    async def ResetOffsets(self, request: offsets_pb.ResetOffsetsRequest, context: Context) -> offsets_pb.ChangeReply:  # noqa: D102
        core = await self._core()
        wanted, reset = await parse_reset(request)
        change = parse_change_id(request)
        async with core.admin_calls.one(context=context):
            return await change_reply(await core.resets.reset(wanted, reset, execute=request.execute, change=change))

    @audited
    async def DeleteOffsets(self, request: offsets_pb.DeleteOffsetsRequest, context: Context) -> offsets_pb.ChangeReply:  # noqa: D102
        core = await self._core()
        shards = await parse_shards(request.shards, required=not request.group and not request.topics)
        topics = parse_topics(request.topics)
        if topics and not request.group:
            raise InvalidInputError("topics: need a group; of every group only named shards are deleted")
        async with core.admin_calls.one(context=context):
            if request.group:
                wanted = Wanted(parse_group(request.namespace, request.group), shards, topics)
                return await change_reply(await core.resets.delete(wanted, execute=request.execute))
            namespace = parse_group(request.namespace, "every group").namespace
            return await change_reply(await core.resets.delete_everywhere(namespace, shards, execute=request.execute))

    @audited
    async def CloneGroup(self, request: offsets_pb.CloneGroupRequest, context: Context) -> offsets_pb.ChangeReply:  # noqa: D102
        core = await self._core()
        source = parse_group(request.namespace, request.from_group, "from_group")
        target = parse_group(request.namespace, request.to_group, "to_group")
        wanted = Wanted(source, await parse_shards(request.shards), parse_topics(request.topics))
        async with core.admin_calls.one(context=context):
            return await change_reply(await core.resets.clone(wanted, target, execute=request.execute))

    @audited
    async def ExportOffsets(  # noqa: D102
        self, request: offsets_pb.ExportOffsetsRequest, context: Context
    ) -> AsyncIterator[offsets_pb.ExportOffsetsReply]:
        core = await self._core()
        chosen = await parse_wanted(request.groups) if request.groups else None
        prefix = pack_names(*parse_listed(request.namespace, ""))
        if request.tell_missing and chosen is None:
            async for count in missing(core.meta, core.groups, request.namespace):
                yield offsets_pb.ExportOffsetsReply(missing=offsets_pb.ExportOffsetsReply.Missing(**count._asdict()))
        async for some in _in_pieces(_named(chosen) if chosen else _all(core, prefix)):
            await core.loader.load_patiently(*some)
            replies = _exported(core, some, as_packed=request.as_packed)
            while True:
                async with core.large.one(context=context):
                    reply = next(replies, None)
                if reply is None:
                    break
                if reply.offsets or reply.keys:
                    yield reply

    @audited
    async def ImportOffsets(self, request: offsets_pb.ImportOffsetsRequest, context: Context) -> offsets_pb.ChangeReply:  # noqa: D102
        core = await self._core()
        size_of(request.groups)
        async with core.admin_calls.one(context=context):
            commit = (await parse_in_slices(request.groups, CommitMode.INCREASE_ONLY.value)).commit
            return await change_reply(await core.resets.merge(commit, execute=request.execute))

    @audited
    async def SnapshotOffsets(  # noqa: D102
        self, request: offsets_pb.SnapshotOffsetsRequest, context: Context
    ) -> AsyncIterator[offsets_pb.SnapshotOffsetsReply]:
        core = await self._core()
        if len(core.ledger.store.snapshots) >= MAX_SNAPSHOTS:
            raise OverloadedError(f"{MAX_SNAPSHOTS} snapshots are being read already; come back when one is", retry_after_s=1.0)
        with core.ledger.store.snapshot() as snapshot:
            yield offsets_pb.SnapshotOffsetsReply(
                head=offsets_pb.SnapshotOffsetsReply.Head(
                    taken_at_ms=core.clocks.now_ms(),
                    records=snapshot.records,
                    flushed_seq=snapshot.flushed_seq,
                    broker=self._reloading.settings.broker,
                )
            )
            async with aclosing(snapshot.pages()) as pages:
                async for keys, records in pages:
                    yield offsets_pb.SnapshotOffsetsReply(keys=keys, records=records)

    @audited
    async def Reload(self, request: offsets_pb.ReloadRequest, context: Context) -> offsets_pb.ReloadReply:  # noqa: D102
        report = await self._reloading.reload(allow_defaults=request.allow_defaults)
        changed = [offsets_pb.ReloadReply.Change(**change._asdict()) for change in report.changed]
        return offsets_pb.ReloadReply(changed=changed, needs_restart=report.needs_restart)

    @audited
    async def ListChanges(self, request: offsets_pb.ListChangesRequest, context: Context) -> offsets_pb.ListChangesReply:  # noqa: D102
        if request.limit > MAX_CHANGES:
            raise InvalidInputError(f"limit: {request.limit} is over {MAX_CHANGES}")
        names = parse_listed(request.namespace, request.group)
        await self._core()  # as all that tells of offsets
        reply = offsets_pb.ListChangesReply(since_ms=self._history.since_ms)
        async for some in in_slices(self._history.newest(names, request.limit or DEFAULT_CHANGES)):
            reply.changes.extend(map(noted_change, some))
        return reply


def _exported(core: Core, wanted: Sequence[Wanted], *, as_packed: bool) -> Iterator[offsets_pb.ExportOffsetsReply]:
    """What is here, a slice each time that it is asked for; a reply may be empty."""
    if as_packed and not any(part.shards for part in wanted):
        for rows in core.reader.raw_slices(part.group for part in wanted):
            live = [row for row in rows if is_live(row[1])]
            yield offsets_pb.ExportOffsetsReply(keys=[key for key, _ in live], records=[record for _, record in live])
        return
    for entries in core.reader.slices(wanted):
        live_entries = [(key, record) for key, record in entries if record.live]
        if as_packed:
            keys = [encode_key(key) for key, _ in live_entries]
            yield offsets_pb.ExportOffsetsReply(keys=keys, records=[encode_record(record) for _, record in live_entries])
        else:
            yield offsets_pb.ExportOffsetsReply(offsets=[stored_row(core, key, record) for key, record in live_entries])


async def _all(core: Core, prefix: bytes) -> AsyncIterator[Wanted]:
    # What is deleted here may have begun anew elsewhere.
    async for group in core.groups.live(prefix, deleted=not core.ledger.recovered.once):
        yield Wanted(group, ())


async def _named(chosen: Iterable[Wanted]) -> AsyncIterator[Wanted]:
    for wanted in chosen:
        yield wanted


async def _in_pieces(wanted: AsyncIterator[Wanted]) -> AsyncIterator[list[Wanted]]:
    """Lists of groups, each as long as one call to the Meta Service may ask for."""
    some: list[Wanted] = []
    async for one in wanted:
        some.append(one)
        if len(some) == LOAD_GROUPS:
            yield some
            some = []
    if some:
        yield some
