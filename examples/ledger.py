"""What the consumers did: a line for every message that one of them finished, also for the second time.

The kernel has a line as soon as it is written: kill -9 takes nothing of it.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Self

from examples.flights import Flight


class Ledger:
    """The consumers' side. Each line and each mark is one write, which a kill does not tear."""

    def __init__(self, lines: int, marks: int) -> None:
        self._lines = lines
        self._marks = marks

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Of all consumers of a run, to append to."""
        how = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        return cls(os.open(directory / "ledger", how), os.open(directory / "kept", how))

    def write(self, sequence: int, flight: Flight) -> None:
        """A message is finished."""
        delay = "-" if flight.delay_min is None else flight.delay_min
        os.write(self._lines, f"{sequence} {flight.carrier} {flight.origin} {flight.miles} {delay}\n".encode())

    def count_kept(self) -> None:
        """A commit or an acknowledgement was answered."""
        os.write(self._marks, b".")


class Tally:
    """The other side: reads what was appended, again and again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_to = 0
        self.times: Counter[int] = Counter()  # how often each message was finished
        self.flights: dict[int, Flight] = {}  # what it was found to say
        self.kept = 0  # how many commits or acknowledgements were answered

    def read(self) -> int:
        """Take in what is new; returns how many lines that was."""
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
        """How many messages were finished, each counted once."""
        return len(self.times)

    @property
    def repeats(self) -> int:
        """How often a message was finished that had been before."""
        return self.times.total() - len(self.times)
