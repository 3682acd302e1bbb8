"""What rules are made of, and how their times are written.

Times in expressions stand in angle brackets, so that a demonstration can shorten all of them by one factor: `<5m>` becomes a
duration of PromQL, `<30 s>` a number of seconds to compare with.
"""

import re
from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "info"]

SHORTEST_WINDOW_MS = 5_000  # of a scaled time: a window has to hold a few scrapes
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"<(\d+)(ms|s|m|h|d)>")
_SECONDS = re.compile(r"<(\d+) s>")


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert, and why its threshold is what it is. `name` is also that of its runbook in docs/runbooks."""

    name: str
    severity: Severity
    expr: str
    after: str = "0s"  # how long the expression holds before the alert fires
    keep: str = "2m"  # how long it goes on behind that: a scrape that fails, or a restart, must not resolve and fire it again
    summary: str
    description: str
    reason: str


@dataclass(frozen=True)
class Recording:
    """A recording rule."""

    name: str
    expr: str
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Times:
    """Writes times, scaled by a factor; 1 for production."""

    scale: float = 1.0

    def duration(self, text: str, at_least_ms: int = 0) -> str:
        """A duration such as `5m`, scaled. Raises ValueError for another form."""
        found = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text)
        if not found:
            raise ValueError(f"{text!r} is not a duration such as 30s, 5m or 1h")
        ms = int(found[1]) * _UNITS_MS[found[2]]
        if self.scale == 1 or not ms:
            return text
        scaled = max(round(ms * self.scale), at_least_ms)
        return f"{scaled // 1_000}s" if scaled % 1_000 == 0 else f"{scaled}ms"

    def expr(self, text: str) -> str:
        """An expression of PromQL, in one line, with its times filled in."""
        text = _DURATION.sub(lambda found: self.duration(found[0][1:-1], SHORTEST_WINDOW_MS), " ".join(text.split()))
        return _SECONDS.sub(lambda found: f"{int(found[1]) * self.scale:g}", text)
