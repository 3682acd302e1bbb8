"""What a RocketMQ broker answers to the bridge: frames, and tables of all its offsets, one after the other.

The promises: an answer is read, or it is a BrokerError; the short way of reading a table and the importer's way find the same
offsets; and what is told to have changed leads from each table to the next.
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping

from adapter.formats.rows import Naming, OffsetRow
from adapter.rocketmq import frames, offset_table
from adapter.rocketmq.errors import BrokerError
from adapter.rocketmq.offset_table import OffsetTable, TableChanges
from tests.fuzz.running import wait

Offsets = dict[tuple[str, str, str], int]


def frame(data: bytes) -> None:
    """A frame without its length: what is read in the binary form is read in JSON as well."""
    try:
        reply = frames.decode_reply(data)
    except BrokerError:
        return
    header = {"code": reply.code, "opaque": reply.opaque, "flag": int(reply.is_reply), "remark": reply.remark}
    text = json.dumps(header | {"extFields": reply.fields}).encode()
    assert frames.decode_reply(frames.LENGTH.pack(len(text)) + text + reply.body) == reply


def table(data: bytes) -> None:
    """Bodies of GET_ALL_CONSUMER_OFFSET, divided by a line of two hyphens."""
    followed, held = OffsetTable(Naming()), Offsets()
    for body in data.split(b"\n--\n"):
        _compare_ways(body)
        try:
            changes = wait(followed.take(body))
        except BrokerError:
            continue  # the one before is kept
        for row in changes.gone:
            assert held.pop((row.namespace, row.group, row.shard)) == row.offset
        held |= _by_key(changes.changed)
        whole = wait(OffsetTable(Naming()).take(body))
        if not whole.rejects:  # of which what stood before stays
            assert held == _by_key(whole.changed)


def _compare_ways(body: bytes) -> None:
    plain = wait(offset_table._plain_members(body))
    try:
        found = wait(offset_table._any_members(body))
    except BrokerError:
        return
    if plain is not None:
        # Of a member with a queue that is none the bridge takes nothing, and says so; the importer leaves out that queue alone.
        told = {key for key, text in plain.items() if _changes({key: text}).rejects}
        assert _rows(plain) == _rows({key: text for key, text in found.items() if key not in told})


def _rows(members: Mapping[bytes, bytes]) -> Offsets:
    return _by_key(_changes(members).changed)


def _changes(members: Mapping[bytes, bytes]) -> TableChanges:
    empty = OffsetTable(Naming())
    changes = TableChanges([], [], [])
    for key, text in members.items():
        empty._compare(key, b"", text, changes)
    return changes


def _by_key(rows: Iterable[OffsetRow]) -> Offsets:
    return {(row.namespace, row.group, row.shard): row.offset for row in rows}


ROCKETMQ: dict[str, Callable[[bytes], None]] = {"rocketmq_frame": frame, "rocketmq_table": table}


def rocketmq_seeds(target: str) -> Iterator[bytes]:
    """What fuzzing of a target begins with."""
    if target == "rocketmq_frame":
        header = (
            b'{"code":0,"extFields":{"offset":"7","a":null},"flag":1,"language":"JAVA","opaque":5,"remark":"r","version":477}'
        )
        yield frames.LENGTH.pack(len(header)) + header + b"body"
        fields = b"".join(struct.pack(">h", len(name)) + name + struct.pack(">i", 1) + b"v" for name in (b"offset", b"x"))
        binary = struct.pack(">hBhiii", 17, 0, 477, 6, 1, 2) + "\u00e9".encode() + struct.pack(">i", len(fields)) + fields
        yield frames.LENGTH.pack(1 << 24 | len(binary)) + binary + b"{}"
    else:
        yield b"\n--\n".join(
            (
                b'{"dataVersion":{"counter":1},"offsetTable":{"T@g":{0:1,1:2},"T@h":{0:9},"CID_RMQ_SYS_T@CID_RMQ_SYS_g":{0:1}}}',
                b'{"dataVersion":{"counter":2},"offsetTable":{"T@g":{0:1,1:3},"T@i@broadcast":{"0":"4"}}}',
                b'{"lmqOffsetTable":{"%LMQ%q@%LMQ%q":7},"offsetTable":{"T@g":{2:9223372036854775808},"a@b@c":{0:1},"/@g":{}}}',
                b'{"offsetTable":{}}',
                b"",
            )
        )
        yield b'{"offsetTable": {"T\\u0040g": {"00":1}, "T@g": {"0":1.0}}}\n--\n{"offsetTable":{"T@g":{0:1},"T@g":{0:2}}}'
