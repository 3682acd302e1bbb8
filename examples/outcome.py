"""The results of the runs: a table with a column for each run, and a verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from examples.flights import Flight, totals
from examples.ledger import Tally


@dataclass
class Outcome:
    """The result of one run, updated while it runs."""

    keeper: str  # the name of the position store
    truth: Sequence[Flight]  # the published messages, in order; the first has number 1
    shards: Sequence[int]  # the shard of each message
    tally: Tally
    kills: int = 0  # kills of consumers
    crashes: int = 0  # kills of the position store
    hole_s: float = 0.0  # the longest time from a kill until the messages that it left unprocessed were processed
    seconds: float = 0.0
    finished: bool = False  # all messages are finished, by the position store

    @property
    def missing(self) -> int:
        """The number of messages that no consumer finished."""
        return sum(sequence not in self.tally.times for sequence in range(1, len(self.truth) + 1))

    @property
    def right(self) -> bool:
        """True if the totals of the processed messages, each counted once, equal those of the file."""
        return totals(self.tally.flights.values()) == totals(self.truth)

    @property
    def complete(self) -> bool:
        """True if no message is missing and the totals are right."""
        return self.finished and not self.missing and self.right


ROWS: Sequence[tuple[str, Callable[[Outcome], str]]] = (
    ("messages", lambda outcome: f"{len(outcome.truth):,}"),
    ("processed", lambda outcome: f"{outcome.tally.handled:,}"),
    ("missing", lambda outcome: f"{outcome.missing:,}"),
    ("repeats", lambda outcome: f"{outcome.tally.repeats:,}"),
    ("kills of consumers", lambda outcome: f"{outcome.kills}"),
    ("kills of the adapter", lambda outcome: f"{outcome.crashes}"),
    ("longest hole after a kill, s", lambda outcome: f"{outcome.hole_s:.1f}"),
    ("seconds", lambda outcome: f"{outcome.seconds:.1f}"),
    ("commits or acks answered", lambda outcome: f"{outcome.tally.kept:,}"),
)


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """The results as a table with a column for each run."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("position kept by")
    for outcome in outcomes:
        wrong = outcome.finished and not outcome.complete
        table.add_column(outcome.keeper, justify="right", style="red" if wrong else "")
    for name, cell in ROWS:
        table.add_row(name, *map(cell, outcomes))
    return table


def verdict(outcomes: Sequence[Outcome]) -> str:
    """The verdict in one sentence."""
    for outcome in outcomes:
        if outcome.missing:
            return f"MISSING: {outcome.missing:,} messages were never processed while {outcome.keeper} kept the position."
        if not outcome.right:
            return f"WRONG: the totals are not those of the file, with the position kept by {outcome.keeper}."
        if not outcome.finished:
            return f"WRONG: everything was processed, but the position of {outcome.keeper} did not reach the end."
    if not outcomes:
        return "WRONG: there was no run."
    found = totals(outcomes[0].truth)
    departures, minutes = (sum(column) for column in zip(*found.values(), strict=True))
    return (
        f"Nothing is missing. Each run found the same as the file itself: {departures:,} departures, "
        f"{minutes / departures:.1f} minutes late on average, for each of {len(found)} pairs of carrier and airport."
    )
