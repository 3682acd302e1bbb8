"""The messages: real flights, and what is to be found out about them. Their file, its source and licence: see data/README.md."""

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
    """What is wanted of a message."""

    carrier: str
    origin: str
    miles: int
    delay_min: int | None  # at departure, below 0 when it was early; None: it was cancelled


def read_messages(limit: int) -> list[tuple[MessageQueue, bytes]]:
    """The first flights of the month as messages, in the order of the file. A flight's number says which shard it is in."""
    with gzip.open(FILE) as file:
        rows = csv.DictReader(io.TextIOWrapper(file, "utf-8"))
        return [
            (QUEUES[crc32(f"{row['carrier']}{row['flight']}".encode()) % SHARDS], json.dumps(row).encode())
            for row, _ in zip(rows, range(limit), strict=False)
        ]


def flight_of(data: bytes) -> Flight:
    """What a message tells."""
    row = json.loads(data)
    return Flight(row["carrier"], row["origin"], int(row["distance"]), int(row["dep_delay"]) if row["dep_delay"] else None)


def totals(flights: Iterable[Flight]) -> Totals:
    """How many flights of a carrier left an airport, and how late they were in all."""
    found: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for carrier, origin, _, delay_min in flights:
        if delay_min is not None:
            departures, minutes = found[carrier, origin]
            found[carrier, origin] = departures + 1, minutes + delay_min
    return dict(found)
