"""Broadcasting groups, in which every client reads every shard: where each client stands, and the lowest of them.

RocketMQ's RIP-48 (broker: BroadcastOffsetManager), but durable: a client's offsets are those of the group
`GROUP@broadcast@CLIENT`, the lowest ones those of `GROUP@broadcast`. Both are committed, flushed and recovered as any others.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import anyio
import structlog

from adapter.errors import AdapterError, InvalidInputError
from adapter.model.broadcast_names import OF_CLIENT, OF_LOWEST
from adapter.model.names import name_problem
from adapter.model.records import CommitMode, GroupKey, OffsetKey, OffsetRecord, ReadMode
from adapter.rpc import offsets_pb
from adapter.sidecar.config import ExpirySection
from adapter.sidecar.engine.group_loader import GroupLoader, Wanted
from adapter.sidecar.engine.groups import Groups
from adapter.sidecar.engine.policies import Router
from adapter.sidecar.engine.reads import OffsetReader
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.operations import Commit

log = structlog.get_logger(__name__)

Send: TypeAlias = Callable[[offsets_pb.CommitOffsetsRequest], Awaitable[offsets_pb.CommitOffsetsReply]]

KEEP_S = 5.0  # between two looks at the lowest, as in BroadcastOffsetManager.run


class Client(NamedTuple):
    """A client as this adapter knows it: its live offsets, and when it committed last (Unix ms)."""

    name: str
    offsets: dict[str, OffsetRecord]
    last_commit_at_ms: int


class Lowest(NamedTuple):
    """The lowest offset of a shard. Without live `clients` it is the last one that there was, and `client` is empty."""

    record: OffsetRecord
    client: str = ""
    clients: int = 0


class BroadcastQuery(NamedTuple):
    """The requested offsets: of one client (empty: none), and the lowest ones, of these shards (none named: all)."""

    group: GroupKey
    client_id: str
    shards: Sequence[str]


def group_of_client(group: GroupKey, client_id: str) -> GroupKey:
    """The group that holds a client's offsets."""
    return group._replace(group=f"{group.group}{OF_CLIENT}{client_id}")


def group_of_lowest(group: GroupKey) -> GroupKey:
    """The group that holds the lowest offsets, as RocketMQ's consumerOffset.json names it, too."""
    return group._replace(group=f"{group.group}{OF_LOWEST}")


def lowest_of(
    clients: Sequence[Client], kept: Mapping[str, OffsetRecord], now_ms: int, expires_ms: int, shards: Collection[str] = ()
) -> dict[str, Lowest]:
    """The lowest offsets of these shards (none named: of all) at a time, from what was kept and where the clients stand.

    As BroadcastOffsetManager.scanOffsetData decides it: a client counts in all of its shards for `expires_ms` after its last
    commit, of whichever shard. Where none is live, what was kept after the last commit stands; else the lowest of those that
    were live at that commit, which an adapter that was killed had no time to keep.
    """
    found = {}
    for shard in shards or {*kept, *(shard for client in clients for shard in client.offsets)}:
        readers = [client for client in clients if shard in client.offsets]
        low = _lowest(shard, readers, kept.get(shard), now_ms, expires_ms)
        if low:
            found[shard] = low
    return found


def _lowest(shard: str, readers: Sequence[Client], kept: OffsetRecord | None, now_ms: int, expires_ms: int) -> Lowest | None:
    if not readers:
        return Lowest(kept) if kept else None
    newest_ms = max(client.last_commit_at_ms for client in readers)
    live = newest_ms >= now_ms - expires_ms
    if kept and not live and kept.committed_at_ms > newest_ms:
        return Lowest(kept)
    before_ms = (now_ms if live else newest_ms) - expires_ms
    counted = [client for client in readers if client.last_commit_at_ms >= before_ms]
    slowest = min(counted, key=lambda client: (client.offsets[shard].offset, client.name))
    record = slowest.offsets[shard]
    return Lowest(record, slowest.name, len(counted)) if live else Lowest(record)


