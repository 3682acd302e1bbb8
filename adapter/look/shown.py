"""Values as a person reads them: numbers, times, names, states. Each is a filter of the templates; None is shown as a dash."""

import math
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

NOTHING = "\N{EN DASH}"
MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
_KEPT = {" "}
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
SHORT_BELOW = 1e6
YEAR_10000_MS = 253_402_300_800_000

# Signs beside the words, so that a state is never told by colour alone.
SIGNS: Final[Mapping[str, str]] = {
    "ok": "\N{CHECK MARK}",
    "warn": "\N{UPWARDS ARROW}",
    "rewind": "\N{LEFTWARDS ARROW WITH HOOK}",
    "stall": "\N{DOUBLE VERTICAL LINE}",
    "stop": "\N{BLACK SQUARE}",
    "beyond": "\N{RIGHTWARDS ARROW TO BAR}",
    "unknown": "?",
}


def number(value: float | None) -> str:
    """A whole number with separators."""
    return NOTHING if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """A number of at most about six characters: 12.3M."""
    if value is None:
        return NOTHING
    for scale, unit in _SCALES:
        if abs(value) >= scale:
            return f"{value / scale:.1f}{unit}"
    return f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """A duration: 4.2 ms, 0.42 s, 12 s, 3 min 20 s, 5 h 10 min, 2 d 4 h."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value < 2 * MINUTE_S:
        return _short_time(value)
    whole = int(value)
    if whole < 2 * HOUR_S:
        return f"{whole // MINUTE_S} min {whole % MINUTE_S} s"
    if whole < 2 * DAY_S:
        return f"{whole // HOUR_S} h {whole % HOUR_S // MINUTE_S} min"
    return f"{whole // DAY_S:,} d {whole % DAY_S // HOUR_S} h"


def _short_time(value: float) -> str:
    if 0 < value < 0.1:  # noqa: PLR2004 - below it thousandths matter
        return f"{value * 1000:.1f} ms"
    if value < 10:  # noqa: PLR2004 - below it tenths matter
        return f"{value:.1f} s" if value >= 1 or value == 0 else f"{value:.2f} s"
    return f"{int(value)} s"


def rate(value: float | None) -> str:
    """Messages per second."""
    if value is None:
        return NOTHING
    return f"{value:,.1f}/s" if abs(value) < 100 else f"{value:,.0f}/s"  # noqa: PLR2004 - below it tenths matter


def trend(value: float | None) -> str:
    """Messages per second by which the lag grows (+) or shrinks (-)."""
    if value is None:
        return NOTHING
    text = rate(value)
    return f"+{text}" if value > 0 else text.replace("-", "\N{MINUS SIGN}")


def iso(at_ms: int | None) -> str:
    """A time in the form of the attribute `datetime`: UTC, to the second; empty if there is none."""
    if not at_ms or at_ms >= YEAR_10000_MS:
        return ""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def when(at_ms: int | None) -> str:
    """A time for a person: 2026-11-23 15:04:05 UTC."""
    text = iso(at_ms)
    return text.replace("T", " ").replace("Z", " UTC") if text else NOTHING


def name(value: str) -> str:
    """A name without what would change how the text around it is shown: controls, directions, line and other separators.

    Each such character becomes its code, so that two names that differ look different.
    """
    if value.isascii() and value.isprintable() and "\\u{" not in value:
        return value
    plain = value.replace("\\u{", "\\u{5c}u{")
    return "".join(letter if _harmless(letter) else f"\\u{{{ord(letter):x}}}" for letter in plain)


def _harmless(letter: str) -> bool:
    return letter in _KEPT or unicodedata.category(letter)[0] not in {"C", "Z"}


def sign(status: str) -> str:
    """The sign of a lag status."""
    return SIGNS.get(status, "?")


FILTERS: Mapping[str, Callable[..., Any]] = {
    "number": number,
    "short": short,
    "seconds": seconds,
    "rate": rate,
    "trend": trend,
    "iso": iso,
    "when": when,
    "name": name,
    "sign": sign,
}
