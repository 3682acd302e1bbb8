"""The store alone: a loop that puts prepared keys and values in the adapter's encoding into a WriteBatch and writes it.

    python -m benchmarks.bare '{"path": "...", "keys": 1024, "size": 128, "messages": 100, "first": 1}'

The store is opened with the adapter's options. Nothing is synced. Prints one line of JSON.
"""

import json
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rocksdict import Rdict, WriteBatch

from adapter.model.codec import encode_key, encode_record
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.runtime.durable import rocks
from benchmarks.fast_path_load import names_of

FORM = struct.Struct(">QQQQ?IBH")
COMMITTED_AT_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Loop:
    """The work: `messages` batches of `size` keys out of `keys`. Offsets start at `first`."""

    path: str
    keys: int
    size: int
    messages: int
    first: int


def main(loop: Loop) -> dict[str, float]:
    """Offsets per second with prepared values and with values packed in the loop; CPU microseconds for a prepared one."""
    keys = [
        [encode_key(OffsetKey("default", group, shard)) for shard in shards] for group, shards in names_of(loop.keys, loop.size)
    ]
    store = rocks.open_store(Path(loop.path), ("default",), "")
    db = store.db
    _write(db, keys, _values(loop, 0, len(keys)))
    ready = _values(loop, loop.first, loop.messages)
    offsets = loop.messages * loop.size
    started, cpu_s = time.perf_counter(), time.process_time()
    _write(db, keys, ready)
    took, cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
    del ready
    started = time.perf_counter()
    for number in range(loop.messages):
        values = [_value(loop.first + loop.messages + number, number * loop.size + at) for at in range(loop.size)]
        _write(db, keys, [values], number)
    packed = time.perf_counter() - started
    store.close()
    return {"per_s": offsets / took, "packed_per_s": offsets / packed, "cpu_us": cpu_s / offsets * 1e6}


def _value(offset: int, seq: int) -> bytes:
    return FORM.pack(seq, 1, offset, COMMITTED_AT_MS, True, 0, 0, 0)  # noqa: FBT003 - `live`


def _values(loop: Loop, first: int, messages: int) -> list[list[bytes]]:
    assert _value(2, 3) == encode_record(OffsetRecord(1, 2, committed_at_ms=COMMITTED_AT_MS), 3), "not the adapter's form"
    return [[_value(first + number, number * loop.size + at) for at in range(loop.size)] for number in range(messages)]


def _write(db: Rdict, keys: Sequence[Sequence[bytes]], batches: Sequence[Sequence[bytes]], begin: int = 0) -> None:
    for number, values in enumerate(batches, start=begin):
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in zip(keys[number % len(keys)], values, strict=True):
            put(key, value)
        db.write(batch)


if __name__ == "__main__":
    print(json.dumps(main(Loop(**json.loads(sys.argv[1])))))
