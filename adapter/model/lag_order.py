"""The orders of groups by their lag, for all who show them: an adapter, a fleet, `top`. Loads no numpy.

The largest stands first, and what is unknown last. What decides next comes after it; groups that are equal in all of it stand by
their names.
"""

from collections.abc import Iterable, Mapping
from math import inf
from types import MappingProxyType
from typing import Final

from adapter.model.lag_status import severity
from adapter.rpc import lag_pb

# What decides, by `lag_pb.LagOrder`. `severity`: of the status. `idle`: for how long nothing was committed.
DECIDING: Final[Mapping[int, tuple[str, ...]]] = MappingProxyType(
    {
        lag_pb.WORST: ("severity", "lag_seconds", "lag"),
        lag_pb.LAG: ("lag", "lag_seconds"),
        lag_pb.LAG_SECONDS: ("lag_seconds", "lag"),
        lag_pb.TREND: ("trend", "lag"),
        lag_pb.COMMIT_RATE: ("commit_rate",),
        lag_pb.LAST_COMMIT: ("idle",),
        lag_pb.NAME: (),
    }
)


def sort_key(values: Iterable[float | None], *, smallest_first: bool = False) -> tuple[float, ...]:
    """The key of what has these values, None for an unknown one, which comes last either way."""
    return tuple(inf if value is None else value if smallest_first else -value for value in values)


def worst_first(status: int, lag_seconds: float | None, lag: int | None) -> tuple[float, ...]:
    """The key of a shard or group in the order WORST."""
    return sort_key((severity(status), lag_seconds, lag))
