"""The end of a run: all troubles are over, everybody comes back, and what was acknowledged has to be everywhere."""

from collections.abc import Callable
from functools import partial

from adapter.model.records import OffsetKey, OffsetRecord, ReadMode, taken_up
from adapter.sidecar.engine.group_loader import Wanted
from tests.model.broker import Broker, Running, State
from tests.model.invariants import BrokenError, Watch
from tests.model.machines import GROUPS, KEYS
from tests.model.model import NEVER, stands_in
from tests.model.world import World

PATIENCE_S = 60.0  # far more than any backoff
STEP_S = 0.2


def settle(world: World, watch: Watch) -> None:
    """Heal everything, restart everybody, drain; then look at every key at every place. Raises BrokenError."""
    _heal(world)
    for broker in world.brokers:
        _wait(world, watch, lambda broker=broker: _is_up(broker), f"{broker.name} does not come back")  # type: ignore[misc]
    _wait(world, watch, lambda: not world.unanswered, "commits are not answered")
    for broker in world.brokers:
        _wait(world, watch, lambda broker=broker: _is_clean(broker), f"{broker.name} stays dirty")  # type: ignore[misc]
    world.settles()
    _expect_everything_there(world)
    for at in range(len(world.brokers)):
        world.stop(at)
    for broker in world.brokers:
        _wait(world, watch, lambda broker=broker: _has_stopped(broker), f"{broker.name} does not stop")  # type: ignore[misc]
        if broker.running is None or broker.running.left != 0:
            raise BrokenError(f"8: {broker.name} left keys dirty, though all is well")
        broker.start()
    for broker in world.brokers:
        _wait(world, watch, lambda broker=broker: _is_up(broker), f"{broker.name} does not start again")  # type: ignore[misc]
    _expect_agreement(world, watch)


def _taken_up(record: OffsetRecord | None) -> tuple[int, int] | None:
    """The position; of a reset that is held as its reader takes it up."""
    return (taken_up(record.epoch), record.offset) if record else None


def _heal(world: World) -> None:
    world.heal()
    world.meta(up=True)
    world.refuse([])
    for at, broker in enumerate(world.brokers):
        broker.link.cut = False
        broker.link.faults.clear()
        world.disk_full(at, full=False)
        broker.platter.failing_syncs = 0
        if broker.running and broker.running.disk:
            broker.running.disk.fuse = None
        world.resume(at)


def _wait(world: World, watch: Watch, condition: Callable[[], bool], problem: str) -> None:
    ends_at = world.loop.now + PATIENCE_S
    while not condition():
        if world.loop.now > ends_at:
            raise BrokenError(problem)
        world.pass_time(STEP_S)
        watch.check()


def _is_up(broker: Broker) -> bool:
    running = broker.running
    if running is None or running.task.done():
        broker.start()
        return False
    return running.state == State.SERVING and running.core is not None and running.core.ledger.recovered.now


def _is_clean(broker: Broker) -> bool:
    if not _is_up(broker):  # it may have been asked to stop before, and end only now
        return False
    core = broker.core()
    return core is not None and len(core.ledger.dirty) == 0 and not (broker.running and broker.running.calls)


def _has_stopped(broker: Broker) -> bool:
    return broker.running is None or broker.running.task.done()


def _expect_everything_there(world: World) -> None:
    """Whatever was acknowledged anywhere came through: the Meta Service holds at least it (1, 2, 3)."""
    for (name, key), (record, _) in world.model.here.items():
        there = world.service.standing(key)
        if world.owes(key, record) and (there is None or not stands_in(there, record)):
            raise BrokenError(f"in the end: {name} acknowledged {record} of {key}, the Meta Service has {there}")


def _expect_agreement(world: World, watch: Watch) -> None:
    """Every adapter's STORE reads show what the Meta Service holds (2, 7)."""
    for broker in world.brokers:
        before = _standing(world)
        found: dict[OffsetKey, OffsetRecord] = {}
        answered: list[bool] = []
        assert broker.running

        async def read(
            running: Running = broker.running, found: dict[OffsetKey, OffsetRecord] = found, answered: list[bool] = answered
        ) -> None:
            wanted = [Wanted(group, []) for group in GROUPS]
            for group in GROUPS:
                world.model.read_from_store(group, NEVER)
            await running.serving().reader.begin(wanted, ReadMode.STORE)
            found.update(await running.serving().reader.read(wanted, ReadMode.MEMORY))
            answered.append(True)

        broker.running.call(read)
        # One that meets a sweep of expired offsets loads its groups once more.
        _wait(world, watch, lambda answered=answered: bool(answered), f"{broker.name} answers no read")  # type: ignore[misc]
        for key, there in _standing(world).items():
            here = found.pop(key, None)
            if not any(map(partial(_agrees, world, here), (there, before.get(key)))) and not _taken_back(
                world, broker, key, there
            ):
                raise BrokenError(f"in the end: {broker.name} reads {here} of {key}, the Meta Service has {there}")
        if found.keys() - world.unsure:
            raise BrokenError(f"in the end: {broker.name} reads {found}, of which the Meta Service has nothing")


def _standing(world: World) -> dict[OffsetKey, OffsetRecord]:
    return {key: record for key in KEYS if (record := world.service.standing(key))}


def _agrees(world: World, here: OffsetRecord | None, there: OffsetRecord | None) -> bool:
    """Where an expiry took it away, a copy that another adapter still has may bring it back."""
    revived = world.expires and there and not there.live and here is not None
    return _taken_up(here) == (_taken_up(there) if there and (there.live or revived) else None)


def _taken_back(world: World, broker: Broker, key: OffsetKey, there: OffsetRecord) -> bool:
    """Whether the read came between an expiry by another adapter, which it saw, and the copy that was sent in its place."""
    core = broker.core()
    held = core.ledger.store.get(key) if core and world.expires and there.live else None
    return held is not None and not held.live and held.position == _taken_up(there)
