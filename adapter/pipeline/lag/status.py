"""The order and the names of status in tables, as Spark columns. What they mean is in `adapter.model.lag`."""

from pyspark.sql import Column
from pyspark.sql import functions as sf

from adapter.model.lag import BURROW_GROUP as GROUPS
from adapter.model.lag import Status

# From good to bad: the worst shard gives the group's status.
SEVERITY = tuple(status.name for status in GROUPS)
# Burrow's status of a group whose worst shard has this one.
BURROW_GROUP = {status.name: of_group for status, of_group in GROUPS.items()}


def severity(name: Column) -> Column:
    """The number of a status: the larger, the worse. Its first one is 1."""
    return sf.array_position(sf.array(*map(sf.lit, SEVERITY)), name).cast("int")


def severity_name(level: Column) -> Column:
    """The status with a number."""
    return _named(level, SEVERITY)


def burrow_group_name(level: Column) -> Column:
    """Burrow's status of a group whose worst shard has the status with this number."""
    return _named(level, tuple(BURROW_GROUP.values()))


def _named(level: Column, names: tuple[str, ...]) -> Column:
    return sf.get(sf.array(*map(sf.lit, names)), level - int(Status.OK))
