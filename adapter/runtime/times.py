"""Times and durations as typed on the command line, and times to read; all are Unix time in milliseconds. No clock, no I/O."""

import re
from datetime import UTC, datetime, timedelta

from adapter.errors import InvalidInputError

# kafka-consumer-groups requires the milliseconds; here they are optional.
_DATETIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,3})?)?(Z|[+-]\d\d(:?\d\d)?)?", re.ASCII)
# The format of java.time.Duration without signs. Years and months are excluded: their length varies.
_DURATION = re.compile(
    r"P(?=\d|T\d)(?:(\d{1,9})D)?(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,12})(?:\.(\d{1,3}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def datetime_ms(text: str, field: str) -> int:
    """`YYYY-MM-DDTHH:mm:SS.sss[+hh:mm]` as Unix time in ms; without a zone it is UTC, as Kafka's. Raises InvalidInputError."""
    try:
        parsed = datetime.fromisoformat(text) if _DATETIME.fullmatch(text) else None
    except ValueError as error:
        raise InvalidInputError(f"{field}: {text!r}: {error}") from error
    if parsed is None:
        raise InvalidInputError(f"{field}: {text!r} is not a time like 2026-11-21T13:45:00.000+01:00; without a zone it is UTC")
    moment = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return _positive((moment - _EPOCH) // _MS, text, field)


def before_ms(duration: str, now_ms: int, field: str) -> int:
    """`now_ms` minus an ISO 8601 duration `PnDTnHnMnS`, as Unix time in ms. Raises InvalidInputError."""
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise InvalidInputError(
            f"{field}: {duration!r} is not a duration like P7D, PT12H or P1DT2H30M5S (days, hours, minutes and seconds)"
        )
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
    past_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + int((match[5] or "0").ljust(3, "0"))
    return _positive(now_ms - past_ms, duration, field)


def utc(unix_ms: int) -> str:
    """A Unix time in ms for a person to read, wherever that is."""
    return f"{_EPOCH + unix_ms * _MS:%Y-%m-%d %H:%M:%S} UTC"


def _positive(unix_ms: int, text: str, field: str) -> int:
    if unix_ms < 0:
        raise InvalidInputError(f"{field}: {text!r} is before 1970")
    return unix_ms
