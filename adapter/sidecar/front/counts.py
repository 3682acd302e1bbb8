"""What the front counts. Plain numbers, written by its calls and read when Prometheus asks."""

from collections import Counter
from dataclasses import dataclass, field

from adapter.rpc import offsets_pb

HEARTBEAT = "/meta.service.common.MetaServiceService/Heartbeat"


@dataclass
class FrontCounts:
    """The present numbers. Counters begin at 0 with the process."""

    listen: str = ""
    broker: str = ""
    saves: int = 0
    reads: int = 0
    deletes: int = 0
    refused: int = 0
    refused_for_good: int = 0
    offsets: int = 0
    left_to_robustmq: int = 0
    heartbeats: int = 0
    forwarded: Counter[str] = field(default_factory=Counter)  # by code
    forwarded_seconds: float = 0.0
    unreachable: list[str] = field(default_factory=list)
    lost: int = 0
    open_calls: int = 0
    told: int = 0
    untold: int = 0
    broker_error: str = ""
    problem: str = ""

    def seen(self, path: str, code: str, seconds: float) -> None:
        """Count a call that was relayed."""
        self.heartbeats += path == HEARTBEAT
        self.forwarded[code] += 1
        self.forwarded_seconds += seconds

    def status(self) -> offsets_pb.RobustmqStatus:
        """For Status."""
        return offsets_pb.RobustmqStatus(
            listen=self.listen,
            saves=self.saves,
            reads=self.reads,
            deletes=self.deletes,
            forwarded=self.forwarded.total(),
            open_calls=self.open_calls,
            unreachable=self.unreachable,
            broker=self.broker,
            untold_groups=self.untold,
            broker_error=self.broker_error,
            problem=self.problem,
            told_groups=self.told,
        )

    def counters(self) -> dict[str, tuple[str, float]]:
        """Counters by name, each with its help text."""
        return {
            "robustmq_saves": ("Flushes of the RobustMQ broker that were committed here.", self.saves),
            "robustmq_saved_offsets": ("Offsets in them.", self.offsets),
            "robustmq_left_offsets": ("Offsets of names that are not kept here: saved by RobustMQ's own.", self.left_to_robustmq),
            "robustmq_reads": ("Reads of a group by the broker that were answered here.", self.reads),
            "robustmq_deletes": ("Deletes by the broker that were done here and by RobustMQ's Meta Service.", self.deletes),
            "robustmq_refused": ("Saves, reads and deletes that were refused.", self.refused),
            "robustmq_refused_for_good": (
                "Of these, reads and deletes for which the broker did not call RobustMQ's own nodes, which have less.",
                self.refused_for_good,
            ),
            "robustmq_forwarded": ("All other calls, which RobustMQ's Meta Service answered.", self.forwarded.total()),
            "robustmq_forwarded_failed": (
                "Of these, those that ended with another code than OK.",
                self.forwarded.total() - self.forwarded["OK"],
            ),
            "robustmq_forwarded_seconds": ("Time of these calls.", self.forwarded_seconds),
            "robustmq_heartbeats": ("Of these, heartbeats.", self.heartbeats),
            "robustmq_lost_connections": ("Connections with a node that could not be made, or ended.", self.lost),
            "robustmq_told_groups": ("Groups of which the broker was told that their offsets changed.", self.told),
        }

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Gauges by name, each with its help text."""
        return {
            "robustmq_open_calls": ("Calls that are relayed at the moment.", float(self.open_calls)),
            "robustmq_unreachable_nodes": (
                "Nodes of RobustMQ's Meta Service that cannot be reached.",
                float(len(self.unreachable)),
            ),
            "robustmq_untold_groups": ("Groups of which the broker is still to be told.", float(self.untold)),
        }
