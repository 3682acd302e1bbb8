"""How lag, rates, times and statuses are written for a person. Pure functions, for `top`, `groups list` and `groups describe`.

The word of a status is the same in tables, in JSON and CSV, in `--at-least` and in the label of the metrics.
"""

from typing import Final

from adapter.rpc import lag_pb

UNKNOWN: Final = "unknown"
WORDS: Final = {
    lag_pb.LAG_STATUS_UNSPECIFIED: UNKNOWN,
    lag_pb.OK: "ok",
    lag_pb.WARN: "warn",
    lag_pb.REWIND: "rewind",
    lag_pb.STALL: "stall",
    lag_pb.STOP: "stop",
    lag_pb.BEYOND: "beyond",
}
STATUSES: Final = {word: status for status, word in WORDS.items() if status != lag_pb.LAG_STATUS_UNSPECIFIED}  # from good to bad

_EXACT = 1_000_000  # numbers below are written in full
_UNITS = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "m"))
_MINUTE_S = 60
_DAYS_ONLY_S = 100 * 86_400
_WHOLE_FROM = 10  # numbers from here on are written without a fraction of a second, or of a message
_HUNDRED = 100
_STEADY_PER_S = 0.05  # below, a trend is written as 0


def status_word(status: int) -> str:
    """`ok`, `warn`, `rewind`, `stall`, `stop`, `beyond`, or `unknown`, which is also that of a status of a later version."""
    return WORDS.get(lag_pb.LagStatus.ValueType(status), UNKNOWN)


def count_text(count: int | None) -> str:
    """A number of messages: in full below a million, then three digits and a unit; `-` if unknown."""
    if count is None:
        return "-"
    if count < _EXACT:
        return f"{count:,}"
    return _short(float(count))


def span_text(seconds: float | None) -> str:
    """A span of time in at most two units: `0.4s`, `12s`, `3m 20s`, `5h 2m`, `4d 3h`; `-` if unknown."""
    if seconds is None:
        return "-"
    if seconds < _WHOLE_FROM:
        return f"{max(seconds, 0.0):.1f}s".replace(".0s", "s")
    whole = int(seconds)
    if whole < _MINUTE_S:
        return f"{whole}s"
    for at, (length, unit) in enumerate(_SPANS):
        if whole >= length:
            lower, lower_unit = _SPANS[at + 1] if at + 1 < len(_SPANS) else (1, "s")
            rest = whole % length // lower if whole < _DAYS_ONLY_S else 0
            return f"{whole // length:,}{unit} {rest}{lower_unit}" if rest else f"{whole // length:,}{unit}"
    raise AssertionError(seconds)


def rate_text(per_s: float | None) -> str:
    """Messages per second; `-` if unknown."""
    return "-" if per_s is None else _number(per_s)


def trend_text(per_s: float | None) -> str:
    """Messages per second by which a lag grows, with its sign; `-` if unknown."""
    if per_s is None:
        return "-"
    if abs(per_s) < _STEADY_PER_S:
        return "0"
    return f"{'+' if per_s > 0 else '-'}{_number(abs(per_s))}"


def arrow(per_s: float | None) -> str:
    """Where a lag goes: up, down, level; a blank if that is unknown."""
    if per_s is None:
        return " "
    return "→" if abs(per_s) < _STEADY_PER_S else "↑" if per_s > 0 else "↓"


def age_text(unix_ms: int, now_ms: int) -> str:
    """How long ago a time was; `-` for 0, which means unknown. A time to come is now."""
    return span_text(max(now_ms - unix_ms, 0) // 1_000) if unix_ms else "-"


def shards_text(row: "lag_pb.GroupLag") -> str:
    """How many shards a group has, and how many of them are not well, the worst first: `12: 2 stop, 1 warn`."""
    bad = [f"{getattr(row, word):,} {word}" for word in ("beyond", "stop", "stall", "rewind", "warn") if getattr(row, word)]
    return f"{row.shards:,}: {', '.join(bad)}" if bad else f"{row.shards:,}"


def _number(value: float) -> str:
    if value < _WHOLE_FROM:
        return f"{value:.2f}".rstrip("0").rstrip(".")
    if value < _HUNDRED:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:,.0f}" if value < _EXACT else _short(value)


def _short(value: float) -> str:
    size, unit = next((size, unit) for size, unit in _UNITS if value >= size)
    return f"{value / size:.3g}{unit}" if value / size < 999.5 else f"{value / size:,.0f}{unit}"  # noqa: PLR2004 - three digits
