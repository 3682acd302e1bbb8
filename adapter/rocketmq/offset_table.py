"""All offsets of a broker, as GET_ALL_CONSUMER_OFFSET returns them, and what changed since they were looked at the last time.

The body is the text of consumerOffset.json (with LMQ: lmqConsumerOffset.json). A poll costs what changed, plus one comparison of
bytes for each topic of a group: a member of the table that is the same text as before is not parsed. Whatever is not written as
brokers write it goes through the importer's parser (`adapter.formats.rocketmq_json`), which is slow and exact. In either case the
names of groups and shards are the importer's.
"""

import io
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from adapter.errors import InvalidInputError
from adapter.formats.rocketmq_json import BROADCAST, SEPARATOR, Queues, broker_file
from adapter.formats.rocketmq_rows import rows_of
from adapter.formats.rows import Naming, OffsetRow, Reject
from adapter.model.queues import QUEUE_MAX
from adapter.model.records import LONG_MAX
from adapter.rocketmq.errors import BrokerError
from adapter.runtime.slices import others

# The broker's own groups (MixAll.CID_SYS_RMQ_TRANS and those of MixAll.CID_RMQ_SYS_PREFIX): transactions, delays, POP's revival.
# Their offsets belong to files and memory of the broker that are not kept here, so it alone decides where they stand.
INTERNAL_GROUPS = ("CID_RMQ_SYS_", "CID_SYS_RMQ_TRANS")

_SLICE = 500  # members compared between two yields: well under a millisecond
_SLOW_SLICE = 50  # members that have to be parsed
_BEGIN = b'"offsetTable":{'
_LMQ_BEGIN = b'"lmqOffsetTable":{'
_MEMBER = re.compile(rb'"([^"\\\x00-\x1f]*+)":\{([0-9:,"-]*+)\}[,}]')
_LMQ_MEMBER = re.compile(rb'"([^"\\\x00-\x1f]*+)":(-?[0-9]{1,19})[,}]')
# A broker takes and stores an offset below 0, and answers "not found" for it; neither has the importer an offset there.
_PAIR = re.compile(rb'"?([0-9]{1,10})"?:"?(-?[0-9]{1,19})"?')

Queue = tuple[str, str, int]  # group, topic, queue number


class TableChanges(NamedTuple):
    """What differs from the table before. `rejects` are entries that no name or number can be made of, told once."""

    changed: list[OffsetRow]
    gone: list[OffsetRow]  # with the offset that they had
    rejects: list[Reject]


