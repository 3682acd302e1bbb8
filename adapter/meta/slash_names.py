"""The names that a server without epochs cannot hold.

RobustMQ's key of an offset is `offset/TENANT/GROUP/SHARD` (rocksdb-engine/src/keys/meta.rs): with a slash in the tenant or the
group, two keys are the same, and a read of one group finds another one's offsets. A slash in a shard is harmless.
"""

from adapter.model.records import GroupKey

SLASH = "/"


def name_problem(group: GroupKey) -> str:
    """Why such a server cannot hold a group; empty if it can. Begins with the field."""
    for field, name in group._asdict().items():
        if SLASH in name:
            return (
                f"{field}: {name!r} has a {SLASH}, by which a Meta Service without epochs (RobustMQ) separates namespace, group "
                "and shard: it would mix it up with another group; use another name"
            )
    return ""
