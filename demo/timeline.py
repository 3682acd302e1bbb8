"""The timeline of a demo: its phases and events, written by scenario and monitors, and read by the display."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Timeline:
    """The timeline of one demo. Times are seconds since its start."""

    started: float = field(default_factory=time.monotonic)
    # The phases: names and planned durations.
    phases: list[tuple[str, float]] = field(default_factory=list)
    phase: int = 0
    phase_started: float = 0.0
    # Events with their time.
    events: list[tuple[float, str]] = field(default_factory=list)
    on_event: Callable[[float, str], None] | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def phase_name(self) -> str:
        """The current phase."""
        return self.phases[self.phase][0] if self.phases else ""

    @property
    def progress(self) -> float:
        """The progress by planned time, 0 to 1. It stops at the end of a phase that takes longer than planned."""
        total = sum(seconds for _, seconds in self.phases)
        if not total:
            return 0.0
        done = sum(seconds for _, seconds in self.phases[: self.phase])
        within = min(time.monotonic() - self.phase_started, self.phases[self.phase][1])
        return (done + within) / total

    def enter(self, phase: int) -> None:
        """Begin the phase with this number."""
        self.phase = phase
        self.phase_started = time.monotonic()

    def tell(self, text: str) -> None:
        """Add an event."""
        self.events.append((self.elapsed, text))
        if self.on_event:
            self.on_event(self.elapsed, text)
