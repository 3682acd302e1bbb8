"""One target for each parser: bytes in, AssertionError or any other error but NotReadableError out when a promise is broken.

The promises: only NotReadableError, every entry a row or a reject as the reference says, the same wherever chunks are cut, and a
file that is torn is never taken for a whole one. The target `http2` is in http2.py; requests, forms,
settings and segments are in own_inputs.py; calls and replies are in rpcs.py and replies.py, what a RocketMQ broker answers in
rocketmq.py, what RobustMQ's brokers and nodes send to the front in robustmq.py.
"""

import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from adapter.client.offset_store.local_file import LocalFileOffsetStore
from adapter.errors import InvalidInputError, StoreVersionError
from adapter.formats import kafka_csv, offsets_json, rocketmq_json, rocketmq_rocksdb, rocketmq_rows, rocksdb_layouts
from adapter.formats.rocketmq_json import Queues
from adapter.formats.rocksdb_layouts import Entry
from adapter.formats.rows import Naming, NotReadableError, OffsetRow, Reject
from adapter.model.queues import queue_of
from tests.fuzz import reference
from tests.fuzz.http2 import http2
from tests.fuzz.own_inputs import OWN_INPUTS
from tests.fuzz.reference import Expected, Members, Number
from tests.fuzz.replies import REPLIES
from tests.fuzz.robustmq import ROBUSTMQ
from tests.fuzz.rocketmq import ROCKETMQ
from tests.fuzz.rpcs import RPCS

GROUP = "g"
WHOLE = 2**20  # bytes of a chunk: more than any input has
Rows = Iterator[OffsetRow | Reject]


class Outcome(NamedTuple):
    """What was read, and the error at its end; empty: none."""

    found: list[OffsetRow | Reject]
    error: str

    @property
    def rows(self) -> list[reference.Row]:
        """In their order."""
        return [(row.group, row.shard, row.offset) for row in self.found if isinstance(row, OffsetRow)]

    @property
    def expected(self) -> Expected:
        """As the reference says it."""
        return Expected(self.rows, sum(isinstance(found, Reject) for found in self.found))


def broker(data: bytes) -> None:
    """consumerOffset.json and lmqConsumerOffset.json."""
    _streamed(data, _broker, lambda value: reference.broker(value) if isinstance(value, Members) else None)


def client(data: bytes) -> None:
    """A client's offsets.json."""
    _streamed(data, _client, lambda value: reference.client(value, GROUP) if isinstance(value, Members) else None)


def own(data: bytes) -> None:
    """Our JSON."""
    _streamed(data, _own, lambda value: reference.own(value) if isinstance(value, list) and _is_array(value) else None)


