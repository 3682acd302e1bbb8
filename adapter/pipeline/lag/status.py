"""The order of status in tables. What each means is in `adapter.model.lag`."""

from adapter.model.lag import Status

# From good to bad: the worst shard gives the group's status.
SEVERITY = tuple(status.name for status in Status if status is not Status.UNKNOWN)
