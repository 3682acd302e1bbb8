"""Offsets that stand, at a time that stands still."""

from itertools import product

from adapter.model.records import OffsetRecord

NOW_MS = 1_000
MORE = [("", "", 0), ("m", "", 0), ("", "t", 3)]  # metadata, and labels
STANDING = [
    None,
    *(
        OffsetRecord(epoch, offset, live, NOW_MS + at_ms, metadata, topic, partition)
        for epoch, offset, live, at_ms, (metadata, topic, partition) in product(
            (0, 1, 2, 2**32), (0, 2, 3), (True, False), (-1, 0, 1), MORE
        )
    ),
]
