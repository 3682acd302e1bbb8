"""The state of `make demo-cluster`, written by scenario, load and monitor, and read by the display."""

from dataclasses import dataclass, field

from adapter.metaservice.etcd.leader_placement import ClusterState
from demo.comparison import Comparison
from demo.raft_load import Ledger
from demo.timeline import Timeline


@dataclass
class ProcessState:
    """A process, as it was seen last."""

    state: str = "not started"

    @property
    def serves(self) -> bool:
        """True if it answered recently."""
        return self.state == "serving"


@dataclass
class MetaState(ProcessState):
    """A Meta Service process. Counters are totals over all restarts of its process."""

    balances: bool = False
    save_calls: int = 0
    moves: int = 0  # of leaders


@dataclass
class BrokerState(ProcessState):
    """The state of one broker's adapter."""

    endpoint: str = ""  # of the Meta Service that it uses
    commits_per_s: float = 0.0
    dirty_keys: int = 0
    lag_s: float = 0.0  # age of the oldest commit that the Meta Service has not acknowledged


@dataclass
class Fault:
    """A kill and its effects until the process was back and all were healthy."""

    what: str
    away_s: float = 0.0  # until it served again
    waited_s: float = 0.0  # the slowest commit
    lag_s: float = 0.0  # the largest flush lag of an adapter
    put_s: float = 0.0  # the slowest put of metadata


@dataclass(frozen=True)
class Outcome:
    """The offsets that every Meta Service process reads, the ledger, and the adapters' stores."""

    comparisons: dict[str, Comparison]

    @property
    def complete(self) -> bool:
        """True if there are Meta Service processes and keys, and each key is the same everywhere."""
        return bool(self.comparisons) and all(comparison.complete for comparison in self.comparisons.values())


@dataclass
class RaftState(Timeline):
    """The state of one demo. Counters count from its start."""

    ledger: Ledger = field(default_factory=Ledger)
    situation: ClusterState | None = None
    looked_at: float = 0.0  # when the last poll of the leaders began
    metas: dict[str, MetaState] = field(default_factory=dict)
    brokers: dict[str, BrokerState] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    fault: Fault | None = None  # the current one
    leaders: dict[str, str] = field(default_factory=dict)  # Raft group -> the node of its leader, or of its last one
    leader_changes: int = 0
    put_s: float = 0.0  # duration of the last put of metadata

    @property
    def save_calls(self) -> int:
        """The number of save calls that all Meta Service processes have received."""
        return sum(meta.save_calls for meta in self.metas.values())

    @property
    def moves(self) -> int:
        """The number of leader moves that all Meta Service processes have made."""
        return sum(meta.moves for meta in self.metas.values())

    def looked(self, situation: ClusterState, at: float) -> None:
        """Note the leaders from a poll that began at this time."""
        self.situation, self.looked_at = situation, at
        for group in (situation.metadata, *situation.offsets):
            if group.leader and self.leaders.get(group.name) != group.leader.node:
                before = self.leaders.get(group.name)
                self.leaders[group.name] = group.leader.node
                if before:
                    self.leader_changes += 1
                    self.tell(f"{group.name}: {group.leader.node} leads now, {before} did")

    def lagging(self, broker: str, lag_s: float) -> None:
        """Note the age of an adapter's oldest dirty key."""
        self.brokers[broker].lag_s = lag_s
        if self.fault:
            self.fault.lag_s = max(self.fault.lag_s, lag_s)

    def put_answered(self, seconds: float) -> None:
        """Note the duration of a put of metadata."""
        self.put_s = seconds
        if self.fault:
            self.fault.put_s = max(self.fault.put_s, seconds)
