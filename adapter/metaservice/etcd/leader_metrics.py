"""Reports what a balancer sees and does: to Prometheus and to the log. Decides nothing."""

from collections.abc import Mapping
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from adapter.errors import AdapterError
from adapter.metaservice.etcd.leader_placement import ClusterState, Move, apart, problems
from adapter.metaservice.etcd.lease import LeaseTakenError

log = structlog.get_logger(__name__)


class Watcher(Protocol):
    """Receives what a balancer sees and does."""

    def looked(self, state: ClusterState, held: Mapping[str, int]) -> None:
        """All members were asked. `held`: for leaders kept in place by the cool-down, the milliseconds that are left of it."""
        ...

    def moved(self, move: Move, problem: str) -> None:
        """A leader was moved; or was not, if `problem` is not empty."""
        ...

    def lease_changed(self, error: AdapterError | None) -> None:
        """None: this balancer got the lease. Otherwise why it has none: LeaseTakenError or another error."""
        ...


class LeaderMetrics:
    """Prometheus metrics of a process that balances leaders."""

    def __init__(self, registry: CollectorRegistry) -> None:
        moves = Counter("offset_meta_leader_moves", "Attempted moves of leaders, by result.", ["result"], registry=registry)
        self._moves = {result: moves.labels(result) for result in ("moved", "refused")}
        self._apart = Gauge(
            "offset_meta_leaders_apart", "1 while no offsets leader is on the metadata leader's node.", registry=registry
        )
        self._balancing = Gauge(
            "offset_meta_leaders_balancing", "1 in the process that holds the lease to move leaders.", registry=registry
        )
        self._unreachable = Gauge(
            "offset_meta_raft_members_unreachable", "Members of Raft groups that did not answer the last look.", registry=registry
        )

    def looked(self, state: ClusterState, held: Mapping[str, int]) -> None:  # noqa: ARG002 - as of Watcher
        """Set the gauges of placement and of unreachable members."""
        self._apart.set(apart(state))
        self._unreachable.set(len(_unreachable(state)))

    def moved(self, move: Move, problem: str) -> None:  # noqa: ARG002
        """Count the move by its result."""
        self._moves["refused" if problem else "moved"].inc()

    def lease_changed(self, error: AdapterError | None) -> None:
        """Set the gauge that is 1 in the process that holds the lease."""
        self._balancing.set(error is None)


class LoggedLeaders:
    """Logs one event for each change."""

    def __init__(self) -> None:
        self._unreachable: list[str] = []
        self._problems: list[str] = []
        self._lease_state = ""

    def looked(self, state: ClusterState, held: Mapping[str, int]) -> None:  # noqa: ARG002
        """Log changes of the unreachable members and of the problems of the placement."""
        away, wrong = _unreachable(state), problems(state)
        if away != self._unreachable:
            (log.warning if away else log.info)("leaders.members", unreachable=away)
        if wrong != self._problems:
            (log.warning if wrong else log.info)("leaders.placement", good=not wrong, problems=wrong)
        self._unreachable, self._problems = away, wrong

    def moved(self, move: Move, problem: str) -> None:
        """Log a move or its failure."""
        fields = {"raft_group": move.group, "source": move.source.endpoint, "target": move.target.endpoint}
        if problem:
            log.warning("leaders.not_moved", **fields, error=problem, help="another member is tried, if there is one")
        else:
            log.info("leaders.moved", **fields)

    def lease_changed(self, error: AdapterError | None) -> None:
        """Log that this balancer got the lease, or why it did not, once for each change."""
        kind = type(error).__name__ + (str(error) if isinstance(error, LeaseTakenError) else "")
        if kind == self._lease_state:
            return
        self._lease_state = kind
        if error is None:
            log.info("leaders.balancing")
        elif isinstance(error, LeaseTakenError):
            log.info("leaders.standing_by", balancer=str(error))
        else:
            log.warning("leaders.not_balanced", error=str(error), help="the next run tries again")


def _unreachable(state: ClusterState) -> list[str]:
    groups = (state.metadata, *state.offsets)
    return [f"{group.name}: {member.endpoint}" for group in groups for member in group.members if not member.reachable]
