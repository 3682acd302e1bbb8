"""What must hold in every state and on every step of a scope, whatever the interleaving and the faults.

Values compare as the register does: the encoded forms sort by (epoch, offset, live, time).
"""

from typing import NamedTuple

from adapter.metaservice.etcd.keys import decode_value, encode_value
from adapter.metaservice.etcd.sharding import Layout
from adapter.model.records import OffsetKey, OffsetRecord
from tests.exploration.contents import Effect, Stores, layout_of
from tests.exploration.process import (
    GROUPS,
    KEYS,
    METADATA,
    STORE,
    Birth,
    Delete,
    Drop,
    Expire,
    Operation,
    Read,
    Rebalance,
    Report,
    Result,
    Save,
)
from tests.exploration.scope import ALL, EVERY, NAMES, PACKED, PLACE, WHERE, Scope, report_record, told, value_of, values_of
from tests.exploration.world import DEAD, INDEX, Kind, Moved, State, Step, World

_POSITION = 16  # bytes of epoch and offset


class ViolationError(Exception):
    """A property does not hold."""


class Call(NamedTuple):
    """A client's call under way.

    `floor`: what had been acknowledged when its first request was executed, None before. `failed`: the Raft groups that have
    given no answer since.
    """

    floor: tuple[bytes | None, ...] | None = None
    failed: frozenset[str] = frozenset()


class Ghost(NamedTuple):
    """What clients know: the largest value of each key that was acknowledged or read; and their calls, by process."""

    acknowledged: tuple[bytes | None, ...]
    calls: tuple[Call | None, ...]


