"""Offsets that stand, at a time that stands still."""

from itertools import product

from adapter.model.records import OffsetRecord

NOW_MS = 1_000
EPOCHS = (0, 1, 2, 2**32, 2**32 + 1)
STANDING = [
    None,
    *(
        OffsetRecord(epoch, offset, live, NOW_MS + at_ms, metadata)
        for epoch, offset, live, at_ms, metadata in product(EPOCHS, (0, 2, 3), (True, False), (-1, 0, 1), ("", "m"))
    ),
]
