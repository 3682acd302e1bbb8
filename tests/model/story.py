"""A broken run as a story: who did what and when, which fault met it, what was acknowledged, what stands, and what broke.

The run is played once more for it. The story only looks, so it ends as the run did.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from adapter.model.records import ERA_BITS, GroupKey, OffsetKey, OffsetRecord, is_deleted, is_held
from adapter.rpc import offsets_pb
from tests.model.loop import STARTS_AT_S
from tests.model.machines import KEYS, NOTHING, START_MS, Held, held_by
from tests.model.plans import BrokenRunError, play
from tests.model.runs import Everything, quiet
from tests.model.world import World

DESIGN = Path(__file__).parents[2] / "DESIGN.md"
STATES: dict[int, str] = {number: name for name, number in offsets_pb.StatusReply.State.items()}

Told = Callable[..., str]


def _b(at: int) -> str:
    return f"b{at}"


def _keys(keys: Sequence[OffsetKey]) -> str:
    return ", ".join(f"{key.group}/{key.shard}" for key in keys)


def _commit(at: int, offsets: dict[OffsetKey, int], **how: Any) -> str:
    what = ", ".join(f"{offset} of {_keys([key])}" for key, offset in offsets.items())
    kinds = {
        "knowing": "with the epochs that it read",
        "overwrite": "to overwrite what stands",
        "big": "with much metadata",
        "columns": "in columns",
    }
    more = [text for name, text in kinds.items() if how.get(name)]
    if how.get("generation") is not None:
        more.append(f"as generation {how['generation']}")
    if how.get("age_ms"):
        more.append(f"which it did {how['age_ms']} ms ago")
    return " ".join([f"A consumer commits {what} at {_b(at)}", *more])


def _together(at: int, offers: Sequence[Any], way: Any, *, apart: bool) -> str:
    commits = [
        f"{_keys([offer.key])} {offer.further:+d}"
        + " with the epoch that was read" * offer.knowing
        + " to overwrite" * offer.overwrite
        for offer in offers
    ]
    halves = ", in two halves" if apart else ""
    return f"Consumers commit at {_b(at)} at once, as {way.value}{halves}, from what is stored there: {'; '.join(commits)}"


TOLD: dict[str, Told] = {
    "commit": _commit,
    "commit_together": _together,
    "bad_commit": lambda at, which: f"A consumer sends {_b(at)} the bad commit number {which}",
    "read": lambda at, group, mode: f"A consumer reads the group {group.group} at {_b(at)}, mode {mode.name}",
    "persist": lambda at, group: f"{_b(at)} is asked to persist the group {group.group}",
    "move": lambda at, to, group: f"The group {group.group} moves from {_b(at)} to {_b(to)}",
    "reset": lambda at, keys, offset: f"An admin resets {_keys(keys)} to {offset} at {_b(at)}",
    "delete": lambda at, group, shards=(): (
        f"An admin deletes {' and '.join(f'{group.group}/{shard}' for shard in shards) or f'the group {group.group}'} at {_b(at)}"
    ),
    "clone": lambda at, source, target: f"An admin clones the group {source.group} to {target.group} at {_b(at)}",
    "flush": lambda at: f"An admin flushes {_b(at)}",
    "trouble": lambda at, faults: (
        f"FAULT: what the next calls of {_b(at)} to the Meta Service meet, in turn: {', '.join(fault.value for fault in faults)}"
    ),
    "cut": lambda at, cut: (
        f"FAULT: {_b(at)} is cut off from the Meta Service" if cut else f"{_b(at)} reaches the Meta Service again"
    ),
    "meta": lambda up: "The Meta Service is up" if up else "FAULT: the Meta Service crashes",
    "refuse": lambda keys: f"FAULT: the Meta Service refuses {_keys(keys) or 'nothing any more'}",
    "kill": lambda at, after, restart: (
        f"FAULT: {_b(at)} is killed{'' if after is None else f' before its disk operation number {after} from now'}"
        f"{', and started again' if restart else ''}"
    ),
    "power_cut": lambda at, keep, keep_watermark: (
        f"FAULT: the machine of {_b(at)} loses power and comes back; of the writes that were not synced it keeps {keep} at most"
        f"{', and the watermark' if keep_watermark else ''}"
    ),
    "start": lambda at: f"{_b(at)} is started if it does not run",
    "stop": lambda at: f"{_b(at)} is told to stop",
    "disk_full": lambda at, full: f"FAULT: the disk of {_b(at)} is full" if full else f"The disk of {_b(at)} has space",
    "fail_sync": lambda at: f"FAULT: the next sync of {_b(at)} fails",
    "pause": lambda at: f"FAULT: {_b(at)} is paused",
    "resume": lambda at: f"{_b(at)} goes on",
    "a_day_passes": lambda: "A day passes on the wall clocks",
}


class Story:
    """Listens to a run, and has its `lines`."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._world: World | None = None
        self._within = 0
        self._told_at = STARTS_AT_S
        self._known: dict[str, str] = {}
        self._held: dict[str, Held] = {}

    def before(self, rules: Everything, at: int, last: int) -> None:
        """Before a step, and before the end (`last`)."""
        if self._world is None and at:
            self._listen(rules.world)
        if at == last:
            self._say("All troubles end; everybody comes back, flushes, stops and starts again.")
            self._within += 1

    def _listen(self, world: World) -> None:
        self._world = world
        kinds = [
            f"{one.name} (wal_sync {one.wal_sync}{', w is written through' * one.setup.writes_through})" for one in world.brokers
        ]
        self._say(f"Started: {', '.join(kinds)}.")
        self._changes()
        for name in dir(type(world)):
            method = getattr(world, name)
            if name in TOLD or (not name.startswith("_") and callable(method) and _is_step(type(world), name)):
                setattr(world, name, self._telling(name, method))
        world.pass_time = self._passing(world.pass_time)  # type: ignore[method-assign, assignment]

    def _telling(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def told(*args: Any, **kwargs: Any) -> Any:
            if not self._within:
                self._say(f"{_sentence(name, method, args, kwargs)}.")
            self._within += 1
            try:
                return method(*args, **kwargs)
            finally:
                self._within -= 1

        return told

    def _passing(self, pass_time: Callable[[float], None]) -> Callable[[float], None]:
        def passing(seconds: float) -> None:
            pass_time(seconds)
            self._changes()

        return passing

    def _say(self, text: str, at: float | None = None) -> None:
        now = self._world.loop.now if self._world and at is None else at or STARTS_AT_S
        self.lines.append(f"{now - STARTS_AT_S:8.3f} s  {text}")

    def _changes(self) -> None:
        """Tell what is other than it was when this was asked last."""
        for name, (text, at) in self._facts():
            if self._known.get(name, "") != text:
                self._known[name] = text
                self._say(f"    {name}: {text}", at if at is not None and at > self._told_at else None)
        assert self._world
        self._told_at = self._world.loop.now

    def _facts(self) -> Iterator[tuple[str, tuple[str, float | None]]]:
        world = self._world
        assert world
        for (name, key), (record, at) in world.model.here.items():
            yield f"{name} acknowledged {_keys([key])}", (_record(record), at)
        for broker in world.brokers:
            held = self._held[broker.name] = held_by(broker, self._held.get(broker.name, NOTHING))
            for key in KEYS:
                if key in held.stored or f"{broker.name} has stored {_keys([key])}" in self._known:
                    found = held.stored[key].record if key in held.stored else None
                    yield f"{broker.name} has stored {_keys([key])}", (_record(found), None)
        for key, moves in world.model.moved.items():
            yield f"Done, so the caller was told, for {_keys([key])}", (_record(moves[-1].record), None)
        for key in KEYS:
            there = world.service.standing(key)
            if there or f"The Meta Service holds {_keys([key])}" in self._known:
                yield f"The Meta Service holds {_keys([key])}", (_record(there), None)
        for broker in world.brokers:
            running = broker.running
            state = "down" if running is None or running.task.done() else STATES.get(running.state, str(running.state))
            yield f"{broker.name} is now", (state, None)


def tell(world: type[Everything], broken: BrokenRunError) -> str:
    """Play a broken run again and tell it. Says so when it does not break the same."""
    story, again = Story(), "did not break"
    with quiet():
        try:
            play(world, broken.plan, lambda rules, at: story.before(rules, at, len(broken.plan.steps)))  # type: ignore[arg-type]
        except BrokenRunError as found:
            again = str(found)
    lines = [*story.lines, "", *_why(broken)]
    if again != str(broken):
        lines += ["", f"Told once more, the run {again}: something in it is not deterministic."]
    return "\n".join(lines)


def _why(broken: BrokenRunError) -> Iterator[str]:
    yield "What broke:"
    for problem in str(broken).splitlines():
        yield f"  {_readable(problem)}"
    for number in sorted({int(number) for number in re.findall(r"^(?:in the end: )?(\d+)[:,]", str(broken), re.MULTILINE)}):
        yield f"Invariant {number} (DESIGN.md): {_invariant(number)}"


def _invariant(number: int) -> str:
    """Its text."""
    section = DESIGN.read_text().partition("\n## Invariants\n")[2]
    found = re.search(rf"^{number}\. (.*?)(?=^\d+\. |^Tests name|\Z)", section, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].replace("**", "").split()) if found else "not found"


