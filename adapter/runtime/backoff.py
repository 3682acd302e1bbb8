"""How long to wait between attempts: exponential backoff with full jitter. Waits for nothing itself."""

from random import Random

MAX_DOUBLINGS = 30  # of the first pause; beyond any limit

jitter = Random()  # noqa: S311 - spreads attempts, keeps no secret; a test seeds it


def pause_s(attempt: int, first_s: float, max_s: float) -> float:
    """Seconds to wait after a failed attempt, the first one being 1."""
    doublings = min(attempt - 1, MAX_DOUBLINGS)
    return jitter.uniform(first_s, min(first_s * 2**doublings, max(max_s, first_s)))
