"""The bridge's task: follows one stock RocketMQ broker as a slave would, and gives it back what it lost.

Every `poll_ms` it reads the broker's whole table of offsets (code 43) and commits what changed, through the same `Commits` as
every client. When broker or sidecar were restarted, both tables are compared first (`_meet`), and the broker gets what it lost
before anything is committed. What others change in the store goes to the broker (`_pass_on`). A loss of the broker is retried for
ever; an error of the store keeps what was not committed for the next poll. Never ends by itself.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

import anyio
import anyio.to_thread
import structlog

from adapter.errors import AdapterError
from adapter.formats.rows import Naming, OffsetRow
from adapter.model.queues import MessageQueue, queue_of
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord, is_deleted
from adapter.rocketmq.broker import Broker, Identity, connected
from adapter.rocketmq.config import RocketmqSection, signer_of
from adapter.rocketmq.errors import BrokerError, BrokerUnreachableError
from adapter.rocketmq.offset_table import OffsetTable, TableChanges
from adapter.rpc import offsets_pb
from adapter.runtime.backoff import pause_s
from adapter.runtime.slices import others
from adapter.sidecar.api.commits import SMALL, Commits
from adapter.sidecar.bridge.agreement import Act, Agreed, Memory, on_meeting, when_broker_moved, when_store_moved
from adapter.sidecar.bridge.counts import BridgeCounts
from adapter.sidecar.bridge.deletes import Deletes, Missing
from adapter.sidecar.bridge.giving import Gift, Given, Giver, at_once
from adapter.sidecar.bridge.marks import FILE, Marks
from adapter.sidecar.bridge.phantoms import Phantoms
from adapter.sidecar.bridge.store_changes import REST_CPU, StoreChanges
from adapter.sidecar.bridge.untold import Untold
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted

log = structlog.get_logger(__name__)

RECONNECT_S, RECONNECT_MAX_S = 0.05, 1.0  # a broker that comes back is met before its consumers have asked for their offsets
SLAVE_S = 1.0  # between two looks whether a slave became the master
LOOK_S = 1.0  # between two looks at who the broker is, and at what is gone there
# The shortest interval of polls is so many times what one takes (REST_CPU: of CPU time of this process): the broker's part is
# larger than ours, so that a large table costs a fifth of a core or less.
REST = 2
POLLS_KEPT = 5  # the shortest of them counts: one that was held up by others says nothing of the table
COMMIT_AT_ONCE = SMALL // 2  # offsets of a request, each with its group: such a request is checked in one go
GIVE_AT_ONCE = 500  # offsets that go to the broker between two polls: a tenth of a second
OWED_S, OWED_MAX_S = 1.0, 60.0  # between attempts to give an offset that the broker refused, such as of a topic that it lost
LIST_AGAIN_S = 1.0  # between two attempts to list what the Meta Service has
LIST_PAGE = 1_000  # offsets of a page of the Meta Service
REFRESH_PART = 8  # of the retention: how often unchanged offsets are looked through
FORGET_S = 600.0  # how often offsets are forgotten that neither side has any more
MAX_TOLD = 20  # entries that cannot be used are logged one by one up to here


class Bridge:
    """Follows the broker of a configuration, over whichever store is open. `commits` is the way of everyone's commits."""

    def __init__(self, config: AdapterConfig, commits: Commits) -> None:
        self._config = config
        self._commits = commits
        signer_of(config.rocketmq)  # a bad file is told at the start
        self.counts = BridgeCounts(address=config.rocketmq.broker)

    async def run(self, core: Core) -> None:
        """Follow the broker until cancelled."""
        section = self._config.rocketmq
        with core.ledger.watches.own((section.namespace,)) as watcher:
            changes = StoreChanges(core.ledger.store, watcher, section.namespace)
            await self._run(Following(self._config, core, self._commits, self.counts, changes))

    async def _run(self, following: "Following") -> None:
        section = self._config.rocketmq
        failures = 0
        while True:
            pause = RECONNECT_S
            try:
                async with connected(section, signer_of(section)) as broker:
                    await following.follow(broker)
            except BrokerUnreachableError as error:
                self._lost(error)
            except AdapterError as error:
                self._lost(error)
                pause = pause_s(failures + 1, RECONNECT_S, RECONNECT_MAX_S)
            failures = 0 if self.counts.connected else failures + 1
            self.counts.connected = self.counts.slave = False
            await anyio.sleep(pause)

    def _lost(self, error: AdapterError) -> None:
        """Log what is wrong, once for each reason in a row."""
        if self.counts.connected:
            self.counts.disconnects += 1
        if self.counts.connected or str(error) != self.counts.last_error:
            address = self._config.rocketmq.broker
            log.warning("rocketmq.lost", broker=address, error=str(error), help="it is tried again and again")
        self.counts.last_error = str(error)


