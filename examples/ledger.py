"""The ledger of a run: a file with a line for every message that a consumer has finished, repeated ones included.

A line is in the kernel's page cache as soon as it is written, so a kill -9 of the consumer does not lose it.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Self

from examples.flights import Flight


class Ledger:
    """The writer, used by consumers. Each line and each mark is a single write, which a kill cannot split."""

    def __init__(self, lines: int, marks: int) -> None:
        self._lines = lines
        self._marks = marks

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open the ledger of a run for appending."""
        how = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        return cls(os.open(directory / "ledger", how), os.open(directory / "kept", how))

    def write(self, sequence: int, flight: Flight) -> None:
        """Note a finished message."""
        delay = "-" if flight.delay_min is None else flight.delay_min
        os.write(self._lines, f"{sequence} {flight.carrier} {flight.origin} {flight.miles} {delay}\n".encode())

    def count_kept(self) -> None:
        """Note an answered commit or acknowledgement."""
        os.write(self._marks, b".")


class Tally:
    """The reader: counts what the consumers append."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_to = 0
        self.times: Counter[int] = Counter()  # how often each message was finished
        self.flights: dict[int, Flight] = {}  # message number -> its content
        self.kept = 0  # answered commits or acknowledgements

    def read(self) -> int:
        """Read the new lines; returns how many there were."""
        with (self._directory / "ledger").open("ab+") as file:
            file.seek(self._read_to)
            new = file.read()
        with (self._directory / "kept").open("ab") as file:
            self.kept = file.tell()
        new = new[: new.rfind(b"\n") + 1]
        self._read_to += len(new)
        lines = new.decode().splitlines()
        for line in lines:
            sequence, carrier, origin, miles, delay = line.split(" ")
            self.times[int(sequence)] += 1
            self.flights[int(sequence)] = Flight(carrier, origin, int(miles), None if delay == "-" else int(delay))
        return len(lines)

    @property
    def handled(self) -> int:
        """The number of different messages that were finished."""
        return len(self.times)

    @property
    def repeats(self) -> int:
        """How many times a message was finished again."""
        return self.times.total() - len(self.times)
