"""The state of a shard or group, and how bad it is. Loads no numpy: commands and the console need only this.

What each state means is in `adapter.model.lag`.
"""

from enum import IntEnum
from typing import Final


class Status(IntEnum):
    """The state of a shard or group; the numbers of offsets.v1.LagStatus."""

    UNKNOWN = 0
    OK = 1
    WARN = 2
    REWIND = 3
    STALL = 4
    STOP = 5
    BEYOND = 6


# From good to bad: the worst shard gives the group's state. What is not known is worse than what is known to be good, or a group
# with one shard that works would hide the others. REWIND is better than STALL: the consumer still works.
BY_SEVERITY: Final = (Status.OK, Status.UNKNOWN, *list(Status)[2:])
_SEVERITIES: Final = {int(status): place for place, status in enumerate(BY_SEVERITY)}


def severity(status: int) -> int:
    """How bad a state is: its place in BY_SEVERITY; one of a later version is as unknown as UNKNOWN."""
    return _SEVERITIES.get(status, _SEVERITIES[Status.UNKNOWN])