class Broadcasts:
    """Reads broadcasting groups, and stores the lowest offsets of those that get commits here."""

    def __init__(
        self,
        ledger: Ledger,
        section: ExpirySection,
        groups: Groups,
        loader: GroupLoader,
        reader: OffsetReader,
        router: Router,
    ) -> None:
        self.take(section)
        self._store = ledger.store
        self._recovered = ledger.recovered
        self.groups = groups
        self._loader = loader
        self._reader = reader
        self._router = router
        self._now_ms = ledger.clocks.now_ms
        # Shards that were committed to here, and when. Of others this adapter may know what was true before they moved.
        self._noted: dict[GroupKey, dict[str, int]] = {}
        self._last_kept: tuple[GroupKey | None, int] = (None, 0)  # what `keep_last` did last, and when
        self._last_logged = ""

    def take(self, section: ExpirySection) -> None:
        """Count a client as gone after the time that these settings say."""
        self._expires_ms = section.broadcast_seconds * 1000

    async def run(self) -> None:
        """Store the lowest offsets every 5 s. A failure is logged once, and retried."""
        while True:
            await anyio.sleep(KEEP_S)
            await self.keep()

    async def commit(self, commit: offsets_pb.CommitOffsetsRequest, group: str, send: Send) -> offsets_pb.CommitOffsetsReply:
        """Send a parsed commit of a client of `group`. Rows and errors speak of that group. Raises what `send` does.

        What the client committed so long ago that it has expired holds nothing back: a client that comes back begins anew.
        """
        (inner,) = commit.groups
        shards_of = Wanted(GroupKey(inner.namespace, inner.group), [item.shard for item in inner.shards])
        await self._loader.compare([shards_of])  # else what is here may look as if it had expired
        try:
            reply = await send(commit)
        except InvalidInputError as error:
            raise InvalidInputError(str(error).replace("groups[0].", "").replace(inner.group, group)) from None
        noted = self._noted.setdefault(GroupKey(inner.namespace, group), {})
        noted.update(dict.fromkeys((item.shard for item in inner.shards), self._now_ms()))
        rows = list(reply.superseded)
        if outlived := self._outlived(rows):
            rows = [row for row in rows if row.shard not in outlived]
            shards = [item for item in inner.shards if item.shard in outlived]
            anew = offsets_pb.GroupCommits(namespace=inner.namespace, group=inner.group, shards=shards)
            rows += (await send(offsets_pb.CommitOffsetsRequest(groups=[anew], mode=offsets_pb.OVERWRITE))).superseded
        for row in rows:
            row.group = group
        # Its commits know no epochs, so the new ones are left out.
        return offsets_pb.CommitOffsetsReply(superseded=rows, written_through=reply.written_through)

    async def read(self, query: BroadcastQuery) -> list[offsets_pb.BroadcastOffset]:
        """The offset of a client and the lowest one, by shard. Raises what `OffsetReader.read` does."""
        group, client_id, shards = query
        kept = await self._kept(group, shards)
        if client_id:
            await self._reader.read([Wanted(group_of_client(group, client_id), shards)], ReadMode.MEMORY_FIRST_THEN_STORE)
        now_ms = self._now_ms()
        clients = await self._clients(group)
        lowest = await self._lowest(clients, kept, now_ms, shards)
        live = (one for one in clients if one.name == client_id and one.last_commit_at_ms >= now_ms - self._expires_ms)
        own = next((client.offsets for client in live), {})
        rows = []
        for shard in shards or sorted(lowest):
            row = offsets_pb.BroadcastOffset(shard=shard)
            if shard in own:
                row.own = own[shard].offset
            if low := lowest.get(shard):
                row.lowest, row.lowest_client, row.clients = low.record.offset, low.client, low.clients
            rows.append(row)
        return rows

    async def keep(self) -> None:
        """Store the present lowest offset of all shards that got a commit here lately."""
        failure = ""
        for group in list(self._noted):
            before_ms = self._now_ms() - self._expires_ms
            noted = self._noted[group] = {shard: at for shard, at in self._noted[group].items() if at >= before_ms}
            try:
                if noted:
                    await self._keep(group, list(noted))
                else:
                    del self._noted[group]
            except AdapterError as error:
                failure = failure or str(error)
        if failure and failure != self._last_logged:
            log.warning("broadcast.not_kept", error=failure, help="the lowest offsets are as they were; it is tried again")
        self._last_logged = failure

    async def keep_last(self, inner: GroupKey, last_commit_at_ms: int, now_ms: int) -> None:
        """Store the last lowest offsets of the shards without a live client, before a client goes that has expired by now.

        Raises what a read of the store does, and a commit.
        """
        group = inner._replace(group=inner.group.partition(OF_CLIENT)[0])
        kept_group, kept_ms = self._last_kept
        if group == kept_group and last_commit_at_ms < kept_ms - self._expires_ms:
            return  # this one had expired then, too: many may go at once
        kept = await self._kept(group, (), ReadMode.STORE)
        lowest = await self._lowest(await self._clients(group), kept, now_ms)
        last = {shard: low for shard, low in lowest.items() if not low.clients and not _same(low, kept.get(shard))}
        await self._save_lowest(group, last, now_ms)
        self._last_kept = group, now_ms

    def _outlived(self, rows: Sequence[offsets_pb.Superseded]) -> set[str]:
        """The shards whose superseding record has expired."""
        before_ms = self._now_ms() - self._expires_ms
        standing = {row.shard: self._store.get(OffsetKey(row.namespace, row.group, row.shard)) for row in rows}
        return {shard for shard, record in standing.items() if record and record.live and record.committed_at_ms < before_ms}

    async def _keep(self, group: GroupKey, shards: Sequence[str]) -> None:
        kept = await self._kept(group, shards)
        now_ms = self._now_ms()
        lowest = await self._lowest(await self._clients(group), kept, now_ms, shards)
        # Also what has not changed for long: it must not expire while there are clients.
        young = {shard: record for shard, record in kept.items() if record.committed_at_ms >= now_ms - self._expires_ms}
        await self._save_lowest(
            group, {shard: low for shard, low in lowest.items() if low.clients and not _same(low, young.get(shard))}, now_ms
        )

    async def _save_lowest(self, group: GroupKey, lowest: Mapping[str, Lowest], now_ms: int) -> None:
        """Commit the lowest offsets, each with the name of its client: the next owner of the shard looks that client up."""
        entries = [
            (OffsetKey(*group_of_lowest(group), shard), record._replace(epoch=0, committed_at_ms=now_ms, metadata=client))
            for shard, (record, client, _) in lowest.items()
        ]
        if entries:
            commit = Commit(entries, CommitMode.OVERWRITE)  # a new client may begin lower
            await self._router.commit(await self._router.prepare(commit))

    async def _kept(
        self, group: GroupKey, shards: Sequence[str], mode: ReadMode = ReadMode.MEMORY_FIRST_THEN_STORE
    ) -> dict[str, OffsetRecord]:
        """The stored lowest offsets. Also loads the slowest clients if another adapter has stored them."""
        found = await self._reader.read([Wanted(group_of_lowest(group), shards)], mode)
        kept = {key.shard: record for key, record in found}
        slowest = {
            OffsetKey(*group_of_client(group, record.metadata), shard) for shard, record in kept.items() if record.metadata
        }
        missing = {key.group_key for key in slowest if not name_problem(key.group) and self._store.get(key) is None}
        unknown = [client for client in missing if not self._loader.is_loaded(client)]
        await self._reader.read([Wanted(client, ()) for client in unknown], ReadMode.MEMORY_FIRST_THEN_STORE)
        return kept

    async def _lowest(
        self, clients: Sequence[Client], kept: Mapping[str, OffsetRecord], now_ms: int, shards: Sequence[str] = ()
    ) -> dict[str, Lowest]:
        """The result of `lowest_of`, computed in a thread, since many clients with many shards take a while."""
        return await self._store.apart(partial(lowest_of, clients, kept, now_ms, self._expires_ms, shards))

    async def _clients(self, group: GroupKey) -> list[Client]:
        """All clients of a group that have live offsets here."""
        beginning = f"{group.group}{OF_CLIENT}"
        if not self._recovered.once:
            found = {key.group_key: None async for key, _, _ in self.groups.named(group.namespace, beginning)}
            await self._loader.compare([Wanted(client, ()) for client in found])
        offsets: dict[str, dict[str, OffsetRecord]] = {}
        async for key, record, _ in self.groups.named(group.namespace, beginning):
            if record.live:
                offsets.setdefault(key.group.removeprefix(beginning), {})[key.shard] = record
        return [
            Client(name, records, max(record.committed_at_ms for record in records.values())) for name, records in offsets.items()
        ]


def _same(low: Lowest, kept: OffsetRecord | None) -> bool:
    return kept is not None and (kept.offset, kept.metadata) == (low.record.offset, low.client or kept.metadata)
