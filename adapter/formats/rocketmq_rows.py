"""Converts RocketMQ's entries to rows, and writes rows to RocketMQ's offset files. At most one group is in memory.

The files can be read by fastjson of 4.x and by fastjson2: queue numbers are quoted, and a client's keys are objects.
"""

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter
from tempfile import TemporaryFile
from typing import IO

from adapter.errors import InvalidInputError
from adapter.formats.problems import USE_JSON, Sieve
from adapter.formats.rocketmq_json import BROADCAST, LMQ, LMQ_OFFSETS, OFFSETS, SEPARATOR, VERSION, Entries, Queues, data_version
from adapter.formats.rows import Naming, OffsetRow, Reject, group_for
from adapter.model.names import check_name
from adapter.model.queues import MessageQueue, queue_of, shard_of

_PLAIN_GROUP = re.compile(f"[^{SEPARATOR}]+({SEPARATOR}{BROADCAST})?")


def rows_of(entries: Entries, naming: Naming) -> Iterator[OffsetRow | Reject]:
    """The rows of a broker's or a client's file. A client's file names its brokers but no group."""
    for entry in entries:
        if isinstance(entry, Reject):
            yield entry
            continue
        try:
            yield from _rows(entry, naming)
        except InvalidInputError:
            yield from _one_by_one(entry, naming)


def _rows(entry: Queues, naming: Naming) -> list[OffsetRow]:
    """The rows of an entry. Checks its names once, with the largest queue number. Raises InvalidInputError."""
    _, _, named, topic, broker, offsets, _ = entry
    group = check_name(group_for(named, naming), "group")
    longest = shard_of(MessageQueue(topic, max(offsets)[0], broker or naming.broker))
    before, namespace = longest[: longest.rindex("/") + 1], naming.namespace
    # Takes half the time of OffsetRow(...), which processes keyword arguments.
    return [tuple.__new__(OffsetRow, (namespace, group, f"{before}{at}", offset, "", 0, topic, at, 0)) for at, offset in offsets]


def _one_by_one(entry: Queues, naming: Naming) -> Iterator[OffsetRow | Reject]:
    """The rows of an entry that `_rows` refused, with a reject for each bad one."""
    for queue, offset in entry.offsets:
        try:
            yield from _rows(entry._replace(offsets=[(queue, offset)]), naming)
        except InvalidInputError as error:
            yield Reject(entry.line, entry.place_of(queue), str(offset), str(error))


def write_broker(file: IO[bytes], rows: Iterable[OffsetRow], naming: Naming, *, lmq: bool = False) -> int:
    """Write the consumerOffset.json of the broker in `naming`, or of none; returns the number of rows.

    With `lmq` write lmqConsumerOffset.json, where groups of light message queues have their own table: each kind of broker reads
    them from its own table, and drops the other's. All rows of a group must follow each other. Raises InvalidInputError that
    names all rows that the file cannot hold.
    """
    sieve = Sieve(naming, partial(problem_of_broker, naming.broker))
    file.write(b'{\n\t"%b":%b,' % (VERSION.encode(), data_version(time.time_ns() // 1_000_000)))
    with TemporaryFile() as light:
        offsets, lmq_offsets = _Table(file, OFFSETS), _Table(light, LMQ_OFFSETS)
        for group, of_group in groupby(sieve.passed(rows), key=attrgetter("group")):
            for topic, queues in _topics(of_group).items():
                key = _json(f"{topic}{SEPARATOR}{group}")
                if lmq and group.startswith(LMQ) and 0 in queues:
                    lmq_offsets.add(key, str(queues.pop(0)))
                if queues:
                    pairs = ",".join(f'"{queue}":{offset}' for queue, offset in sorted(queues.items()))
                    offsets.add(key, f"{{{pairs}}}")
        offsets.end()
        if lmq_offsets.members:
            lmq_offsets.end()
            file.write(b",")
            light.seek(0)
            shutil.copyfileobj(light, file)
    file.write(b"\n}\n")
    return sieve.done()


def write_client(file: IO[bytes], rows: Iterable[OffsetRow], naming: Naming) -> int:
    """Write the offsets.json of the group in `naming`, which is required; returns the number of rows.

    Raises InvalidInputError that names all rows that the file cannot hold.
    """
    if not naming.group:
        raise InvalidInputError("group is missing: a client's file is of one group, which its path names")
    sieve = Sieve(naming, _problem_of_client)
    file.write(b"{")
    table = _Table(file, OFFSETS)
    for row in sieve.passed(rows):
        topic, queue, broker = _queue(row)
        table.add(f'{{"brokerName":{_json(broker)},"queueId":{queue},"topic":{_json(topic)}}}', str(row.offset))
    table.end()
    file.write(b"\n}\n")
    return sieve.done()


class _Table:
    """Writes a member of the document that is an object, in fastjson's layout."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self.members = 0
        file.write(f'\n\t"{name}":{{'.encode())

    def add(self, key: str, value: str) -> None:
        """Write one member."""
        comma = "," if self.members else ""
        self._file.write(f"{comma}\n\t\t{key}:{value}".encode())
        self.members += 1

    def end(self) -> None:
        """Close the object after its last member."""
        self._file.write(b"\n\t}")


def _topics(rows: Iterable[OffsetRow]) -> dict[str, dict[int, int]]:
    topics: dict[str, dict[int, int]] = {}
    for row in rows:
        topic, queue, _ = _queue(row)
        topics.setdefault(topic, {})[queue] = row.offset
    return topics


def _queue(row: OffsetRow) -> MessageQueue:
    queue = queue_of(row.shard)
    assert queue, "only the shards of queues pass"  # noqa: S101
    return queue


def problem_of_broker(broker: str, row: OffsetRow) -> str | None:
    """Why the file or store of `broker` cannot hold a row; None if it can. An empty `broker`: shards without a broker."""
    queue = queue_of(row.shard)
    form = "broker/topic/queue" if broker else "topic/queue"
    if not queue:
        return f"is not of the form {form}, which RocketMQ's file is made of; {USE_JSON}"
    if queue.broker_name != broker:
        whose = f"of broker {queue.broker_name!r}" if queue.broker_name else "of no broker"
        return f"is {whose}, and the file is of {f'broker {broker!r}' if broker else 'none'}; --broker names another"
    if SEPARATOR in queue.topic:
        return f"has a topic with an {SEPARATOR}, which separates topic and group in the file"
    if not _PLAIN_GROUP.fullmatch(row.group):
        return f"is of a group with an {SEPARATOR}, which separates topic and group in the file"
    return None


def _problem_of_client(row: OffsetRow) -> str | None:
    queue = queue_of(row.shard)
    if not queue or not queue.broker_name:
        return f"is not of the form broker/topic/queue, which a client's file is made of; {USE_JSON}"
    return None


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
