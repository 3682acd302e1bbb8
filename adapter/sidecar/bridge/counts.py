"""What the bridge counts. Plain numbers, written by its task and read when Prometheus asks."""

from dataclasses import dataclass

from adapter.rpc import offsets_pb


@dataclass
class BridgeCounts:
    """The present numbers. Counters begin at 0 with the process. `last_error`: why the last connection ended."""

    address: str = ""
    broker: str = ""
    version: str = ""
    connected: bool = False
    slave: bool = False
    last_error: str = ""
    offsets: int = 0
    asked_queues: int = 0
    poll_interval_s: float = 0.0
    polls: int = 0
    poll_bytes: int = 0
    poll_seconds: float = 0.0
    committed: int = 0
    rewound: int = 0
    given: int = 0
    reset: int = 0
    deleted: int = 0
    forgotten: int = 0
    disconnects: int = 0
    rejected: int = 0

    def status(self) -> offsets_pb.RocketmqStatus:
        """For Status."""
        return offsets_pb.RocketmqStatus(
            address=self.address,
            broker=self.broker,
            version=self.version,
            connected=self.connected,
            last_error=self.last_error,
            offsets=self.offsets,
            poll_interval_seconds=self.poll_interval_s,
            slave=self.slave,
        )

    def counters(self) -> dict[str, tuple[str, float]]:
        """Counters by name, each with its help text."""
        return {
            "rocketmq_polls": ("Times that the broker's whole table of offsets was read.", self.polls),
            "rocketmq_poll_bytes": ("Bytes of these tables.", self.poll_bytes),
            "rocketmq_poll_seconds": ("CPU time of the event loop for comparing them.", self.poll_seconds),
            "rocketmq_committed": ("Offsets of the broker that were committed here.", self.committed),
            "rocketmq_rewound": ("Of these, those that went back: resets at the broker.", self.rewound),
            "rocketmq_given_back": ("Offsets that the broker had lost, or never had, and got from here.", self.given),
            "rocketmq_resets_passed_on": ("Resets of this adapter or the Meta Service that the broker got.", self.reset),
            "rocketmq_deleted": ("Offsets that were deleted here because they were deleted at the broker.", self.deleted),
            "rocketmq_forgotten": ("Offsets that the broker had no longer although nobody deleted them; kept.", self.forgotten),
            "rocketmq_disconnects": ("Connections to the broker that ended with an error.", self.disconnects),
            "rocketmq_rejected": ("Entries of the broker's table whose name or number cannot be used here.", self.rejected),
        }

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Gauges by name, each with its help text."""
        return {
            "rocketmq_connected": ("1 while the bridge follows its broker.", float(self.connected)),
            "rocketmq_slave": ("1 while the broker is a slave, and the adapter of its master commits.", float(self.slave)),
            "rocketmq_offsets": ("Offsets that broker and store have agreed on.", float(self.offsets)),
            "rocketmq_asked_queues": (
                "Light queues that the broker's table leaves out, asked for in turn.",
                float(self.asked_queues),
            ),
            "rocketmq_poll_interval_seconds": ("Time between two polls: longer for a larger table.", self.poll_interval_s),
        }
