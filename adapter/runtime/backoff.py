"""How long to wait between attempts: exponential backoff with full jitter. It only computes; callers wait."""

from random import Random

MAX_DOUBLINGS = 30  # of the first pause: enough to exceed any limit

jitter = Random()  # noqa: S311 - spreads attempts, protects no secret; a test seeds it


def pause_s(attempt: int, first_s: float, max_s: float) -> float:
    """Return the seconds to wait after failed attempt number `attempt`, counted from 1."""
    doublings = min(attempt - 1, MAX_DOUBLINGS)
    return jitter.uniform(first_s, min(first_s * 2**doublings, max(max_s, first_s)))
