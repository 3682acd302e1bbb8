"""The state of `make demo`, written by phases, consumers and monitor, and read by the display."""

from dataclasses import dataclass

from demo.timeline import Timeline


@dataclass
class State(Timeline):
    """The state of one demo. Counters count from its start."""

    # The states of the two processes as text.
    adapter: str = "not started"
    meta: str = "not started"
    # Answered commits.
    keys: int = 0
    consumers: int = 0
    acknowledged: int = 0
    retried: int = 0
    commits_per_s: float = 0.0
    # From the adapter's status. Its counter restarts with the process; this is the total.
    save_calls: int = 0
    save_calls_per_s: float = 0.0
    dirty_keys: int = 0
    oldest_dirty_s: float = 0.0
    flush_ms: float = 0.0
