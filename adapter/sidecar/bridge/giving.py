"""What is sent to the broker: offsets that it lost or never had, and resets. Never beyond the end of a queue's log.

An offset behind the end of the log belongs to another log: to one that was lost, or of a topic that was made anew. A broker that
got it, or the present end in its place, would skip messages that nobody has read. So it is left alone.

What is given because the broker's own offset is older, or absent, is preceded by the question what the broker has now: its table
does not tell everything, and a consumer may have committed since.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeVar

import anyio
import structlog

from adapter.formats.rocketmq_json import LMQ
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.rocketmq.broker import SUBSCRIPTION_GROUP_NOT_EXIST, Broker, Identity, LogBounds
from adapter.rocketmq.errors import BrokerError, BrokerRefusedError
from adapter.sidecar.bridge.agreement import Act

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 32  # calls that overlap on one connection

log = structlog.get_logger(__name__)


class Gift(NamedTuple):
    """An offset for the broker: of which queue, what stands here, what the broker has (None: nothing), and how it gets it."""

    key: OffsetKey
    topic: str
    queue: int
    stored: OffsetRecord
    at_broker: int | None
    act: Act


class Given(NamedTuple):
    """What became of a gift: `at_broker` is what the broker has now.

    `beyond`: the log ends before the offset. `refused`: the broker's reason, when it did not take the offset (yet).
    """

    gift: Gift
    at_broker: int | None
    beyond: bool = False
    refused: str = ""

    @property
    def moved(self) -> bool:
        """True when the broker has another value than before."""
        return not self.refused and self.at_broker != self.gift.at_broker


class Giver:
    """Gives offsets to one broker."""

    def __init__(self, broker: Broker, identity: Identity) -> None:
        self._broker = broker
        self._identity = identity
        self._bounds: dict[tuple[str, int], LogBounds] = {}

    async def bounds(self, topic: str, queue: int) -> LogBounds:
        """The bounds of a queue, asked once in the life of this object."""
        known = self._bounds.get((topic, queue))
        if known is None:
            known = self._bounds[topic, queue] = await self._broker.bounds(topic, queue)
        return known

    async def give(self, gifts: Iterable[Gift]) -> list[Given]:
        """Give them all, some at a time. Raises BrokerError when the connection fails half way: nothing is known then."""
        return await at_once(gifts, self._give)

    async def _give(self, gift: Gift) -> Given:
        bounds = await self.bounds(gift.topic, gift.queue)
        if gift.stored.offset > bounds.high:
            return Given(gift, gift.at_broker, beyond=True)
        offset = max(gift.stored.offset, bounds.low)
        if offset == gift.at_broker or (gift.act is Act.GIVE and gift.at_broker is not None and offset < gift.at_broker):
            return Given(gift, gift.at_broker)
        try:
            if gift.act is Act.GIVE and await self._has(gift, offset):
                return Given(gift, gift.at_broker)  # as it was: what the broker has is news, and comes by the next look at it
            await self._send(gift, offset)
        except BrokerRefusedError as error:
            return Given(gift, gift.at_broker, refused=str(error))
        return Given(gift, offset)

    async def _has(self, gift: Gift, offset: int) -> bool:
        """True if the broker has this offset by now, or a larger one. An older broker cannot be asked, but hides nothing."""
        if not self._identity.says_missing:
            return False
        found = await self._broker.offset(gift.key.group, gift.topic, gift.queue)
        return found is not None and found >= offset

    async def _send(self, gift: Gift, offset: int) -> None:
        send = self._reset if gift.act is Act.RESET else self._update
        try:
            await send(gift, offset)
        except BrokerRefusedError as error:
            # A broker that lost its groups with its offsets would make this one for its first consumer, who then begins anywhere.
            if error.code != SUBSCRIPTION_GROUP_NOT_EXIST or not self._identity.creates:
                raise
            await self._broker.create_group(gift.key.group)
            await send(gift, offset)

    async def _update(self, gift: Gift, offset: int) -> None:
        await self._broker.update_offset(gift.key.group, gift.topic, gift.queue, offset)

    async def _reset(self, gift: Gift, offset: int) -> None:
        """Reset a queue, with the consumers that are online where the broker can do that (5.x, useServerSideResetOffset)."""
        group = gift.key.group
        if self._identity.resets:
            # Of a light queue a broker resets what its consumers get next, and not what it keeps.
            if gift.at_broker is None or gift.topic.startswith(LMQ):
                await self._update(gift, offset)
            await self._broker.reset_offset(group, gift.topic, gift.queue, offset)
            return
        await self._update(gift, offset)
        if await self._broker.has_consumers(group):
            log.warning(
                "rocketmq.reset_with_consumers",
                group=group,
                shard=gift.key.shard,
                offset=offset,
                broker=self._identity.version,
                help="this broker cannot reset consumers that are online, and they go on from where they are: stop them, and "
                "reset again",
            )


async def at_once(items: Iterable[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """What `work` returns for each item, in any order. Raises the first BrokerError, after the calls under way."""
    left = list(items)
    done: list[R] = []
    errors: list[BrokerError] = []

    async def worker() -> None:
        while left and not errors:
            item = left.pop()
            try:
                done.append(await work(item))
            except BrokerError as error:
                errors.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(min(AT_ONCE, len(left))):
            tasks.start_soon(worker)
    if errors:
        raise errors[0]
    return done