class OffsetTable:
    """The newest table of one broker. Not thread-safe; one poll at a time."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._members: dict[bytes, bytes] = {}
        self._body = b""
        self._told: set[bytes] = set()

    def has(self, group: str, topic: str, queue: int) -> bool:
        """True if the newest table has an offset of this queue of a group."""
        return queue in (_pairs(self._members.get(f"{topic}{SEPARATOR}{group}".encode(), b"")) or {})

    async def take(self, body: bytes) -> TableChanges:
        """Make this the newest table. Raises BrokerError, and keeps the one before, if it cannot be read."""
        changes = TableChanges([], [], [])
        if body == self._body:
            return changes
        members = await _members(body)
        before = self._members
        done = 0
        for key, queues in members.items():
            done += 1
            if before.get(key) != queues:
                if not self._compare(key, before.get(key, b""), queues, changes) and key in before:
                    members[key] = before[key]  # what cannot be read changes nothing
                done += _SLICE // _SLOW_SLICE
            if done >= _SLICE:
                await others()
                done = 0
        if len(before) != len(members) or before.keys() != members.keys():
            for done, key in enumerate(before.keys() - members.keys()):
                if done and done % _SLOW_SLICE == 0:
                    await others()
                self._compare(key, before[key], b"", changes)
        self._members, self._body = members, body
        return changes

    def _compare(self, key: bytes, before: bytes, now: bytes, changes: TableChanges) -> bool:
        """Add what differs between two texts of the queues of a topic and group. False if the newer one cannot be read."""
        if _is_internal(key):
            return True
        old, new = _pairs(before), _pairs(now)
        if new is None:
            self._reject(key, now, "has a queue or an offset that is no whole number in its range", changes)
            return False
        old = old or {}
        moved = [(queue, offset) for queue, offset in new.items() if old.get(queue) != offset]
        gone = [(queue, offset) for queue, offset in old.items() if queue not in new]
        changes.changed.extend(self._rows(key, moved, changes))
        changes.gone.extend(self._rows(key, gone, changes))
        return True

    def _rows(self, key: bytes, offsets: list[tuple[int, int]], changes: TableChanges) -> Iterator[OffsetRow]:
        if not offsets:
            return
        try:
            topic, group = _names(key)
        except InvalidInputError as error:
            self._reject(key, b"", str(error), changes)
            return
        for row in rows_of(iter([Queues(0, "", group, topic, "", offsets)]), self._naming):
            if isinstance(row, Reject):
                self._reject(key, row.text.encode(), row.reason, changes)
            else:
                yield row

    def _reject(self, key: bytes, text: bytes, reason: str, changes: TableChanges) -> None:
        if key not in self._told:
            self._told.add(key)
            changes.rejects.append(Reject(0, key.decode(errors="replace"), text.decode(errors="replace"), reason))


async def _members(body: bytes) -> dict[bytes, bytes]:
    """`topic@group` -> the text of its queues. Raises BrokerError for what is no table."""
    found = await _plain_members(body)
    return await _any_members(body) if found is None else found


async def _plain_members(body: bytes) -> dict[bytes, bytes] | None:
    """The members of a table that is written as brokers write it; None for any other."""
    found: dict[bytes, bytes] = {}
    for begin, pattern, form in ((_BEGIN, _MEMBER, b"%b"), (_LMQ_BEGIN, _LMQ_MEMBER, b"0:%b")):
        at = body.find(begin)
        if at < 0 and begin is _LMQ_BEGIN:
            continue
        if at < 0 or body.find(begin, at + 1) >= 0:
            return None
        at += len(begin)
        if body[at : at + 1] == b"}":
            continue
        done = 0
        while True:
            member = pattern.match(body, at)
            if member is None or member[1] in found:
                return None
            found[member[1]] = form % member[2]
            at = member.end()
            if body[at - 1 : at] == b"}":
                break
            done += 1
            if done % _SLICE == 0:
                await others()
    return found


async def _any_members(body: bytes) -> dict[bytes, bytes]:
    """The members of any table that can be read, in the form in which brokers write them."""
    if b'"offsetTable"' not in body:  # else all offsets would count as deleted
        raise BrokerError("the broker's table of offsets has no offsetTable")
    queues: dict[bytes, dict[int, int]] = {}
    try:
        for done, entry in enumerate(broker_file(io.BytesIO(body))):
            if done % _SLOW_SLICE == 0:
                await others()
            if isinstance(entry, Queues):
                key = f"{entry.topic}{SEPARATOR}{entry.group}".encode()
                queues.setdefault(key, {}).update(entry.offsets)
    except InvalidInputError as error:
        raise BrokerError(f"the broker's table of offsets cannot be read: {error}") from error
    return {key: b",".join(b"%d:%d" % pair for pair in some.items()) for key, some in queues.items()}


def _pairs(text: bytes) -> Mapping[int, int] | None:
    """Queue -> offset; None if the text is anything else."""
    if not text:
        return {}
    found: dict[int, int] = {}
    for part in text.split(b","):
        pair = _PAIR.fullmatch(part)
        if pair is None:
            return None
        queue, offset = int(pair[1]), int(pair[2])
        if queue > QUEUE_MAX or offset > LONG_MAX:
            return None
        if offset >= 0:
            found[queue] = offset
    return found


def _names(key: bytes) -> tuple[str, str]:
    """Topic and group of `topic@group`, as the importer has them. Raises InvalidInputError."""
    try:
        topic, *rest = key.decode().split(SEPARATOR)
    except UnicodeDecodeError:
        raise InvalidInputError("key: is not UTF-8") from None
    if len(rest) == 1 or (len(rest) == 2 and rest[1] == BROADCAST):  # noqa: PLR2004 - topic@group@broadcast
        return topic, SEPARATOR.join(rest)
    raise InvalidInputError("key: is not topic@group")


def _is_internal(key: bytes) -> bool:
    _, _, group = key.rpartition(b"@")
    return group.decode(errors="replace").startswith(INTERNAL_GROUPS)
