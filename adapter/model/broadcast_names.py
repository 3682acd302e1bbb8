"""The names of the groups that keep the offsets of a broadcasting group: one for each client, and one for the lowest of all."""

from adapter.model.records import GroupKey

OF_LOWEST = "@broadcast"  # behind the group, as BroadcastOffsetManager.broadcastGroupId has it
OF_CLIENT = f"{OF_LOWEST}@"  # between group and client


def is_of_client(group: GroupKey) -> bool:
    """True for the group of a client of a broadcasting group, whose own name has no mark, so the first mark divides."""
    name, _, client_id = group.group.partition(OF_CLIENT)
    return bool(name and client_id)
