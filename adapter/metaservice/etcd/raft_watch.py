"""Asks the members of all Raft groups how they are, every few seconds, for the metrics of this process. Decides nothing.

Each process does so by itself, whether it balances leaders or not: a group without a leader, or near its quota, concerns all.
"""

from collections.abc import Iterable, Iterator

import anyio
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from adapter.metaservice.etcd.leader_balancer import Leaders
from adapter.metaservice.etcd.leader_placement import ClusterState, RaftGroup

INTERVAL_S = 5.0  # between two looks, each of one small call to each member
FULL = "NOSPACE"  # etcd's name of the alarm


class RaftMetrics(Collector):
    """The metrics of the Raft groups, by `raft_group`. There are none before the first look.

    `quota_bytes` is the quota of members that do not tell theirs, as etcd before 3.6.
    """

    def __init__(self, quota_bytes: int) -> None:
        self._quota_bytes = quota_bytes
        self._groups: tuple[RaftGroup, ...] = ()

    def looked(self, state: ClusterState) -> None:
        """All members were asked."""
        self._groups = (state.metadata, *state.offsets)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics. Called in the metrics thread. A group of which no member answers has no size."""
        groups = self._groups
        answered = {group.name: [member for member in group.members if member.reachable] for group in groups}
        yield _family(
            "leader", "1 while the leader of the Raft group is known.", ((g.name, g.leader is not None) for g in groups)
        )
        yield _family(
            "members_unreachable",
            "Members of the Raft group that did not answer.",
            ((group.name, len(group.members) - len(answered[group.name])) for group in groups),
        )
        yield _family(
            "bytes",
            "Size of the database of the Raft group: of the member where it is largest.",
            ((name, max(member.db_bytes for member in members)) for name, members in answered.items() if members),
        )
        yield _family(
            "quota_bytes",
            "The size at which the Raft group refuses writes: the smallest of its members.",
            (
                (name, min(member.quota_bytes or self._quota_bytes for member in members))
                for name, members in answered.items()
                if members
            ),
        )
        yield _family(
            "full",
            "1 while the Raft group refuses writes because its quota is used up.",
            ((name, any(FULL in member.problem for member in members)) for name, members in answered.items() if members),
        )


async def run(leaders: Leaders, metrics: RaftMetrics) -> None:
    """Look until cancelled."""
    while True:
        metrics.looked(await leaders.look())
        await anyio.sleep(INTERVAL_S)


def _family(name: str, text: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"offset_meta_raft_group_{name}", text, labels=["raft_group"])
    for group, value in values:
        family.add_metric([group], float(value))
    return family
