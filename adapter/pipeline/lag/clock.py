"""The time at which a batch is evaluated: that of the journals, not of this machine. Microseconds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# A broker whose journal is behind the newest one by more than this counts as gone. Before that, no group counts as stopped for a
# time that this broker's journal does not cover yet.
LIVE_US = 300 * 1_000_000


@dataclass(frozen=True)
class Clock:
    """`now`: the newest time in the journals, as `Gathered.newest` has it; `settled`: up to which all live brokers' are read."""

    now: int
    settled: int


def newest_of(times: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The newest time of each broker, in the order of their names."""
    found: dict[str, int] = {}
    for of_brokers in times:
        for broker, at in of_brokers.items():
            found[broker] = max(at, found.get(broker, at))
    return dict(sorted(found.items()))


def clock_of(newest: Mapping[str, int]) -> Clock:
    """The clock by the newest time of each broker's journal."""
    now = max(newest.values(), default=0)
    return Clock(now, min((at for at in newest.values() if at >= now - LIVE_US), default=now))
