"""The time of a batch: that of the journals, never this machine's. A batch that is repeated has the same."""

from collections.abc import Iterable, Mapping

from adapter.pipeline.lag.tables import Clock

US_OF_SECOND = 1_000_000
# A broker whose journal is behind the newest one by more than this counts as gone. Before that, no group counts as stopped for a
# time that this broker's journal does not cover yet.
LIVE_US = 300 * US_OF_SECOND


def newest(times: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The newest time of each broker, by name. Times are microseconds."""
    found: dict[str, int] = {}
    for of_brokers in times:
        for broker, at in of_brokers.items():
            found[broker] = max(at, found.get(broker, at))
    return dict(sorted(found.items()))


def clock_of(brokers: Mapping[str, int]) -> Clock:
    """`now`: the newest time; `settled`: up to which the journals of all live brokers are read; 0 without a broker."""
    now = max(brokers.values(), default=0)
    return Clock(now, min((at for at in brokers.values() if at >= now - LIVE_US), default=now))
