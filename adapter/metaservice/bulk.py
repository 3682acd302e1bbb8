"""The bulk calls' rules on packed bytes: what becomes of a merged record, and where to cut a listing in parts. Pure.

What comparing bytes can decide is decided so; whatever else, `settle` decides. Both give the same:
tests/unit/metaservice/test_bulk.py.
"""

from collections.abc import Sequence

from adapter.metaservice.engine import Differing, MergeCounts, Parts, decide_save
from adapter.model.codec import decode_record, encode_record
from adapter.model.records import EPOCH_LIMIT, FIRST_EPOCH, OffsetKey, SaveEntry, Status

# Where the fields of a packed record are (codec.py). What is before LIVE is in the order of the register, between live records.
EPOCH, TIME, LIVE = slice(8, 16), slice(24, 32), 32
ORDERED = slice(LIVE)
FIRST = FIRST_EPOCH.to_bytes(8, "big")
OVER_LIMIT = bytes(8) + (EPOCH_LIMIT + 1).to_bytes(8, "big")  # from it on are epochs that may not meet everything
KNOWN = bytes(8) + FIRST  # below it are the records of unknown epoch: a write counter is always 0 here

_ANY = OffsetKey("", "", "")  # no rule looks at the key
_SAMPLES = 32  # of each part, at most: no part is larger or smaller than it should be by more than 1/16


class Merge:
    """Merges checked entries slice by slice, and counts what became of them. With `tells` also tells it.

    `differing` is then what does not stand as it was offered, each when it had its turn.
    """

    def __init__(self, *, collect_differing: bool = False) -> None:
        self._seen = self._superseded = 0
        self._rejected: list[tuple[int, str]] = []
        self._collect_differing = collect_differing
        self.differing: list[Differing] = []

    @property
    def counts(self) -> MergeCounts:
        """What became of all entries so far."""
        return MergeCounts(self._seen - self._superseded - len(self._rejected), self._superseded, tuple(self._rejected))

    def changes(self, keys: Sequence[bytes], records: Sequence[bytes], values: Sequence[bytes | None]) -> dict[bytes, bytes]:
        """What to write for entries, in their order, over the values that stand under their keys."""
        staged: dict[bytes, bytes] = {}
        superseded = 0
        for at, (key, offered, standing) in enumerate(zip(keys, records, values, strict=True), self._seen):
            value = staged.get(key, standing)
            record = offered
            if record < KNOWN and (value is None or (value[LIVE] and value[EPOCH] == FIRST)):
                # What `resolve` and `settle` make of an unknown epoch where none was raised.
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

    def _count_result(self, found: Differing, record: bytes) -> None:
        """Keep what became of an entry, offered as `record`, for the counts and for whom it has to be told."""
        if found.status is Status.INVALID:
            self._rejected.append((found.at, found.message))
        if self._collect_differing and (found.status is not Status.APPLIED or found.record != record):
            self.differing.append(found)


class Cuts:
    """Cuts a walk over keys, whose number is not known before its end, in parts of about the same number of keys."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._count = 0
        self._stride = 1
        self._samples: list[bytes] = []  # every `_stride`-th key

    def add(self, keys: Sequence[bytes]) -> None:
        """The next keys of the walk."""
        self._samples += keys[-self._count % self._stride :: self._stride]
        self._count += len(keys)
        while len(self._samples) > self._parts * _SAMPLES:
            self._samples = self._samples[::2]
            self._stride *= 2

    def parts(self) -> Parts:
        """The last keys of all parts but the last one, when the walk is over."""
        ends = sorted({self._count * part // self._parts for part in range(1, self._parts)} - {0})
        return Parts([self._samples[(end - 1 + self._stride // 2) // self._stride] for end in ends], self._count)


def _decide(record: bytes, value: bytes | None) -> tuple[Status, bytes | None, str]:
    outcome = decide_save(SaveEntry(_ANY, decode_record(record)), None if value is None else decode_record(value))
    return outcome.status, encode_record(outcome.standing) if outcome.standing else value, outcome.message
