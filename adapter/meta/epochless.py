"""Saves to a Meta Service that stores only offsets (RobustMQ), where a plain save overwrites whatever is stored.

A record that was compared with the server before goes as a plain save; any other by compare-and-set, which cannot move an offset
back. A tombstone is never sent: such a server would store it as offset 0.
"""

from collections.abc import Callable, Sequence

from adapter.meta.client import MetaClient
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, Status, as_seen, merge, resolve

ROUNDS = 5  # attempts to read, compare and set a key that another writer changes meanwhile

CONTENDED = "another writer keeps changing it"


def nothing(_: OffsetKey) -> bool:
    """The default of `save`: every key has been compared by a recovery."""
    return False


async def save(
    meta: MetaClient, entries: Sequence[SaveEntry], *, uncompared: Callable[[OffsetKey], bool] = nothing
) -> Sequence[SaveOutcome]:
    """Save entries of distinct keys in the way that the server supports; one outcome each, in order.

    `uncompared(key)` is True while no recovery has compared the key with the Meta Service. A record of epoch 0 never was: its
    group could not be loaded. Raises MetaUnavailableError, RefusedError.
    """
    if meta.knows_epochs:
        return await meta.save(entries)
    outcomes: dict[OffsetKey, SaveOutcome] = {}
    unsure = {key: record for key, record, _ in entries if uncompared(key) or not record.epoch or not record.live}
    if unsure:
        await _compare_and_set(meta, unsure, outcomes)
    plain = [entry for entry in entries if entry.key not in outcomes]
    if plain:
        outcomes.update(zip([entry.key for entry in plain], await meta.save(plain), strict=True))
    return [outcomes[entry.key] for entry in entries]


async def _compare_and_set(
    meta: MetaClient, waiting: dict[OffsetKey, OffsetRecord], outcomes: dict[OffsetKey, SaveOutcome]
) -> None:
    """Save each key on its own: one that stays contended ends with CONFLICT and does not delay the others."""
    for _ in range(ROUNDS):
        held = await meta.get(sorted(waiting))
        outcomes.update((key, found) for key, record in waiting.items() if (found := _compare(record, held.get(key))))
        pushes = [
            # On such a server an absent key reads as offset 0.
            SaveEntry(key, record, held[key].offset if key in held else 0)
            for key, record in waiting.items()
            if key not in outcomes
        ]
        if not pushes:
            return
        saved = await meta.save(pushes)
        done = {push.key: result for push, result in zip(pushes, saved, strict=True) if result.status is not Status.CONFLICT}
        outcomes.update(done)
        waiting = {key: record for key, record, _ in pushes if key not in done}
    outcomes.update((key, SaveOutcome(Status.CONFLICT, None, CONTENDED)) for key in waiting)


def _compare(record: OffsetRecord, held: OffsetRecord | None) -> SaveOutcome | None:
    """The outcome of a record that needs no save since the server holds as much; None if it has to be sent."""
    if held is None:
        return None if record.live else SaveOutcome(Status.APPLIED, record)
    seen = as_seen(held, record)
    offered = resolve(record, seen)
    if merge(offered, seen) != seen:
        return None
    return SaveOutcome(Status.APPLIED if offered.position == seen.position else Status.SUPERSEDED, seen)
