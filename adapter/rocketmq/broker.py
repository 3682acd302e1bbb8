"""A broker's calls as methods, with every answer checked: a number that cannot be right is an error, never an offset.

Codes and fields are those of RequestCode in RocketMQ 4.9 and 5.5. Every method raises BrokerError, or BrokerRefusedError when the
broker answers with an error.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from adapter.errors import InvalidInputError
from adapter.model.names import check_name
from adapter.model.records import LONG_MAX
from adapter.rocketmq.config import RocketmqSection
from adapter.rocketmq.connection import Connection, open_connection
from adapter.rocketmq.errors import BrokerError, BrokerRefusedError
from adapter.rocketmq.signing import Signer
from adapter.runtime.slices import others

QUERY_CONSUMER_OFFSET = 14
UPDATE_CONSUMER_OFFSET = 15
GET_BROKER_CONFIG = 26
GET_BROKER_RUNTIME_INFO = 28
SEARCH_OFFSET_BY_TIMESTAMP = 29
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
GET_CONSUMER_LIST_BY_GROUP = 38
GET_ALL_CONSUMER_OFFSET = 43
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
GET_TOPIC_STATS_INFO = 202
INVOKE_BROKER_TO_RESET_OFFSET = 222

SYSTEM_ERROR = 1
TOPIC_NOT_EXIST = 17
QUERY_NOT_FOUND = 22
SUBSCRIPTION_GROUP_NOT_EXIST = 26
SLAVE = "SLAVE"

_RESETS = "useServerSideResetOffset"
_GROUP_NAME = re.compile(rb'"groupName":("(?:[^"\\]|\\.)*+")')
_SLICE = 500  # names read between two yields
_SETTING = re.compile(rf"(?m)^(brokerName|brokerRole|{_RESETS}|autoCreateSubscriptionGroup|configManagerVersion)=(.*)$")


class Identity(NamedTuple):
    """Who a broker is. `resets`: it can reset a queue of a group that is online. `creates`: it makes groups by itself.

    `is_v2`: its offsets are in `config/rdb`, and its table of all offsets leaves out those of light topics. `says_missing`: asked
    for one offset that it does not have, it says so. 4.9 may say 0 instead.

    `boot_ms` is when it was started (Unix time in milliseconds); 0 in about the first second of its life: it then answers the
    question with an error, because it has no statistics yet. `version` is empty then.
    """

    name: str
    boot_ms: int
    version: str
    role: str
    resets: bool
    creates: bool
    is_v2: bool = False
    says_missing: bool = False

    def is_same_life(self, other: "Identity") -> bool:
        """True for the same start of the same broker in the same role, as far as that is known of both."""
        return self.boot_ms > 0 and self[:2] == other[:2] and self[3:] == other[3:]

    @property
    def is_slave(self) -> bool:
        """True for a copy: the master commits."""
        return self.role == SLAVE


class LogBounds(NamedTuple):
    """The first offset of a queue, and the offset that its next message gets."""

    low: int
    high: int


class Broker:
    """A broker behind an open connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def bytes_read(self) -> int:
        """Bytes of all answers on this connection."""
        return self._connection.bytes_read

    async def identity(self) -> Identity:
        """Who the broker is, in two calls at once: in a broker that has just started, the first calls take long."""
        (boot_ms, version), reply = await asyncio.gather(self._runtime(), self._connection.call(GET_BROKER_CONFIG))
        found: dict[str, str] = dict(_SETTING.findall(reply.body.decode(errors="replace")))
        try:
            name = check_name(found.get("brokerName", "").strip(), "brokerName")
        except InvalidInputError as error:
            raise BrokerError(f"the broker's settings cannot be used: {error}") from error
        return Identity(
            name,
            boot_ms,
            version,
            found.get("brokerRole", "").strip(),
            resets=found.get(_RESETS, "").strip() == "true",
            creates=found.get("autoCreateSubscriptionGroup", "").strip() == "true",
            is_v2=found.get("configManagerVersion", "").strip() == "v2",
            says_missing=_RESETS in found,  # both came with 5.0
        )

    async def _runtime(self) -> tuple[int, str]:
        try:
            reply = await self._connection.call(GET_BROKER_RUNTIME_INFO)
        except BrokerRefusedError as error:
            if error.code == SYSTEM_ERROR:
                return 0, ""
            raise
        try:
            table = json.loads(reply.body)["table"]
            return _number(table["bootTimestamp"], "bootTimestamp"), str(table.get("brokerVersionDesc", ""))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise BrokerError("the broker's runtime information has no bootTimestamp") from None

    async def offsets(self) -> bytes:
        """All offsets of all groups, as consumerOffset.json has them."""
        return (await self._connection.call(GET_ALL_CONSUMER_OFFSET)).body

    async def offset(self, group: str, topic: str, queue: int) -> int | None:
        """A group's offset; None if the broker has none. Only for a broker whose identity `says_missing`."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "setZeroIfNotFound": "false"}
        try:
            found = await self._offset(QUERY_CONSUMER_OFFSET, fields)
        except BrokerRefusedError as error:
            if error.code == QUERY_NOT_FOUND:
                return None
            raise
        return None if found < 0 else found

    async def update_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Set a group's offset, as a consumer's commit does. Consumers that are online keep their own position."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}
        await self._connection.call(UPDATE_CONSUMER_OFFSET, fields)

    async def groups(self) -> set[str]:
        """The names of the groups that the broker knows; none of light groups. The question for one group would make it."""
        body = (await self._connection.call(GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body
        # Parsed as a whole it would hold up others, for 10 ms a MiB. A reference stands for a group whose name is not written.
        if b'"subscriptionGroupTable"' not in body or b'"$ref"' in body:
            raise BrokerError("the broker's table of groups cannot be read")
        names: set[str] = set()
        for done, found in enumerate(_GROUP_NAME.finditer(body), start=1):
            names.add(str(json.loads(found[1])))
            if done % _SLICE == 0:
                await others()
        return names

    async def create_group(self, group: str) -> None:
        """Make a group with the settings that it gets when its first consumer appears."""
        body = json.dumps({"groupName": group}, ensure_ascii=False).encode()
        await self._connection.call(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def reset_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Reset a queue of a group, also for consumers that are online. Only for a broker whose identity says `resets`.

        Any other one would ignore queue and offset, and reset all queues by `timestamp`.
        """
        fields = {
            "topic": topic,
            "group": group,
            "queueId": str(queue),
            "offset": str(offset),
            "timestamp": "0",
            "isForce": "true",
        }
        await self._connection.call(INVOKE_BROKER_TO_RESET_OFFSET, fields)

    async def has_consumers(self, group: str) -> bool:
        """True while a consumer of the group is connected to this broker."""
        try:
            await self._connection.call(GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
        except BrokerRefusedError:  # "no consumer for this group"
            return False
        return True

    async def bounds(self, topic: str, queue: int) -> LogBounds:
        """The bounds of a queue; (0, 0) for one that does not exist."""
        where = {"topic": topic, "queueId": str(queue)}
        low = max(await self._offset(GET_MIN_OFFSET, where), 0)
        high = max(await self._offset(GET_MAX_OFFSET, where), 0)
        if low > high:
            raise BrokerError(f"queue {queue} of topic {topic} begins at {low} and ends before, at {high}")
        return LogBounds(low, high)

    async def offset_for_time(self, topic: str, queue: int, timestamp_ms: int) -> int:
        """The offset that the broker finds for a time: the end of the log, or before it, when all messages are older."""
        fields = {"topic": topic, "queueId": str(queue), "timestamp": str(timestamp_ms)}
        return max(await self._offset(SEARCH_OFFSET_BY_TIMESTAMP, fields), 0)

    async def has_topic(self, topic: str) -> bool:
        """False for a topic that the broker does not have."""
        try:
            await self._connection.call(GET_TOPIC_STATS_INFO, {"topic": topic})
        except BrokerRefusedError as error:
            if error.code == TOPIC_NOT_EXIST:
                return False
            raise
        return True

    async def _offset(self, code: int, fields: dict[str, str]) -> int:
        reply = await self._connection.call(code, fields)
        text = reply.fields.get("offset", "")
        return -1 if text == "-1" else _number(text, f"the offset of {fields['topic']}/{fields['queueId']}")


@asynccontextmanager
async def connected(section: RocketmqSection, signer: Signer | None) -> AsyncIterator[Broker]:
    """A connection to the broker of a section. Raises BrokerError."""
    async with open_connection(section, signer) as connection:
        yield Broker(connection)


def _number(value: object, what: str) -> int:
    """A whole number from 0 to 2^63 - 1, as text or number. Raises BrokerError."""
    text = str(value)
    if text.isascii() and text.isdecimal() and len(text) <= len(str(LONG_MAX)) and (number := int(text)) <= LONG_MAX:
        return number
    raise BrokerError(f"{what} is {text[:50]!r}, no whole number from 0 to {LONG_MAX}")
