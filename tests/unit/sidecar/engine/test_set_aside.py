"""Groups that are set aside: how often they are retried, the unchanged rhythm of the others, and that nothing is lost."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.client.broker_log import NoBrokerLog
from adapter.errors import MetaUnavailableError, RefusedError
from adapter.model.records import OffsetKey, SaveEntry, SaveOutcome
from adapter.runtime.clocks import Clocks
from adapter.sidecar.engine.core import running_core
from adapter.sidecar.ledger.dirty import DirtyKeys
from adapter.sidecar.ledger.recovered import Recovered
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.sidecars import adapter_config
from tests.model.disk import Platter, SimDisk
from tests.model.loop import VirtualLoop
from tests.unit.helpers import commit_of, core_over, key, record, send
from tests.unit.parted import PartedMeta

AWAY_S = 30.0  # virtual
TURNS = 600  # in them


class TimedMeta(PartedMeta):
    """Records the time of each save, and delays a save that has keys of the part that does not answer."""

    def __init__(self, loop: VirtualLoop, *gone: str) -> None:
        super().__init__(*gone)
        self._loop = loop
        self.times: list[tuple[float, set[str]]] = []

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Record the time; with keys of the part that does not answer, wait first."""
        groups = {entry.key.group for entry in entries}
        self.times.append((self._loop.time(), groups))
        if groups & self.gone:
            await asyncio.sleep(0.5)
        return await super().save(entries)


def flushed_while(tmp_path: Path, gone: set[str], groups_at: Callable[[int], Collection[str]]) -> TimedMeta:
    """The saves of a flush loop in virtual time, while some groups get 20 commits a second."""
    loop = VirtualLoop()
    meta = TimedMeta(loop, *gone)
    config = adapter_config(tmp_path, flush={"interval_ms": 100, "backoff_max_ms": 2_000})
    store = LocalStore.over(SimDisk(Platter(), lambda: None), "interval")

    async def main() -> None:
        clocks = Clocks(loop.time)
        async with running_core(config, store, meta, AdapterMetrics(), NoBrokerLog(), clocks) as core:
            core.ledger.recovered.finish()
            core.tasks.start_soon(core.flusher.run)
            for turn in range(TURNS):
                await send(core, commit_of({key("s", group): turn for group in groups_at(turn)}))
                await asyncio.sleep(AWAY_S / TURNS)
            assert {found.group for found in core.ledger.dirty.keys()} >= gone  # noqa: SIM118 - of `DirtyKeys`
            core.tasks.cancel_scope.cancel()

    task: asyncio.Task[Any] = loop.create_task(main())
    loop.run_for(AWAY_S + 10)
    task.result()
    loop.close()
    return meta


def test_the_others_keep_their_rhythm_while_a_part_is_away_for_good(tmp_path: Path) -> None:
    """The part is retried every two seconds at most; between retries the others are flushed in each interval (5)."""
    meta = flushed_while(tmp_path, {"gone"}, lambda _: ("up", "gone"))
    times = [at for at, _ in meta.times]
    tries = [at for at, groups in meta.times if "gone" in groups]
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert AWAY_S / 3 < len(tries) < AWAY_S / (2 * 0.5)
    assert max(pauses) < 0.5 + 2.0 + 2 * 0.1  # the try itself, the pause, and the tick that it waits for
    assert min(pauses) > 2 * 0.5 - 1e-6  # no more than half of the time goes to it
    assert pauses[0] < 1.3  # at first it is looked after soon
    assert all(groups in ({"up"}, {"up", "gone"}) for _, groups in meta.times)
    between = sorted(later - earlier for earlier, later in pairwise(times))
    assert between[len(between) // 2] == pytest.approx(0.1)
    assert max(between) < 0.5 + 0.2
    # One attempt in each interval of the time that passed, as always (5).
    assert len(times) <= AWAY_S / 0.1 + 2


def test_groups_that_join_do_not_put_off_the_next_try(tmp_path: Path) -> None:
    """Each further group of the part costs one slow save, but the time of the next retry does not change (4)."""
    joining = {f"gone{turn}" for turn in range(TURNS)}
    meta = flushed_while(tmp_path, {"gone", *joining}, lambda turn: ("up", "gone", f"gone{turn}"))
    tries = [at for at, groups in meta.times if "gone" in groups]
    assert all("up" in groups for _, groups in meta.times)
    assert len(tries) > AWAY_S / (0.5 + 2.0 + 0.5)  # the try, the pause, and the save that is under way then


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "ok", "lost", "refused", "parted", "retry", "take up"]), *[st.sampled_from("ab")] * 2),
    max_size=40,
)


@given(STEPS)
def test_no_order_of_events_loses_the_newest_value(steps: list[tuple[str, str, str]]) -> None:
    """A key is clean exactly when its newest value was acknowledged, whatever was set aside and retried (3, 4)."""
    dirty, newest, acknowledged = DirtyKeys(Recovered()), dict[OffsetKey, int](), dict[OffsetKey, int]()
    for seq, (step, shard, group) in enumerate(steps, start=1):
        where = key(shard, group)
        if step == "add":
            dirty.add(where.group_key, {shard: (record(seq), seq, b"key")}, float(seq))
            newest[where] = seq
        elif step == "retry":
            dirty.retry_refused()
        elif step == "take up":
            dirty.take_up()
        else:
            expected = dirty.pending
            sent = {OffsetKey(*of, name): one[1] for of, shards in dirty.take().items() for name, one in shards.items()}
            assert len(sent) == expected
            for found, value in sent.items():
                if step == "parted" and found.group == group:
                    dirty.set_aside(found.group_key)
                elif found != where or step == "ok":
                    dirty.acknowledge(found)
                    acknowledged[found] = value
                elif step == "refused":
                    dirty.refuse(found)
            dirty.settle()
        unacknowledged = {found for found, value in newest.items() if acknowledged.get(found, 0) < value}
        assert {found for found in newest if found in dirty} == dirty.keys() == unacknowledged
        assert len(dirty) == len(unacknowledged)
        assert all(dirty.is_aside(found) <= (found in unacknowledged) for found in newest)


async def test_whatever_happens_in_whatever_order_the_watermark_stays_below_what_is_not_saved(tmp_path: Path) -> None:
    """After a kill at any moment, every offset that the Meta Service lacks is above the watermark (1, 3)."""
    chance = Random(6)
    meta = PartedMeta()
    keys = [key(shard, group) for group in "abc" for shard in "st"]
    async with core_over(tmp_path, meta, knows="abc") as core:
        for step in range(400):
            await send(core, commit_of({chance.choice(keys): step}))
            meta.gone = {group for group in "abc" if chance.random() < 0.2}
            meta.applies = chance.random() < 0.3
            if chance.random() < 0.1:
                meta.faults.append(chance.choice([MetaUnavailableError("down"), RefusedError("no")]))
            if chance.random() < 0.6:
                with suppress(MetaUnavailableError):
                    await core.flusher.flush_once(refused_too=chance.random() < 0.3, aside_too=chance.random() < 0.3)
            for found in keys:
                stands = core.ledger.store.get(found)
                saved = meta.records.get(found)
                if stands and (saved is None or saved.position < stands.position):
                    assert found in core.ledger.dirty
                    assert core.ledger.store.seq_of(found) > core.ledger.store.flushed_seq
        meta.gone, meta.applies = set(), False
        meta.faults.clear()
        await core.flusher.flush_all()
        assert core.ledger.store.flushed_seq == core.ledger.store.seq
        assert meta.records == {found: core.ledger.store.get(found) for found in keys}
