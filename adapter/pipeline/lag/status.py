"""The order of status in tables. What each means is in `adapter.model.lag`."""

from adapter.model.lag_status import BY_SEVERITY

# From good to bad: the worst shard gives the group's status.
SEVERITY = tuple(status.name for status in BY_SEVERITY)
