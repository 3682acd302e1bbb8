"""The time at which a batch is evaluated: that of the journals, not of this machine. Microseconds."""

from collections.abc import Mapping
from dataclasses import dataclass

# A broker whose journal is behind the newest one by more than this counts as gone. Before that, no group counts as stopped for a
# time that this broker's journal does not cover yet.
LIVE_US = 300 * 1_000_000


@dataclass(frozen=True)
class Clock:
    """`now`: the newest time in the journals; `settled`: up to which those of all live brokers are read."""

    now: int
    settled: int


def clock_of(newest: Mapping[str, int]) -> Clock:
    """The clock by the newest time of each broker's journal."""
    now = max(newest.values(), default=0)
    return Clock(now, min((at for at in newest.values() if at >= now - LIVE_US), default=now))
