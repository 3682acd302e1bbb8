"""What is known about the demo at the moment. Phases, consumers and monitor write it; the display only reads it."""

from dataclasses import dataclass

from demo.timeline import Timeline


@dataclass
class State(Timeline):
    """One demo. Counters are since the start."""

    # The two processes, in words.
    adapter: str = "not started"
    meta: str = "not started"
    # Commits, counted where they are answered.
    keys: int = 0
    consumers: int = 0
    acknowledged: int = 0
    retried: int = 0
    commits_per_s: float = 0.0
    # What the adapter's status says. Its counter begins anew with each start: this is the sum over the starts.
    save_calls: int = 0
    save_calls_per_s: float = 0.0
    dirty_keys: int = 0
    oldest_dirty_s: float = 0.0
    flush_ms: float = 0.0
