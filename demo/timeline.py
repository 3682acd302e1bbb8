"""When what happens in a demo: its phases, and what a person is told. Phases and monitors write it; the display only reads it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Timeline:
    """One demo. Times are seconds since the start."""

    started: float = field(default_factory=time.monotonic)
    # The phases: names, and how long each is planned to take.
    phases: list[tuple[str, float]] = field(default_factory=list)
    phase: int = 0
    phase_started: float = 0.0
    # What happened, with the time.
    events: list[tuple[float, str]] = field(default_factory=list)
    on_event: Callable[[float, str], None] | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def phase_name(self) -> str:
        """The present phase."""
        return self.phases[self.phase][0] if self.phases else ""

    @property
    def progress(self) -> float:
        """How much of the planned time is behind us, from 0 to 1. A phase that takes longer stands still at its end."""
        total = sum(seconds for _, seconds in self.phases)
        if not total:
            return 0.0
        done = sum(seconds for _, seconds in self.phases[: self.phase])
        within = min(time.monotonic() - self.phase_started, self.phases[self.phase][1])
        return (done + within) / total

    def enter(self, phase: int) -> None:
        """The phase with this number begins."""
        self.phase = phase
        self.phase_started = time.monotonic()

    def tell(self, text: str) -> None:
        """Something happened that a person wants to know."""
        self.events.append((self.elapsed, text))
        if self.on_event:
            self.on_event(self.elapsed, text)