def kafka(data: bytes) -> None:
    """Kafka's CSV: a row or a reject for each line that is not blank."""
    outcome = _outcome(lambda: kafka_csv.read(BytesIO(data), Naming()))
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        assert outcome.error
        return
    assert not outcome.error
    lines = [line.removesuffix(b"\r") for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    lines = [line for line in lines if line.strip() or len(line) > kafka_csv.LINE_MAX_BYTES]
    assert len(outcome.found) == len(lines)
    if not any(b'"' in line or len(line) > kafka_csv.LINE_MAX_BYTES for line in lines):
        # A line that is not UTF-8 is none; nor is one with this character, which no name may have.
        assert outcome.expected == reference.kafka([line.decode(errors="replace").replace("\ufffd", "\x00") for line in lines])


def v1(data: bytes) -> None:
    """A row of RocksDB V1: one byte for the length of the key, the key, the value."""
    size = data[0] if data else 0
    key, value = data[1 : 1 + size], data[1 + size :]
    outcome = _outcome(lambda: rocketmq_rows.rows_of(rocksdb_layouts.decode_v1(key, value), Naming()))
    assert not outcome.error
    try:
        found = reference.document(value)
        expected = reference.of_row(key, found)
    except ValueError:
        return
    if value.startswith(b"\xef\xbb\xbf"):
        return
    assert sorted(outcome.rows) == sorted(expected.rows if expected else [])
    assert outcome.expected.rejects == (expected.rejects if expected else 1)


def v2(data: bytes) -> None:
    """A row of RocksDB V2: the same form. What is taken is written as the same bytes again."""
    size = data[0] if data else 0
    key, value = data[1 : 1 + size], data[1 + size :]
    entries = list(rocketmq_rocksdb._topic_v2(rocketmq_rocksdb._without_queue((key, value)), [(key, value)]))
    taken = [entry for entry in entries if isinstance(entry, Queues)]
    said = _v2(key, value)
    assert len(entries) == (key != rocksdb_layouts.CONSUMER_VERSION)
    assert [(each.group, each.topic, *each.offsets[0]) for each in taken] == ([said] if said else [])
    assert said is None or rocksdb_layouts.encode_v2(Entry(*said)) == (key, value)
    assert len(list(rocketmq_rows.rows_of(iter(entries), Naming()))) == len(entries)


def local(data: bytes) -> None:
    """LocalFileOffsetStore: offsets.json, and behind a line of `--` its .bak. Without that line there is none."""
    main, has_backup, backup = data.partition(b"\n--\n")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        store = LocalFileOffsetStore(Path(directory), "client", GROUP)
        store.path.parent.mkdir(parents=True)
        store.path.write_bytes(main)
        parts = [main]
        if has_backup:
            store.path.with_name("offsets.json.bak").write_bytes(backup)
            parts.append(backup)
        readable = [offsets for part in parts if (offsets := _stored(part)) is not None]
        try:
            found = store._read_file()
        except InvalidInputError:
            assert not readable
        except StoreVersionError as error:
            reason = str(error)
            assert "is an unknown table" in reason  # as a later version would write it
        else:
            assert {(queue.broker_name, queue.topic, queue.queue_id): offset for queue, offset in found.items()} == readable[0]


TARGETS: dict[str, Callable[[bytes], None]] = {
    "broker": broker,
    "client": client,
    "own": own,
    "kafka": kafka,
    "v1": v1,
    "v2": v2,
    "local": local,
    "http2": http2,
    **OWN_INPUTS,
    **RPCS,
    **REPLIES,
    **ROCKETMQ,
    **ROBUSTMQ,
}


def _broker(data: bytes, chunk: int) -> Rows:
    return rocketmq_rows.rows_of(rocketmq_json.broker_file(BytesIO(data), chunk), Naming())


def _client(data: bytes, chunk: int) -> Rows:
    return rocketmq_rows.rows_of(rocketmq_json.client_file(BytesIO(data), chunk), Naming(group=GROUP))


def _own(data: bytes, chunk: int) -> Rows:
    return offsets_json.read(BytesIO(data), Naming(), chunk)


def _streamed(data: bytes, read: Callable[[bytes, int], Rows], said: Callable[[Any], Expected | None]) -> None:
    """All promises of a parser that reads a JSON stream. The input itself says how it is cut."""
    whole = _outcome(lambda: read(data, WHOLE))
    chunk = 1 + sum(data) % 64
    pieces = _outcome(lambda: read(data, chunk))
    assert pieces.error == whole.error, chunk
    # How much comes before an error may differ: nobody may use it.
    most = min(len(pieces.found), len(whole.found)) if whole.error else len(whole.found)
    assert pieces.found[:most] == whole.found[:most], chunk
    assert whole.error or len(pieces.found) == most, chunk
    try:
        value = reference.document(data)
    except ValueError:
        return
    expected = said(value)
    if expected is None:
        assert whole.error
        return
    assert not whole.error
    assert whole.expected == expected
    if isinstance(value, Members):
        plain = _plain(value).encode()
        assert _outcome(lambda: read(plain, chunk)).expected == expected, "as fastjson writes it"
    end = len(data.rstrip(b" \t\r\n"))
    torn = _outcome(lambda: read(data[: sum(data) % end], WHOLE))
    assert torn.error
    sure = len(torn.rows) - 1  # the last number may be cut
    assert torn.rows[: max(sure, 0)] == whole.rows[: max(sure, 0)]


def _outcome(read: Callable[[], Rows]) -> Outcome:
    found: list[OffsetRow | Reject] = []
    try:
        for each in read():
            found.append(each)  # noqa: PERF402 - what comes before an error counts
    except NotReadableError as error:
        return Outcome(found, str(error))
    return Outcome(found, "")


def _plain(value: Any) -> str:
    """As fastjson writes it: keys that are numbers or objects stand there without quotes."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, Members):
        return "{" + ",\n".join(f"{_plain_key(key)}:{_plain(member)}" for key, member in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return json.dumps(value)


def _plain_key(key: str) -> str:
    if key.removeprefix("-").isascii() and key.removeprefix("-").isdecimal() and len(key) < reference.DIGITS_MAX:
        return key
    try:
        found = reference.document(key.encode())
    except ValueError:
        return json.dumps(key)
    return key if isinstance(found, Members) else json.dumps(key)


def _is_array(value: list[Any]) -> bool:
    return not isinstance(value, Members)


def _v2(key: bytes, value: bytes) -> tuple[str, str, int, int] | None:
    """RocketMQ's ConsumerOffsetManagerV2, read a second time."""
    if not key.startswith(b"\x01\x00\x01\x02") or len(value) != 8:
        return None
    names, at = [], 4
    for _ in range(2):
        size = int.from_bytes(key[at : at + 2])
        names.append(key[at + 2 : at + 2 + size])
        at += 2 + size + 1
        if at > len(key) or key[at - 1] != 1 or len(names[-1]) != size:
            return None
    if len(key) - at != 4:
        return None
    queue, offset = struct.unpack(">iq", key[at:] + value)
    try:
        group, topic = (name.decode() for name in names)
    except UnicodeDecodeError:
        return None
    return (group, topic, queue, offset) if min(queue, offset) >= 0 else None


def _stored(data: bytes) -> dict[tuple[str, str, int], int] | None:
    """What a file of the store holds; None when it is not to be trusted. Of a queue that is there twice the last one counts."""
    outcome = _outcome(lambda: _client(data, WHOLE))
    if outcome.error or outcome.expected.rejects:
        return None
    queues = [queue_of(row.shard) for row in outcome.found if isinstance(row, OffsetRow)]
    if not all(queues):
        return None
    names = [(queue.broker_name, queue.topic, queue.queue_id) for queue in queues if queue]
    return dict(zip(names, (row[2] for row in outcome.rows), strict=True))