class _Owed(NamedTuple):
    """When an offset that the broker refused is offered again, and how long after the last time."""

    at_s: float
    pause_s: float


class Following:
    """What is known of the broker while one store is open. One connection at a time."""

    def __init__(self, config: AdapterConfig, core: Core, commits: Commits, counts: BridgeCounts, changes: StoreChanges) -> None:
        self._section: RocketmqSection = config.rocketmq
        self._core = core
        self._commits = commits
        self._counts = counts
        self._marks_file = config.store.path / FILE
        self._marks = Marks.load(self._marks_file)
        self._identity: Identity | None = None  # of the life that `_agreed` is about
        self._table = OffsetTable(Naming(self._section.namespace))
        self._untold = Untold()
        self._phantoms = Phantoms(self._is_there)
        self._agreed: dict[OffsetKey, Agreed] = {}
        self._unsent: dict[OffsetKey, OffsetRow] = {}  # changes of the broker that are not committed yet
        self._missing = Missing()
        self._deletes = Deletes(core, self._missing, self._deleted, changes.look_at)
        self._owed: dict[OffsetKey, _Owed] = {}  # offsets that the broker refused
        self._changes = changes
        self._unlisted = True  # whether the Meta Service is still to be asked for offsets that are not here
        self._failing = False
        self._rests: deque[float] = deque(maxlen=POLLS_KEPT)
        self._refreshed_at = -inf
        self._forget_at = 0.0

    async def follow(self, broker: Broker) -> None:
        """Follow the broker until its connection fails. Raises BrokerError."""
        identity = await self._master(broker)
        self._counts.broker, self._counts.version = identity.name, identity.version
        self._counts.connected = True
        if self._identity is None or not identity.is_same_life(self._identity):
            await self._meet(broker, identity)
        # Apart from the polls, which do not wait for the Meta Service.
        listing = asyncio.create_task(self._list(), name="rocketmq.list")
        try:
            await self._follow(broker, identity, listing)
        finally:
            listing.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([listing, *self._deletes.stopped()])

    async def _follow(self, broker: Broker, identity: Identity, listing: "asyncio.Task[None]") -> None:
        self._changes.look_at_all()
        look_at, complete = 0.0, False
        while True:
            began, began_cpu = anyio.current_time(), time.thread_time()
            await self._look_at_table(broker)
            self._note(await self._untold.ask_next(broker))
            await self._take_over(broker)
            took, took_cpu = anyio.current_time() - began, time.thread_time() - began_cpu
            self._rests.append(max(REST * took, REST_CPU * took_cpu))
            listed = listing.done()
            if listed and not complete:
                listing.result()
                self._changes.look_at_all()
            await self._pass_on(broker)
            if listed and not complete:
                complete = True
                log.info("rocketmq.following", broker=identity.name, offsets=len(self._agreed))
            if anyio.current_time() >= look_at:
                looked = anyio.current_time()
                await self._look(broker)
                look_at = anyio.current_time() + max(LOOK_S, REST * (anyio.current_time() - looked))
            await self._save_marks()
            self._counts.offsets, self._counts.asked_queues = len(self._agreed), len(self._untold)
            self._counts.poll_interval_s = max(self._section.poll_ms / 1000, min(self._rests))
            await anyio.sleep(max(began + self._counts.poll_interval_s - anyio.current_time(), 0))

    # Who the broker is.

    async def _master(self, broker: Broker) -> Identity:
        """The identity of the broker, once it is a master. Raises BrokerError."""
        identity = await broker.identity()
        if identity.is_slave:
            log.warning(
                "rocketmq.slave",
                broker=identity.name,
                help="a slave copies its offsets from its master, whose sidecar commits them; this one waits to be the master",
            )
            self._forget_life()
            await self._save_marks()
            self._counts.broker, self._counts.version = identity.name, identity.version
            self._counts.slave = True
        while identity.is_slave:
            await anyio.sleep(SLAVE_S)
            identity = await broker.identity()
        self._counts.slave = False
        return identity

    async def _still(self, broker: Broker) -> None:
        """Raise BrokerError unless the broker is the one that was met: the same life of a master."""
        identity, known = await broker.identity(), self._known_identity
        if known.boot_ms == 0 and identity.is_same_life(known._replace(boot_ms=identity.boot_ms)):
            # On the same connection, so it is the same life, old enough by now to say when it began.
            self._identity = identity
            self._marks.note_life(identity.boot_ms)
        elif identity.boot_ms and not identity.is_same_life(known):
            if identity.role != known.role:
                self._forget_life()
            raise BrokerError(f"the broker at {self._section.broker} was restarted, or has another role: {identity}")

    # The broker's table.

    async def _poll(self, broker: Broker) -> TableChanges:
        body = await broker.offsets()
        began = time.thread_time()
        changes = await self._table.take(body)
        self._counts.poll_seconds += time.thread_time() - began
        self._counts.polls += 1
        self._counts.poll_bytes += len(body)
        for reject in changes.rejects:
            self._counts.rejected += 1
            if self._counts.rejected <= MAX_TOLD:
                log.warning("rocketmq.rejected", entry=reject.place, text=reject.text, reason=reject.reason)
        return changes

    async def _look_at_table(self, broker: Broker) -> None:
        """Read the broker's table, and note what changed."""
        self._note_table(await self._poll(broker))
        self._note(TableChanges(await self._phantoms.judged(broker), [], []))

    def _note_table(self, changes: TableChanges) -> None:
        """Note changes of the broker's table; those of V2 tell some queues not or wrongly, and others that nobody committed."""
        if not self._untold.is_v2:
            self._note(changes)
            return
        told = TableChanges([], [], [])
        for row in changes.changed:
            if self._untold.hides(row.topic):
                self._untold.add(row.key)
            elif not self._phantoms.take(row):
                told.changed.append(row)
        for row in changes.gone:
            self._phantoms.forget(row.key)
            if not self._untold.hides(row.topic):
                told.gone.append(row)
        self._note(told)

    def _is_there(self, key: OffsetKey) -> bool:
        """True if the broker's table, or the store, has this offset."""
        queue = queue_of(key.shard)
        told = queue is not None and self._table.has(key.group, queue.topic, queue.queue_id)
        return told or self._core.ledger.store.get(key) is not None

    def _note(self, changes: TableChanges) -> None:
        for row in changes.changed:
            self._unsent[row.key] = row
            self._missing.discard(row.key)
        for row in changes.gone:
            self._unsent.pop(row.key, None)
            self._missing.add(row.key)

    # The first look at both, after a start of the broker or of the bridge.

    async def _meet(self, broker: Broker, identity: Identity) -> None:
        """Compare all of both; the broker first gets what it lost, then its own news are committed."""
        self._identity = None
        self._table = OffsetTable(Naming(self._section.namespace, broker=identity.name if self._section.name_in_shards else ""))
        self._untold = Untold(is_v2=identity.is_v2)
        self._phantoms.clear()
        self._agreed, self._unsent, self._owed = {}, {}, {}
        self._missing.clear()
        if self._marks.broker != identity.name:
            self._marks = Marks(identity.name)
        known = self._marks.boot_ms > 0
        same_life = known and self._marks.boot_ms == identity.boot_ms
        # From here on `_still` compares with it, and a failure below begins anew.
        await self._look_at_table(broker)
        if identity.is_v2:
            await self._ask_all(broker, identity)
        there = dict(self._unsent)
        gifts: list[Gift] = []
        async for key, stored in self._changes.records():
            queue = self._queue(key, identity)
            if queue is None:
                continue
            row = there.get(key)
            at_broker = row.offset if row else None
            act = on_meeting(at_broker, stored, self._memory(key, known=known, same_life=same_life))
            if act in {Act.GIVE, Act.PLACE, Act.RESET}:
                gifts.append(Gift(key, queue.topic, queue.queue_id, stored, at_broker, act))
            elif act is Act.NOTHING:
                self._agree(key, at_broker, stored)
        began = anyio.current_time()
        given = await self._give(broker, identity, gifts)
        for key in [key for key in self._unsent if key in self._agreed]:
            del self._unsent[key]
        self._identity = identity
        log.info(
            "rocketmq.met",
            broker=identity.name,
            version=identity.version,
            life="the same" if same_life else "another" if known else "unknown",
            there=len(there),
            given_back=sum(one.moved for one in given),
            beyond_the_log=sum(one.beyond for one in given),
            refused=sum(bool(one.refused) for one in given),
            seconds=round(anyio.current_time() - began, 3),
        )
        await self._take_over(broker, Memory(same_life=same_life, known=known))
        self._marks.note_life(identity.boot_ms)
        await self._save_marks()
        self._unlisted = True
        self._refreshed_at = -inf

    async def _ask_all(self, broker: Broker, identity: Identity) -> None:
        """Ask for all queues that the table does not tell and the store knows: none of them is given before that."""
        keys: list[OffsetKey] = []
        async for key, _ in self._changes.records():
            queue = self._queue(key, identity)
            if queue and self._untold.hides(queue.topic):
                keys.append(key)
        self._note(await self._untold.ask(broker, keys))

    def _memory(self, key: OffsetKey, *, known: bool, same_life: bool) -> Memory:
        return Memory(same_life, known, self._marks.eras.get(key, 0), self._marks.ceilings.get(key, -1))

    def _queue(self, key: OffsetKey, identity: Identity | None = None) -> MessageQueue | None:
        """The queue of a key, if it is one of this broker."""
        whose = identity or self._identity
        name = whose.name if whose and self._section.name_in_shards else ""
        if name and not key.shard.startswith(name + "/"):
            return None
        queue = queue_of(key.shard)
        return queue if queue and queue.broker_name == name else None

    # From the broker to the store.

    async def _take_over(self, broker: Broker, meeting: Memory | None = None) -> None:
        """Commit what the broker changed. What cannot be committed now stays unsent."""
        commits: list[OffsetRow] = []
        rewinds: list[OffsetRow] = []
        for done, (key, row) in enumerate(list(self._unsent.items())):
            if done and done % SMALL == 0:
                await others()
            stored = self._core.ledger.store.get(key)
            known = self._agreed.get(key)
            if known:
                act = when_broker_moved(row.offset, known, stored)
            else:
                life = meeting or Memory(same_life=True, known=True)
                act = on_meeting(row.offset, stored, self._memory(key, known=life.known, same_life=life.same_life))
            if act is Act.COMMIT:
                commits.append(row)
            elif act is Act.REWIND:
                rewinds.append(row)
            else:
                if known:
                    self._agreed[key] = known._replace(at_broker=row.offset)
                else:
                    self._agreed[key] = Agreed.until(act, row.offset, stored)
                if not self._agreed[key].is_stored(stored):  # the store's move is passed on
                    self._changes.look_at([key])
                del self._unsent[key]
        await self._commit_all(commits, offsets_pb.INCREASE_ONLY)
        if rewinds:
            await self._rewind(broker, rewinds)

    async def _rewind(self, broker: Broker, rows: Sequence[OffsetRow]) -> None:
        """Commit what went back. Only a table of the same life goes back on purpose."""
        await self._still(broker)
        giver = Giver(broker, self._known_identity)
        await at_once(rows, lambda row: giver.bounds(row.topic, row.partition))
        for row in rows:
            stored = self._core.ledger.store.get(row.key)
            bounds = await giver.bounds(row.topic, row.partition)  # which it has
            # A log that ends before is another log: what this broker has on its disk is then not older than this.
            if stored and stored.offset <= bounds.high:
                self._marks.raise_ceiling(row.key, stored.offset)
        await self._save_marks()
        log.info("rocketmq.rewound", offsets=len(rows), group=rows[0].group, shard=rows[0].shard, to=rows[0].offset)
        await self._commit_all(rows, offsets_pb.OVERWRITE)

    async def _commit_all(self, rows: Sequence[OffsetRow], mode: offsets_pb.CommitMode.ValueType) -> None:
        """Commit rows in small requests. Those that wait for the Meta Service come last, and apart, until one fails."""
        writes_through = self._core.router.policies.writes_through
        waiting = [row for row in rows if writes_through(row.key.group_key)]
        for part in _in_requests(row for row in rows if not writes_through(row.key.group_key)):
            await self._commit(part, mode)
        for part in _in_requests(waiting):
            if not await self._commit(part, mode):
                return

    async def _commit(self, rows: Sequence[OffsetRow], mode: offsets_pb.CommitMode.ValueType) -> bool:
        """Commit some rows, and agree on what is stored then. On an error they stay unsent, and False is returned."""
        groups: dict[str, offsets_pb.GroupCommits] = {}
        for row in rows:
            group = groups.setdefault(row.group, offsets_pb.GroupCommits(namespace=row.namespace, group=row.group))
            known = self._agreed.get(row.key)
            # The epoch that was agreed on: a commit of an older one is superseded by a reset that came between.
            group.shards.add(
                shard=row.shard,
                offset=row.offset,
                epoch=known.epoch if known else 0,
                topic=row.topic,
                partition=row.partition,
            )
        try:
            reply = await self._commits.commit(offsets_pb.CommitOffsetsRequest(groups=groups.values(), mode=mode))
        except AdapterError as error:
            if not self._failing:
                log.error("rocketmq.commit", error=str(error), help="it is repeated with each poll until it is stored")
            self._failing = True
            return False
        self._failing = False
        superseded = {OffsetKey(row.namespace, row.group, row.shard) for row in reply.superseded}
        self._counts.committed += len(rows) - len(superseded)
        for row in rows:
            key, stored = row.key, self._core.ledger.store.get(row.key)
            if key in superseded or stored is None or not stored.live or stored.offset != row.offset:
                # Somebody else's value stands, and may have to be passed on.
                self._changes.look_at([key])
                known = self._agreed.get(key)
                self._agreed[key] = known._replace(at_broker=row.offset) if known else Agreed.on(row.offset, None)
            else:
                self._counts.rewound += mode == offsets_pb.OVERWRITE
                self._agree(key, row.offset, stored)
            self._unsent.pop(key, None)
        await others()  # most commits wait for nothing, and there may be many parts
        return True

    # From the store to the broker.

    async def _look(self, broker: Broker) -> None:
        """Delete what was deleted at the broker, keep unchanged offsets from expiring."""
        await self._still(broker)
        await self._look_for_missing(broker)
        if anyio.current_time() >= self._forget_at and not self._unlisted:
            self._forget_at = anyio.current_time() + FORGET_S
            self._phantoms.doubt()
            await self._forget()
        every_s = self._core.expiry.retention_s / REFRESH_PART  # a reload may have changed it
        if every_s and anyio.current_time() >= self._refreshed_at + every_s:
            self._refreshed_at = anyio.current_time()
            await self._refresh(every_s)

    async def _pass_on(self, broker: Broker) -> None:
        """The one place where a foreign change of an offset goes to the broker."""
        now = anyio.current_time()
        due = [key for key, owed in self._owed.items() if owed.at_s <= now]
        self._changes.look_at(due)
        if not self._changes.pending:
            return
        await self._still(broker)
        differing = await self._changes.differing(self._agreed, lambda key: self._queue(key) is not None)
        for key in due:
            if key not in differing and not self._changes.is_waiting(key):
                del self._owed[key]
        # The next commit of these decides what stands.
        self._changes.look_at(key for key in differing if key in self._unsent)
        gifts: list[Gift] = []
        for done, (key, stored) in enumerate(differing.items(), start=1):
            if done % SMALL == 0:
                await others()
            if gift := self._gift(key, stored, now):
                gifts.append(gift)
        if gifts:
            # The rest behind the next poll: what the broker is told meanwhile is known to nobody else.
            self._changes.look_at(gift.key for gift in gifts[GIVE_AT_ONCE:])
            given = await self._give(broker, self._known_identity, gifts[:GIVE_AT_ONCE])
            log.info("rocketmq.passed_on", offsets=sum(one.moved for one in given), of=len(gifts))

    def _gift(self, key: OffsetKey, stored: OffsetRecord, now: float) -> Gift | None:
        """What the broker gets of a foreign change; None if that is nothing, or not now."""
        queue, owed, known = self._queue(key), self._owed.get(key), self._agreed.get(key)
        if queue and self._untold.hides(queue.topic):
            self._untold.add(key)
            if not known and not self._untold.is_asked(key):
                self._changes.look_at([key])
                return None
        if queue is None or key in self._unsent or key in self._deletes or (owed and owed.at_s > now):
            return None
        act = when_store_moved(stored, known) if known else on_meeting(None, stored, Memory())
        at_broker = known.at_broker if known else None
        if act is not Act.NOTHING:
            return Gift(key, queue.topic, queue.queue_id, stored, at_broker, act)
        self._agree(key, at_broker, stored)
        if at_broker is not None and is_deleted(stored):
            log.warning(
                "rocketmq.deleted_here_only",
                group=key.group,
                shard=key.shard,
                help="RocketMQ cannot delete the offset of a queue: the broker keeps it until the group is deleted there "
                "(mqadmin deleteSubGroup -r true), and its next commit brings it back",
            )
        return None

    async def _give(self, broker: Broker, identity: Identity, gifts: Sequence[Gift]) -> list[Given]:
        """Give offsets to the broker, and agree on what it has then."""
        for gift in gifts:
            if gift.act is not Act.GIVE and gift.at_broker is not None and gift.at_broker > gift.stored.offset:
                self._marks.raise_ceiling(gift.key, gift.at_broker)
        await self._save_marks()
        given = await Giver(broker, identity).give(gifts)
        for one in given:
            key = one.gift.key
            if one.refused:
                before = self._owed.get(key)
                pause = min(before.pause_s * 2, OWED_MAX_S) if before else OWED_S
                self._owed[key] = _Owed(anyio.current_time() + pause, pause)
                if not before:
                    log.info("rocketmq.refused", group=key.group, shard=key.shard, reason=one.refused, help="it is offered again")
                continue
            self._agree(key, one.at_broker, one.gift.stored)
            if one.moved:
                self._counts.reset += one.gift.act is Act.RESET
                self._counts.given += one.gift.act is not Act.RESET
        return given

    async def _list(self) -> None:
        """Bring what the Meta Service has of this broker, and not this store, into it, where the next look finds it."""
        while self._unlisted:
            try:
                await self._core.loader.load_wanted(await self._unknown_here())
            except AdapterError as error:
                log.info("rocketmq.list", error=str(error), help="offsets that only the Meta Service has are looked for again")
                await anyio.sleep(LIST_AGAIN_S)
            else:
                self._unlisted = False

    async def _unknown_here(self) -> list[Wanted]:
        """The offsets of this broker of which the Meta Service has a larger value, or the only one."""
        found: dict[GroupKey, list[str]] = {}
        token = b""
        while True:
            page, token = await self._core.meta.list_page(self._section.namespace, "", LIST_PAGE, token)
            for key, record in page:
                stored = self._core.ledger.store.get(key)
                news = record.live if stored is None else record.position > stored.position
                if news and self._queue(key):
                    found.setdefault(key.group_key, []).append(key.shard)
            await others()
            if not token:
                return [Wanted(group, shards) for group, shards in found.items()]

    async def _look_for_missing(self, broker: Broker) -> None:
        """Delete what was deleted at the broker, once it stays away, and give back what nobody deleted."""
        if self._deletes.busy:
            return
        ripe = await self._missing.look(broker, self._is_live)
        self._deletes.begin(key for key in ripe.deleted if self._is_agreed(key))
        forgotten = [key for key in ripe.forgotten if self._is_agreed(key)]
        for key in forgotten:
            self._missing.discard(key)
            self._agreed[key] = Agreed.on(None, None)  # so that the store's value goes to the broker
        if forgotten:
            self._changes.look_at(forgotten)
            self._counts.forgotten += len(forgotten)
            log.warning(
                "rocketmq.forgotten",
                offsets=len(forgotten),
                group=forgotten[0].group,
                shard=forgotten[0].shard,
                help="the broker knows group and topic, so nobody deleted them: they stay here and are given back. A query of a "
                "console or of mqadmin does this (apache/rocketmq 10987)",
            )

    def _is_live(self, key: OffsetKey) -> bool:
        known = self._agreed.get(key)
        return known is not None and known.live

    def _is_agreed(self, key: OffsetKey) -> bool:
        """True while the store has what was agreed on."""
        known = self._agreed.get(key)
        return known is not None and known.is_stored(self._core.ledger.store.get(key))

    def _deleted(self, key: OffsetKey) -> None:
        """Agree on a delete; what the broker has again since then is committed once more."""
        is_gone, known, queue = self._missing.discard(key), self._agreed.get(key), self._queue(key)
        self._counts.deleted += 1
        self._agree(key, None, self._core.ledger.store.get(key))
        if not is_gone and known and known.at_broker is not None and queue:
            row = OffsetRow(*key, known.at_broker, topic=queue.topic, partition=queue.queue_id)
            self._unsent.setdefault(key, row)

    async def _refresh(self, age_s: float) -> None:
        """Commit again what has stood unchanged for so long, so that a group that is idle at the broker does not expire here."""
        before_ms = self._core.clocks.now_ms() - int(age_s * 1_000)
        old: list[OffsetRow] = []
        async for key, stored in self._changes.records():
            known, queue = self._agreed.get(key), self._queue(key)
            if not queue or not known or known.at_broker != stored.offset or not known.is_stored(stored):
                continue
            if stored.live and stored.committed_at_ms < before_ms:
                old.append(OffsetRow(*key, stored.offset, topic=queue.topic, partition=queue.queue_id))
        await self._commit_all(old, offsets_pb.INCREASE_ONLY)

    # What is remembered.

    async def _forget(self) -> None:
        """Forget the offsets that neither the broker nor the store has any more: groups come and go."""
        for done, key in enumerate({**self._agreed, **self._marks.eras, **self._marks.ceilings}, start=1):
            if done % SMALL == 0:
                await others()
            known = self._agreed.get(key)
            if key in self._unsent or (known and known.at_broker is not None) or self._core.ledger.store.get(key):
                continue
            self._agreed.pop(key, None)
            self._untold.forget(key)
            self._marks.forget(key)

    @property
    def _known_identity(self) -> Identity:
        if self._identity is None:
            raise BrokerError("the broker was not met yet")
        return self._identity

    def _agree(self, key: OffsetKey, at_broker: int | None, stored: OffsetRecord | None) -> None:
        self._agreed[key] = Agreed.on(at_broker, stored)
        self._owed.pop(key, None)
        self._marks.agree(key, stored)

    def _forget_life(self) -> None:
        self._identity = None
        self._marks.forget_life()

    async def _save_marks(self) -> None:
        if self._marks.changed:
            await anyio.to_thread.run_sync(partial(self._marks.save, self._marks_file))


def _in_requests(rows: Iterable[OffsetRow]) -> Iterator[list[OffsetRow]]:
    """Rows in parts that fit into one small request each."""
    left = list(rows)
    for at in range(0, len(left), COMMIT_AT_ONCE):
        yield left[at : at + COMMIT_AT_ONCE]
