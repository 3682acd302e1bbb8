"""Offsets that the broker has no longer: which of them somebody deleted there, and which it has only forgotten.

A broker forgets offsets that nobody deleted: a query of a console makes it do so (queryCorrectionOffset with filterGroups,
apache/rocketmq 10987). So a delete is believed only if the group or the topic went as well. Groups and topics that are light are
in no table of a broker, which therefore says nothing of them. What is not believed stays here, and is given back.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from adapter.errors import AdapterError
from adapter.formats.rocketmq_json import BROADCAST, LMQ, SEPARATOR
from adapter.model.queues import queue_of
from adapter.model.records import GroupKey, OffsetKey
from adapter.rocketmq.broker import Broker
from adapter.rocketmq.errors import BrokerError
from adapter.runtime.slices import others
from adapter.sidecar.api.commits import SMALL
from adapter.sidecar.bridge.giving import at_once
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted

GONE_LOOKS = 3  # looks in which an offset has to be missing before anything is done
TOPICS_AT_ONCE = 200  # topics that are asked for in a look: a tenth of a second

log = structlog.get_logger(__name__)


class _Looks(NamedTuple):
    """In how many looks an offset was missing, and whether its group or topic was in one of them."""

    times: int = 0
    ordered: bool = False


class Ripe(NamedTuple):
    """Offsets that have been missing for long enough: `deleted` at the broker, or only `forgotten` there."""

    deleted: list[OffsetKey]
    forgotten: list[OffsetKey]


class Missing:
    """The offsets that are missing at the broker. They are noted and withdrawn at any time, also while it is asked."""

    def __init__(self) -> None:
        self._looks: dict[OffsetKey, _Looks] = {}

    def __contains__(self, key: object) -> bool:
        """True while the broker lacks this offset."""
        return key in self._looks

    def add(self, key: OffsetKey) -> None:
        """Note that the broker has it no longer."""
        self._looks[key] = _Looks()

    def discard(self, key: OffsetKey) -> bool:
        """The broker has it again, or nobody needs to know. False if it was not missing."""
        return self._looks.pop(key, None) is not None

    def clear(self) -> None:
        """Nothing is known of the broker that is followed now."""
        self._looks.clear()

    async def look(self, broker: Broker, is_kept: Callable[[OffsetKey], bool]) -> Ripe:
        """Look once more, and return what is ripe. Only what `is_kept` matters. A broker that cannot say has deleted nothing."""
        unsure = await self._next(is_kept)
        try:
            for key in await _ordered(broker, unsure):
                if key in self._looks:
                    self._looks[key] = self._looks[key]._replace(ordered=True)
        except BrokerError as error:
            log.warning("rocketmq.delete", offsets=len(unsure), error=str(error), help="what is missing counts as not deleted")
        ripe = Ripe([], [])
        for done, (key, looks) in enumerate(list(self._looks.items()), start=1):
            if done % SMALL == 0:
                await others()
            if looks.times > GONE_LOOKS:
                (ripe.deleted if looks.ordered else ripe.forgotten).append(key)
        return ripe

    async def _next(self, is_kept: Callable[[OffsetKey], bool]) -> dict[OffsetKey, str]:
        """Count a look, and return those of which it is not known that they were deleted, with their topics."""
        unsure: dict[OffsetKey, str] = {}
        topics: set[str] = set()
        for done, (key, looks) in enumerate(list(self._looks.items()), start=1):
            if done % SMALL == 0:
                await others()
            queue = queue_of(key.shard)
            if queue is None or not is_kept(key):
                self.discard(key)
            if queue is None or key not in self._looks:
                continue
            if not looks.ordered:
                if queue.topic not in topics and len(topics) == TOPICS_AT_ONCE:
                    continue  # its turn comes
                topics.add(queue.topic)
                unsure[key] = queue.topic
            self._looks[key] = looks._replace(times=looks.times + 1)
        return unsure


async def _ordered(broker: Broker, topics: Mapping[OffsetKey, str]) -> list[OffsetKey]:
    """Those of these offsets (with their topics) whose group or topic the broker does not know either."""
    groups = {group for key in topics if not (group := _group(key)).startswith(LMQ)}
    gone_groups = groups - await broker.groups() if groups else groups
    asked = {topic for key, topic in topics.items() if _group(key) not in gone_groups and not topic.startswith(LMQ)}
    gone_topics = {topic for topic, there in await at_once(asked, partial(_topic, broker)) if not there}
    return [key for key, topic in topics.items() if _group(key) in gone_groups or topic in gone_topics]


async def _topic(broker: Broker, topic: str) -> tuple[str, bool]:
    return topic, await broker.has_topic(topic)


def _group(key: OffsetKey) -> str:
    """The group as the broker's table of groups has it: behind a proxy, a broadcasting one has offsets under another name."""
    return key.group.removesuffix(SEPARATOR + BROADCAST)


class Deletes:
    """Deletes here what was deleted at the broker, beside the polls, which do not wait for the Meta Service.

    `settle` is called for each offset that is deleted, `look_at` with those whose delete failed.
    """

    def __init__(
        self,
        core: Core,
        missing: Missing,
        settle: Callable[[OffsetKey], None],
        look_at: Callable[[Iterable[OffsetKey]], None],
    ) -> None:
        self._core = core
        self._missing = missing
        self._settle = settle
        self._look_at = look_at
        self._deleting: set[OffsetKey] = set()
        self._task: asyncio.Task[None] | None = None

    def __contains__(self, key: object) -> bool:
        """True while this offset is being deleted."""
        return key in self._deleting

    @property
    def busy(self) -> bool:
        """True until all deletes have been tried. Raises what ended them unexpectedly."""
        if self._task and self._task.done():
            self._task.result()
            self._task = None
        return self._task is not None

    def begin(self, keys: Iterable[OffsetKey]) -> None:
        """Delete these, group by group. Not while busy."""
        groups: dict[GroupKey, list[str]] = {}
        for key in keys:
            groups.setdefault(key.group_key, []).append(key.shard)
        if groups:
            self._task = asyncio.create_task(self._delete(groups), name="rocketmq.delete")

    def stopped(self) -> list["asyncio.Task[None]"]:
        """Cancel what is under way, and return it, to be waited for."""
        tasks = [self._task] if self._task else []
        for task in tasks:
            task.cancel()
        self._task = None
        return tasks

    async def _delete(self, groups: Mapping[GroupKey, Sequence[str]]) -> None:
        """Delete these shards, but for those that come back at the broker before their turn."""
        for group, shards in groups.items():
            keys = [key for shard in shards if (key := OffsetKey(*group, shard)) in self._missing]
            if not keys:
                continue
            self._deleting.update(keys)
            try:
                await self._core.resets.delete(Wanted(group, [key.shard for key in keys]), execute=True)
            except AdapterError as error:
                log.warning("rocketmq.delete", group=group.group, shards=len(keys), error=str(error), help="it is repeated")
                self._look_at(keys)
            else:
                log.info("rocketmq.deleted", group=group.group, shards=len(keys), reason="deleted at the broker")
                for key in keys:
                    self._settle(key)
            finally:
                self._deleting.clear()
