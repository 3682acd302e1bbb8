"""The order and the names of status in tables. What they mean is in `adapter.model.lag`."""

from adapter.model.lag import BURROW_GROUP as GROUPS

# From good to bad: the worst shard gives the group's status.
SEVERITY = tuple(status.name for status in GROUPS)
# Burrow's status of a group whose worst shard has this one.
BURROW_GROUP = {status.name: of_group for status, of_group in GROUPS.items()}
