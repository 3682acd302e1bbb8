"""The rules of the bulk calls on packed bytes: the result of merging a record, and where to divide a listing. Pure.

Most records can be decided by comparing bytes; `decide_save` decides the others. Both give the same result:
tests/unit/metaservice/test_bulk.py.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from adapter.metaservice.engine import Differing, MergeCounts, Parts, decide_save
from adapter.model.codec import decode_record, encode_record
from adapter.model.records import EPOCH_LIMIT, FIRST_EPOCH, OffsetKey, SaveEntry, Status

# Positions of the fields in a packed record (codec.py). For live records, the bytes before LIVE sort as the register does.
EPOCH, TIME, LIVE = slice(8, 16), slice(24, 32), 32
ORDERED = slice(LIVE)
SEQ_SIZE = 8  # of the write counter at the begin
FIRST = FIRST_EPOCH.to_bytes(8, "big")
OVER_LIMIT = bytes(8) + (EPOCH_LIMIT + 1).to_bytes(8, "big")  # from here on `epoch_problem` has to be asked
KNOWN = bytes(8) + FIRST  # records below it have an unknown epoch; the write counter is always 0 here

_ANY = OffsetKey("", "", "")  # the rules do not use the key
_SAMPLES = 32  # at most, for each part: no part is more than 1/16 too large or too small
SAMPLE_KEYS = 8_192  # at most, of a store; sorted in 2 ms


class Merge:
    """Merges checked entries slice by slice and counts the results.

    With `collect_differing`, `differing` lists the entries that are not stored as offered, in order.
    """

    def __init__(self, *, collect_differing: bool = False) -> None:
        self._seen = self._superseded = 0
        self._rejected: list[tuple[int, str]] = []
        self._collect_differing = collect_differing
        self.differing: list[Differing] = []

    @property
    def counts(self) -> MergeCounts:
        """The totals so far."""
        return MergeCounts(self._seen - self._superseded - len(self._rejected), self._superseded, tuple(self._rejected))

    def changes(self, keys: Sequence[bytes], records: Sequence[bytes], values: Sequence[bytes | None]) -> dict[bytes, bytes]:
        """Return what to write for a slice of entries, in order, given the values stored under their keys."""
        staged: dict[bytes, bytes] = {}
        superseded = 0
        for at, (key, offered, standing) in enumerate(zip(keys, records, values, strict=True), self._seen):
            value = staged.get(key, standing)
            record = offered
            if record < KNOWN and (value is None or (value[LIVE] and value[EPOCH] == FIRST)):
                # What `resolve` and `decide_save` make of an unknown epoch if no epoch was raised.
                record = KNOWN + record[16:]
            if value is None and record < OVER_LIMIT:
                staged[key] = record
            elif record == value:
                continue
            elif (
                value is not None
                and record[LIVE]
                and value[LIVE]
                and KNOWN <= record < OVER_LIMIT
                and record[ORDERED] != value[ORDERED]
            ):
                if record > value:
                    staged[key] = record
                else:
                    superseded += 1
                    if self._collect_differing:
                        self.differing.append(Differing(at, Status.SUPERSEDED, value))
            else:
                status, stands, message = _decide(record, value)
                superseded += status is Status.SUPERSEDED
                self._count_result(Differing(at, status, stands or b"", message), record)
                if stands is not None and stands != value:
                    staged[key] = stands
        self._seen += len(keys)
        self._superseded += superseded
        return staged

    def added(self, records: Sequence[bytes]) -> Sequence[bytes] | None:
        """As `changes`, for entries of distinct keys under which nothing stands: what to write for each.

        None if an entry may be refused: nothing is counted then.
        """
        if max(records) >= OVER_LIMIT:
            return None
        self._seen += len(records)
        return records if min(records) >= KNOWN else [KNOWN + data[16:] if data < KNOWN else data for data in records]

    def _count_result(self, found: Differing, record: bytes) -> None:
        """Record the result of an entry that was offered as `record`."""
        if found.status is Status.INVALID:
            self._rejected.append((found.at, found.message))
        if self._collect_differing and (found.status is not Status.APPLIED or found.record != record):
            self.differing.append(found)


def stamped(records: Sequence[bytes], seq: int) -> list[bytes]:
    """The records with ascending write counters, of which `seq` is the first."""
    size = len(records[0])
    seqs = np.arange(seq, seq + len(records), dtype=">u8")
    if {*map(len, records)} != {size}:
        return [counter + data[SEQ_SIZE:] for counter, data in zip(seqs.view(f"V{SEQ_SIZE}").tolist(), records, strict=True)]
    made = np.frombuffer(b"".join(records), np.uint8).reshape(-1, size).copy()
    made[:, :SEQ_SIZE] = seqs.view(np.uint8).reshape(-1, SEQ_SIZE)
    values: list[bytes] = made.view(f"V{size}").ravel().tolist()
    return values


class KeySample:
    """About every n-th key of a store; n grows with the store. It shows where to divide a range of keys without reading it."""

    def __init__(self, limit: int = SAMPLE_KEYS) -> None:
        self._limit = limit
        self._count = 0
        self._stride = 1
        self._keys: set[bytes] = set()

    def add(self, keys: Sequence[bytes]) -> None:
        """Call with the keys that are new in the store, in any order."""
        self._keys.update(keys[-self._count % self._stride :: self._stride])
        self._count += len(keys)
        while len(self._keys) > self._limit:
            self._keys = set(sorted(self._keys)[::2])
            self._stride *= 2

    def remove(self, key: bytes) -> None:
        """Call with a key that has left the store."""
        self._keys.discard(key)

    def parts(self, prefix: bytes, parts: int) -> Parts:
        """Divide the keys that start with `prefix`. The number of records is an estimate."""
        found = sorted(key for key in self._keys if key.startswith(prefix))
        return Parts([found[end - 1] for end in _ends(len(found), parts)], len(found) * self._stride)


class RangeSample:
    """Where ranges of keys begin, in key order, and how many keys are before each. Shows where to divide all of the keys."""

    def __init__(self, limit: int = SAMPLE_KEYS) -> None:
        self.count = 0
        self._limit = limit
        self._starts: list[tuple[int, bytes]] = []

    def add(self, first: bytes, count: int) -> None:
        """Add the next range, of `count` keys from `first` on."""
        self._starts.append((self.count, first))
        self.count += count
        if len(self._starts) > self._limit:
            del self._starts[1::2]

    def parts(self, parts: int) -> Parts:
        """Divide the keys where the ranges begin, as near as that is to parts of the same size."""
        places = {bisect_left(self._starts, (end - 1, b"")) for end in _ends(self.count, parts)}
        return Parts([self._starts[place][1] for place in sorted(places) if place < len(self._starts)], self.count)


class Cuts:
    """Divides a sequence of keys, whose length is known only at its end, into parts of about the same size."""

    def __init__(self, parts: int) -> None:
        self.count = 0
        self._parts = parts
        self._stride = 1
        self._samples: list[bytes] = []  # every `_stride`-th key

    def add(self, keys: Sequence[bytes]) -> None:
        """Add the next keys of the sequence."""
        self._samples += keys[-self.count % self._stride :: self._stride]
        self.count += len(keys)
        while len(self._samples) > self._parts * _SAMPLES:
            self._samples = self._samples[::2]
            self._stride *= 2

    def parts(self) -> Parts:
        """After the last `add`: the last key of each part but the last one, and the number of keys."""
        ends = _ends(self.count, self._parts)
        return Parts([self._samples[(end - 1 + self._stride // 2) // self._stride] for end in ends], self.count)


def _ends(count: int, parts: int) -> list[int]:
    """Where each part of `count` keys but the last one ends; no part is empty."""
    return sorted({count * part // parts for part in range(1, parts)} - {0})


def _decide(record: bytes, value: bytes | None) -> tuple[Status, bytes | None, str]:
    outcome = decide_save(SaveEntry(_ANY, decode_record(record)), None if value is None else decode_record(value))
    return outcome.status, encode_record(outcome.standing) if outcome.standing else value, outcome.message