class Properties:
    """The properties of a scope."""

    def __init__(self, scope: Scope, world: World, start: tuple[int, ...]) -> None:
        self._scope = scope
        self._world = world
        self._stores: Stores = world.stores
        self._values = values_of(scope.operations)
        self._expires_before_ms = max((each.before_ms for each in scope.operations if isinstance(each, Expire)), default=0)
        self._ghosts: list[Ghost] = []
        self._numbers: dict[Ghost, int] = {}
        self._standing: dict[tuple[int, ...], tuple[bytes | None, ...]] = {}
        self._finished: set[tuple[tuple[int, ...], int]] = set()
        self.finishes = 0  # contents from which a new rebalance was run to its end
        self.first = self._number(
            Ghost(self._stands(start), tuple(Call() if not scope.is_move(slot) else None for slot, _ in enumerate(scope.births)))
        )

    def after(self, before: State, step: Step, moved: Moved) -> int:
        """Check a step; return the ghost after it. Raises ViolationError."""
        ghost = self._ghosts[before.ghost]
        state = moved.state
        if moved.effect and moved.effect.changed:
            self._check_writes(before, moved.group, moved.effect, state)
        if moved.slot != DEAD:
            ghost = self._of_call(ghost, step, moved)
        if state.contents != before.contents or ghost is not self._ghosts[before.ghost]:
            self._check_standing(state.contents, ghost)
        return self._number(ghost)

    def at_rest(self, state: State) -> None:
        """Check a state in which nothing happens by itself any more. Raises ViolationError."""
        for slot, at in enumerate(state.nodes):
            if at < 0:
                continue
            node = self._world.machines.nodes[at]
            waits = [request.group for _, request in node.calls]
            if not node.at_rest and not any(INDEX[group] == state.silent for group in waits):
                raise ViolationError(f"{node.birth.name} waits for ever, for nothing that will come")
            if waits and not isinstance(self._scope.births[slot].program[0], Rebalance):
                raise ViolationError(f"{node.birth.name} is held up by {', '.join(waits)}, which is silent")

    def can_be_finished(self, contents: tuple[int, ...]) -> None:
        """Whatever is left behind: a new rebalance finishes it, alone, and a new Meta Service then reads everything.

        Raises ViolationError.
        """
        self.finishes += 1
        standing = self._stands(contents)
        move = Birth("the next rebalance", (Rebalance(self._scope.change[1]),))
        results: tuple[Result, ...] = ()
        last = contents
        for last, node, results in self._world.run_alone(contents, move):  # noqa: B007 - the last one counts
            if (last, node) in self._finished:
                return
            self._finished.add((last, node))
            self._check_nothing_lost(self._stands(last), standing, "while a new rebalance goes on from here")
            standing = self._stands(last)
        if any(result.error for result in results):
            raise ViolationError(f"a new rebalance cannot go on from here: {results[0].error}")
        layout = layout_of(self._stores, last)
        if not layout.settled or {*layout.groups} != {*self._scope.change[1]}:
            raise ViolationError(f"a new rebalance ends with the layout {layout}")
        read: dict[OffsetKey, OffsetRecord | None] = {}
        looks: tuple[Operation, ...] = (Read(ALL), *([Report(0)] if STORE in self._scope.stored else []))
        for look in looks:
            _, results = self._world.end_of(last, Birth("the next meta", (look,)))
            read.update(results[0].stands)
        found = tuple(encoded(read.get(key)) for key in EVERY)
        if found != self._stands(last):
            raise ViolationError(
                f"a new Meta Service reads {_told_values(found)}, and there stands {_told_values(self._stands(last))}"
            )

    def _of_call(self, ghost: Ghost, step: Step, moved: Moved) -> Ghost:
        slot = moved.slot
        call = ghost.calls[slot]
        if self._scope.is_move(slot):
            call = None
        elif step.kind is Kind.KILL:
            return self._with(ghost, slot, Call() if moved.state.nodes[slot] >= 0 else None)
        if call and call.floor is None and moved.effect:
            call = call._replace(floor=ghost.acknowledged)
        if step.kind is Kind.LOSE and call and moved.group >= 0:
            call = call._replace(failed=call.failed | {GROUPS[moved.group]})
        ghost = self._with(ghost, slot, call)
        for result in moved.results:
            after = Call() if moved.state.nodes[slot] >= 0 else None
            ghost = self._with(self._of_result(ghost, result, call, moved.state), slot, after)
        return ghost

    def _of_result(self, ghost: Ghost, result: Result, call: Call | None, state: State) -> Ghost:
        operation = result.operation
        if isinstance(operation, Rebalance):
            self._check_rebalanced(result, state)
            return ghost
        assert call is not None, result
        self._check_refused(result, call.failed)
        known = list(ghost.acknowledged)
        if isinstance(operation, Read | Save | Report):
            for key, record in result.stands.items():
                at = EVERY.index(key)
                value = encoded(record)
                floor = (call.floor or ghost.acknowledged)[at]
                if isinstance(operation, Save):
                    floor = max(floor or b"", encode_value(dict(operation.records)[key]))
                if self._below(value, floor):
                    raise ViolationError(
                        f"{told(operation)}: it was told {_told(value)} of {NAMES[key]}, and {_told(floor)} had been acknowledged"
                    )
                if isinstance(operation, Report):
                    value = max(value or b"", encode_value(report_record(operation.seq)))
                if value is not None:
                    known[at] = max(known[at] or b"", value)
        if isinstance(operation, Delete) and not result.error:
            at = EVERY.index(operation.key)
            value = self._stands(state.contents)[at]
            if value is not None and decode_value(value).live:
                raise ViolationError(f"{told(operation)}: done, and {_told(value)} stands")
            known[at] = max(known[at] or b"", value or b"") or None
        return ghost._replace(acknowledged=tuple(known))

    def _check_refused(self, result: Result, failed: frozenset[str]) -> None:
        """Only what is about a Raft group that gave no answer fails."""
        if result.error == "given up":
            return
        keys = result.failed
        if result.error:
            operation = result.operation
            keys = tuple(dict(operation.records)) if isinstance(operation, Save) else getattr(operation, "keys", (STORE,))
            if isinstance(result.operation, Delete | Expire | Drop) and failed:
                return
            if isinstance(result.operation, Read | Report):
                if not any(failed & self._places(key) for key in keys):
                    raise ViolationError(f"{told(operation)} fails ({result.error}); no answer from: {sorted(failed)}")
                return
        for key in keys:
            if not failed & self._places(key):
                raise ViolationError(
                    f"{told(result.operation)}: {NAMES[key]} is refused ({result.error}); no answer from: {sorted(failed)}"
                )
        if result.error and not failed:
            raise ViolationError(f"{told(result.operation)} fails without a fault: {result.error}")

    def _places(self, key: OffsetKey) -> set[str]:
        """The Raft groups whose silence may hold up a key: of its home before and after, and the layout."""
        homes = {Layout(1, tuple(sorted(groups))).home(PACKED[key]) for groups in self._scope.change}
        return {*homes, METADATA}

    def _check_rebalanced(self, result: Result, state: State) -> None:
        if result.error:
            raise ViolationError(f"the rebalance fails: {result.error}")
        layout = layout_of(self._stores, state.contents)
        if not layout.settled or {*layout.groups} != {*self._scope.change[1]}:
            raise ViolationError(f"the rebalance says that it is done, and the layout is {layout}")

    def _check_writes(self, before: State, group: int, effect: Effect, state: State) -> None:
        """Nobody writes to a place after its fence, and nobody deletes what is not at home elsewhere."""
        name = GROUPS[group]
        value = self._stores.value(before.contents[group], KEYS.fence)
        fenced = Layout.decode(value.partition(b"{")[1] + value.partition(b"{")[2]) if value else None
        for where, was, becomes in effect.changed:
            key = WHERE[where]
            old, new = (value and value_of(key, value) for value in (was, becomes))
            if new is None:
                self._check_deleted(state, name, key, old or b"")
                continue
            if fenced and fenced.home(PACKED[key]) != name:
                raise ViolationError(
                    f"{NAMES[key]} is written in {name}, whose fence says that it is in {fenced.home(PACKED[key])}"
                )
            record = decode_value(new)
            if record.live and new not in self._values[key]:
                raise ViolationError(f"{NAMES[key]} is {_told(new)}, which nobody ever saved")
            if self._below(new, old):
                raise ViolationError(f"{NAMES[key]} goes back in {name}, from {_told(old)} to {_told(new)}")

    def _check_deleted(self, state: State, name: str, key: OffsetKey, old: bytes) -> None:
        layout = layout_of(self._stores, state.contents)
        home = layout.home(PACKED[key])
        if home == name:
            if decode_value(old).live:
                raise ViolationError(f"{NAMES[key]} is deleted in {name}, where it is at home")
            return
        there = self._value(state.contents[INDEX[home]], key)
        if self._below(there, old):
            raise ViolationError(f"{NAMES[key]} is deleted in {name}: {_told(old)}; at home, in {home}, is {_told(there)}")

    def _check_standing(self, contents: tuple[int, ...], ghost: Ghost) -> None:
        self._check_nothing_lost(self._stands(contents), ghost.acknowledged, "where a reader would look")

    def _check_nothing_lost(self, standing: tuple[bytes | None, ...], known: tuple[bytes | None, ...], where: str) -> None:
        for key, value, floor in zip(EVERY, standing, known, strict=True):
            if self._below(value, floor):
                raise ViolationError(f"{NAMES[key]}: {_told(floor)} was acknowledged; {where} stands {_told(value)}")

    def _stands(self, contents: tuple[int, ...]) -> tuple[bytes | None, ...]:
        """What stands under each key: at home, and where the layout says that it may still be. Raises ViolationError."""
        found = self._standing.get(contents)
        if found is not None:
            return found
        layout = layout_of(self._stores, contents)
        standing: list[bytes | None] = []
        for key in EVERY:
            places = [name for name in (layout.home(PACKED[key]), layout.former(PACKED[key])) if name]
            values = [self._value(contents[INDEX[name]], key) for name in places]
            standing.append(max((value for value in values if value is not None), default=None))
        if layout.settled:
            for name in GROUPS[1:]:
                placed = self._stores.placed(contents[INDEX[name]])
                strays = [where for where in placed if layout.home(PACKED[WHERE[where]]) != name]
                if strays:
                    raise ViolationError(f"all is moved and cleaned, and {NAMES[WHERE[strays[0]]]} is still in {name}")
        found = self._standing[contents] = tuple(standing)
        return found

    def _value(self, content: int, key: OffsetKey) -> bytes | None:
        value = self._stores.value(content, PLACE[key])
        return value and value_of(key, value)

    def _below(self, value: bytes | None, floor: bytes | None) -> bool:
        """Whether a value is less than what was promised. An expiry keeps the position, and its tombstone may be removed."""
        if not floor:
            return False
        if value is None:
            record = decode_value(floor)
            return record.live and record.committed_at_ms >= self._expires_before_ms
        if self._expires_before_ms:
            return value[:_POSITION] < floor[:_POSITION]
        return value < floor

    @staticmethod
    def _with(ghost: Ghost, slot: int, call: Call | None) -> Ghost:
        if ghost.calls[slot] == call:
            return ghost
        return ghost._replace(calls=(*ghost.calls[:slot], call, *ghost.calls[slot + 1 :]))

    def _number(self, ghost: Ghost) -> int:
        number = self._numbers.setdefault(ghost, len(self._ghosts))
        if number == len(self._ghosts):
            self._ghosts.append(ghost)
        return number


def encoded(record: object) -> bytes | None:
    """A record in etcd's form."""
    return None if record is None else encode_value(record)  # type: ignore[arg-type]


def _told(value: bytes | None) -> str:
    if not value:
        return "nothing"
    record = decode_value(value)
    epoch = f" of epoch {record.epoch}" if record.epoch > 1 else ""
    return f"{record.offset}{epoch}" if record.live else f"a tombstone at {record.offset}{epoch}"


def _told_values(values: tuple[bytes | None, ...]) -> str:
    return ", ".join(f"{NAMES[key]}={_told(value)}" for key, value in zip(EVERY, values, strict=True))
