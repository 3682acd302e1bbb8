"""What is known about the demo on etcd at the moment. Scenario, load and monitor write it; the display only reads it."""

from dataclasses import dataclass, field

from adapter.metaservice.etcd.leader_placement import ClusterState
from demo.comparison import Comparison
from demo.raft_load import Ledger
from demo.timeline import Timeline


@dataclass
class ProcessState:
    """A process, as it shows itself."""

    state: str = "not started"

    @property
    def serves(self) -> bool:
        """True when it said so lately."""
        return self.state == "serving"


@dataclass
class FrontState(ProcessState):
    """A front. Counters are since the start, over all starts of its process."""

    balances: bool = False
    save_calls: int = 0
    moves: int = 0  # of leaders


@dataclass
class BrokerState(ProcessState):
    """A broker's adapter."""

    endpoint: str = ""  # of the front that it uses
    commits_per_s: float = 0.0
    dirty_keys: int = 0
    lag_s: float = 0.0  # since the oldest commit that the Meta Service has not acknowledged


@dataclass
class Fault:
    """Something that was killed, and what was seen of it until it was back and all was well."""

    what: str
    away_s: float = 0.0  # until it served again
    waited_s: float = 0.0  # the slowest commit
    lag_s: float = 0.0  # the largest flush lag that an adapter told
    put_s: float = 0.0  # the slowest put of metadata


@dataclass(frozen=True)
class Outcome:
    """What every front reads, against the ledger and the adapters' stores."""

    comparisons: dict[str, Comparison]

    @property
    def complete(self) -> bool:
        """True when there were fronts and keys, and each key is the same everywhere."""
        return bool(self.comparisons) and all(comparison.complete for comparison in self.comparisons.values())


@dataclass
class RaftState(Timeline):
    """One demo. Counters are since the start."""

    ledger: Ledger = field(default_factory=Ledger)
    situation: ClusterState | None = None
    looked_at: float = 0.0  # when the look began that showed it
    fronts: dict[str, FrontState] = field(default_factory=dict)
    brokers: dict[str, BrokerState] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    fault: Fault | None = None  # the present one
    leaders: dict[str, str] = field(default_factory=dict)  # Raft group -> the node that leads it, or did last
    leader_changes: int = 0
    put_s: float = 0.0  # how long the last put of metadata took

    @property
    def save_calls(self) -> int:
        """That the fronts have got."""
        return sum(front.save_calls for front in self.fronts.values())

    @property
    def moves(self) -> int:
        """Of leaders, by the fronts."""
        return sum(front.moves for front in self.fronts.values())

    def looked(self, situation: ClusterState, at: float) -> None:
        """All members were asked, from this time on."""
        self.situation, self.looked_at = situation, at
        for group in (situation.metadata, *situation.offsets):
            if group.leader and self.leaders.get(group.name) != group.leader.node:
                before = self.leaders.get(group.name)
                self.leaders[group.name] = group.leader.node
                if before:
                    self.leader_changes += 1
                    self.tell(f"{group.name}: {group.leader.node} leads now, {before} did")

    def lagging(self, broker: str, lag_s: float) -> None:
        """An adapter told how long its oldest dirty key waits."""
        self.brokers[broker].lag_s = lag_s
        if self.fault:
            self.fault.lag_s = max(self.fault.lag_s, lag_s)

    def put_answered(self, seconds: float) -> None:
        """A put of metadata took so long."""
        self.put_s = seconds
        if self.fault:
            self.fault.put_s = max(self.fault.put_s, seconds)
