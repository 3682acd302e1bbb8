"""Records of every kind that may be stored under a key: epochs, offsets, live or not, times, metadata."""

from itertools import product

from adapter.model.records import OffsetRecord

NOW_MS = 1_000
EPOCHS = (0, 1, 2, 2**32, 2**32 + 1)
MORE = [("", "", 0), ("m", "", 0), ("", "t", 3)]  # metadata, and labels
STANDING = [
    None,
    *(
        OffsetRecord(epoch, offset, live, NOW_MS + at_ms, metadata, topic, partition)
        for epoch, offset, live, at_ms, (metadata, topic, partition) in product(
            EPOCHS, (0, 2, 3), (True, False), (-1, 0, 1), MORE
        )
    ),
]
