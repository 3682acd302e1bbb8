"""The sizes of the benchmarks.

A run of some minutes, a tiny one (BENCH=short) that only shows that the benchmarks work, and a long one (BENCH=full).
"""

import os
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Scale:
    """The sizes of a run. Times in seconds."""

    short: bool
    full: bool
    warm_up_s: float  # load before anything is counted
    rates_s: float  # window of one offered rate
    modes_s: float  # window of one mode in one round
    modes_rounds: int
    modes_rates: tuple[int, ...]  # commits per second in total; 0: as fast as they are answered
    flush_few: int  # keys of the small store, all dirty in each flush
    flush_many: int  # keys of the large store
    flush_rounds: int
    recovery_keys: tuple[int, ...]  # ascending; the last one is also compared with the plain reads
    recovery_different: int  # as many keys are missing in the Meta Service, larger locally, and larger there
    start_keys: int  # BENCH_KEYS replaces it
    start_rounds: int  # of each tree
    loss_keys: int  # of one group, in a recovery after a loss
    loss_groups: int  # number of groups with many shards
    loss_shards: int
    fast_rounds: int  # of the fast path: how often each thing is measured
    fast_s: float  # window of one measurement
    floor_calls: int  # of h2load, 64 in flight
    floor_lone_calls: int  # one after the other
    batch_keys: tuple[int, ...]  # each a multiple of the largest batch
    batch_sizes: tuple[int, ...]
    dirty_keys: int  # keys that one flush sends while commits are timed
    dirty_flushes: int
    drain_keys: int  # keys that become dirty in an outage
    restarts: int  # of each way
    worst_keys: int  # stored keys, most of them in one group
    robust_groups: int  # dirty groups before RobustMQ's Meta Service
    rocketmq_rounds: int
    rocketmq_commits: int  # by one client of a RocketMQ broker
    rocketmq_table: int  # offsets in the broker's table
    rocketmq_idle_s: float


DEFAULT = Scale(
    short=False,
    full=False,
    warm_up_s=1.0,
    rates_s=10.0,
    modes_s=3.0,
    modes_rounds=2,
    modes_rates=(0, 500),  # 500: a rate that every mode reaches, so that all do the same work
    flush_few=1_000,
    flush_many=1_000_000,
    flush_rounds=100,
    recovery_keys=(100_000, 300_000, 1_000_000),
    recovery_different=10_000,
    start_keys=1_000_000,
    start_rounds=3,
    loss_keys=20_000,
    loss_groups=2_000,
    loss_shards=300,
    fast_rounds=3,
    fast_s=1.5,
    floor_calls=5_000,
    floor_lone_calls=1_500,
    batch_keys=(2**10, 2**20),
    batch_sizes=(16, 128, 1_024),
    dirty_keys=100_000,
    dirty_flushes=6,
    drain_keys=1_000_000,
    restarts=5,
    worst_keys=1_000_000,
    robust_groups=10_000,
    rocketmq_rounds=3,
    rocketmq_commits=20_000,
    rocketmq_table=10_000,
    rocketmq_idle_s=10.0,
)

FULL = replace(
    DEFAULT,
    full=True,
    fast_rounds=5,
    fast_s=10.0,
    floor_calls=30_000,
    floor_lone_calls=5_000,
    dirty_flushes=30,
)

SHORT = Scale(
    short=True,
    full=False,
    warm_up_s=0.1,
    rates_s=0.3,
    modes_s=0.1,
    modes_rounds=1,
    modes_rates=(0,),
    flush_few=100,
    flush_many=3_000,
    flush_rounds=5,
    recovery_keys=(1_000, 2_000, 3_000),
    recovery_different=50,
    start_keys=3_000,
    start_rounds=1,
    loss_keys=100,
    loss_groups=20,
    loss_shards=30,
    fast_rounds=1,
    fast_s=0.1,
    floor_calls=100,
    floor_lone_calls=20,
    batch_keys=(2**10,),
    batch_sizes=(1_024,),
    dirty_keys=2_000,
    dirty_flushes=1,
    drain_keys=2_000,
    restarts=1,
    worst_keys=2_000,
    robust_groups=200,
    rocketmq_rounds=1,
    rocketmq_commits=500,
    rocketmq_table=400,
    rocketmq_idle_s=1.0,
)


def chosen() -> Scale:
    """The scale that BENCH selects. Raises ValueError unless it is empty, `short` or `full`."""
    match os.environ.get("BENCH", ""):
        case "":
            return DEFAULT
        case "short":
            return SHORT
        case "full":
            return FULL
        case other:
            raise ValueError(f"BENCH={other!r} is unknown: leave it out, or say BENCH=short or BENCH=full")
