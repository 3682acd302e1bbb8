"""The scopes: `SMALL` is explored by `make test`, `FULL` by `make exploration`; `WALKS` are too large, and walked at random."""

from itertools import chain

from tests.exploration.process import METADATA, NOW_MS, A, B, Delete, Drop, Expire, Report
from tests.exploration.scope import ALL, EVERY, FAULTS, GROWS, M0, M1, S0, SHRINKS, Scope, read, save
from tests.exploration.world import Kind

CANCEL = frozenset({Kind.CANCEL})
KILL = frozenset({Kind.KILL})
OLD = NOW_MS + 1  # every tombstone of a scope is older
YOUNG = 500_000  # what was stored at first is older than this

SMALL = (
    Scope("save", "A key that moves is saved, then read.", ((save(5, M0), read(M0)),)),
    Scope("shrink", "The same, and a Raft group is taken away.", ((save(5, M0), read(M0)),), change=SHRINKS),
    Scope("start", "A Meta Service starts in the middle of it.", ((save(5, M0),),), late_start=True),
    Scope(
        "kill",
        "A rebalance is killed anywhere; its pages are one key. A report moves as well, of an adapter that is down.",
        ((read(S0),),),
        faults=1,
        kinds=KILL,
        page=1,
        stored=EVERY,
    ),
)

FULL = (
    *SMALL,
    Scope("faults", "A save of a key that moves, with one fault anywhere.", ((save(5, M0),),), faults=1),
    Scope("keys", "All three keys are saved in one call.", ((save(5, *ALL),),)),
    Scope("pages", "A page of the rebalance is one key; one fault anywhere.", ((save(5, M1),),), faults=1, page=1),
    Scope("two", "One Meta Service saves what another one reads.", ((save(5, M0),), (read(M0),))),
    Scope("two-killed", "The same, and any process is killed anywhere.", ((save(5, M0),), (read(M0),)), faults=1, kinds=KILL),
    Scope("race", "Two Meta Services save one key.", ((save(5, M0),), (save(6, M0),))),
    Scope("shards", "Two Meta Services save one key each, of one consumer group.", ((save(5, M0),), (save(6, M1),))),
    Scope("apart", "Two Meta Services save a key that moves, and one that stays.", ((save(5, M0),), (save(6, S0),))),
    Scope("beside", "Two rebalances at once, without a client.", (), rebalances=2),
    Scope("rebalances", "Two rebalances at once.", ((save(5, M0),),), rebalances=2),
    Scope("taken-up", "Two rebalances, one of which is killed anywhere.", (), rebalances=2, faults=1, kinds=KILL),
    Scope("given-up", "A client gives its call up, anywhere.", ((save(5, M0), read(M0)),), faults=1, kinds=CANCEL),
    Scope("deleted", "A key is deleted, and its tombstone is removed when it may be.", ((Delete(M0), Drop(OLD), read(M0)),)),
    Scope("expired", "A consumer group expires, beside a save.", ((Expire(M0, YOUNG),), (save(5, M0),))),
    Scope("shrink-faults", "A Raft group is taken away; one fault anywhere.", ((save(5, M0),),), change=SHRINKS, faults=1),
    *(
        Scope(f"silent-{name.lower()}", f"{name} falls silent, anywhere.", ((save(5, *ALL), read(S0)),), silent=(name,))
        for name in (A, B, METADATA)
    ),
)

WALKS = (
    Scope(
        "walk-grow",
        "Everything at once.",
        ((save(5, M0, S0), read(*ALL), save(7, M1)), (save(6, *ALL), read(M0, M1), Delete(M1), read(*ALL))),
        rebalances=2,
        faults=3,
        kinds=FAULTS | CANCEL,
        page=1,
        silent=(A, B, METADATA),
    ),
    Scope(
        "walk-shrink",
        "Everything at once, and a Raft group is taken away.",
        ((save(5, M0, S0), read(*ALL), save(7, M1)), (save(6, *ALL), read(M0, M1), Delete(M1), read(*ALL))),
        rebalances=2,
        change=SHRINKS,
        faults=3,
        kinds=FAULTS | CANCEL,
        page=1,
        silent=(A, B, METADATA),
    ),
    Scope(
        "walk-removal",
        "Deletes, expiry and the removal of tombstones, beside saves.",
        ((Delete(M0), Drop(OLD), read(*ALL), Expire(M1, YOUNG)), (save(5, M1), read(M0, M1), Drop(OLD), read(*ALL))),
        rebalances=2,
        faults=2,
        kinds=FAULTS | CANCEL,
        page=1,
    ),
    *(
        Scope(
            f"walk-report-{way}",
            text,
            ((Report(0), Report(5), Report(0)), (Report(6), Report(0), save(5, M0))),
            rebalances=2,
            change=change,
            faults=3,
            kinds=FAULTS | CANCEL,
            page=1,
            silent=(A, B, METADATA),
            stored=EVERY,
        )
        for way, text, change in (
            ("grow", "An adapter reports its store at two Meta Services.", GROWS),
            ("shrink", "The same, and a Raft group is taken away.", SHRINKS),
        )
    ),
)

SCOPES = {scope.name: scope for scope in chain(FULL, WALKS)}
