"""How much each benchmark does: the full size, and a short one (BENCH=short) that only shows that everything still works."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes of a run. Times in seconds."""

    short: bool
    warm_up_s: float  # load before anything is counted
    rates_s: float  # window of one offered rate
    modes_s: float  # window of one mode in one round
    modes_rounds: int
    modes_rates: tuple[int, ...]  # commits per second together; 0: as many as are answered
    flush_few: int  # stored keys of the small store: all of them are dirty in each flush
    flush_many: int  # stored keys of the large one
    flush_rounds: int
    recovery_keys: tuple[int, ...]  # ascending; the last one is also compared with the plain reads
    recovery_different: int  # of them are missing in the Meta Service, as many are larger here, as many larger there


FULL = Scale(
    short=False,
    warm_up_s=1.0,
    rates_s=10.0,
    modes_s=3.0,
    modes_rounds=2,
    modes_rates=(0, 500),  # 500: what each mode can take, so that all do the same work
    flush_few=1_000,
    flush_many=1_000_000,
    flush_rounds=100,
    recovery_keys=(100_000, 300_000, 1_000_000),
    recovery_different=10_000,
)

SHORT = Scale(
    short=True,
    warm_up_s=0.2,
    rates_s=0.5,
    modes_s=0.3,
    modes_rounds=1,
    modes_rates=(0,),
    flush_few=100,
    flush_many=3_000,
    flush_rounds=5,
    recovery_keys=(1_000, 2_000, 3_000),
    recovery_different=50,
)


def chosen() -> Scale:
    """The scale that the environment asks for. Raises ValueError for a BENCH that is neither empty nor `short`."""
    match os.environ.get("BENCH", ""):
        case "":
            return FULL
        case "short":
            return SHORT
        case other:
            raise ValueError(f"BENCH={other!r} is unknown: leave it out, or say BENCH=short")
