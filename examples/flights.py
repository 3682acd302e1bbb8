"""The messages: real flights, and the totals that the consumers compute. Source and licence of the data: see data/README.md."""

import csv
import gzip
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from adapter.client import MessageQueue

FILE = Path(__file__).parent / "data" / "flights-2013-01.csv.gz"
FLIGHTS = 27_004
TOPIC = "flights"
SHARDS = 4
QUEUES = tuple(MessageQueue(TOPIC, number) for number in range(SHARDS))

Totals = Mapping[tuple[str, str], tuple[int, int]]  # (carrier, origin) -> departures, and minutes of delay in all


class Flight(NamedTuple):
    """The fields of a message that the example uses."""

    carrier: str
    origin: str
    miles: int
    delay_min: int | None  # at departure, negative if early; None: cancelled


def read_messages(limit: int) -> list[tuple[MessageQueue, bytes]]:
    """The first flights of the month as messages, in the order of the file. The flight number determines the shard."""
    with gzip.open(FILE) as file:
        rows = csv.DictReader(io.TextIOWrapper(file, "utf-8"))
        return [
            (QUEUES[crc32(f"{row['carrier']}{row['flight']}".encode()) % SHARDS], json.dumps(row).encode())
            for row, _ in zip(rows, range(limit), strict=False)
        ]


def flight_of(data: bytes) -> Flight:
    """Parse a message."""
    row = json.loads(data)
    return Flight(row["carrier"], row["origin"], int(row["distance"]), int(row["dep_delay"]) if row["dep_delay"] else None)


def totals(flights: Iterable[Flight]) -> Totals:
    """For each carrier and airport: the number of departures, and their total delay in minutes."""
    found: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for carrier, origin, _, delay_min in flights:
        if delay_min is not None:
            departures, minutes = found[carrier, origin]
            found[carrier, origin] = departures + 1, minutes + delay_min
    return dict(found)