def _sentence(name: str, method: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    if name in TOLD:
        return TOLD[name](*args, **kwargs)
    first = (method.__doc__ or name).strip().splitlines()[0].rstrip(".")
    given = ", ".join([*map(_plain, args), *(f"{key} = {_plain(value)}" for key, value in kwargs.items())])
    return f"{first} ({given})" if given else first


def _plain(value: object) -> str:
    if isinstance(value, OffsetKey):
        return _keys([value])
    if isinstance(value, list):
        return " / ".join(map(_plain, value))
    if isinstance(value, Enum):
        return str(value.value)
    return value.group if isinstance(value, GroupKey) else str(value)


def _is_step(world: type[World], name: str) -> bool:
    """True for what a world beside the usual one can do in addition: a public method of its own."""
    return name not in vars(World) and not any(name in vars(part) for part in World.__mro__) and callable(vars(world).get(name))


def _readable(problem: str) -> str:
    """With keys, records and times as the story tells them."""
    problem = re.sub(r"OffsetKey\(namespace='default', group='(\w+)', shard='(\w*)'\)", r"\1/\2", problem)
    problem = re.sub(
        r"OffsetRecord\(epoch=(\d+), offset=(\d+), live=(\w+), committed_at_ms=(\d+), [^()]*\)",
        lambda found: f"[{_record(OffsetRecord(int(found[1]), int(found[2]), found[3] == 'True', int(found[4])), timed=True)}]",
        problem,
    )
    problem = re.sub(r"Moved\(begun_ms=(\d+), record=(\[.*?\])\)", r"the change that began at \1 and left \2", problem)
    return re.sub(r"\b18\d{11}\b", lambda found: _seconds(int(found[0])), problem)


def _seconds(unix_ms: int) -> str:
    return f"{(unix_ms - START_MS) / 1000 - STARTS_AT_S:.3f} s"


def _record(record: OffsetRecord | None, *, timed: bool = False) -> str:
    if record is None:
        return "nothing"
    what = f"offset {record.offset}" if record.live else "deleted" if is_deleted(record) else f"offset {record.offset}, expired"
    era = record.epoch >> ERA_BITS
    more = [f"epoch {record.epoch}" if record.epoch else "no epoch yet"]
    more += [f"after reset {era}"] * bool(era) + ["held"] * is_held(record.epoch)
    more += [f"committed at {_seconds(record.committed_at_ms)}"] * timed
    return f"{what} ({', '.join(more)})"
