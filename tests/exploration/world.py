"""The states of a scope, and the steps between them: what network, Raft groups, processes and their clients may do next.

A request that was sent is executed at some time, in one instant, and answered; or the caller gets an error first, and the request
may be executed at any time later, or never. So may what a killed process had sent.
"""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from adapter.rpc import etcd_pb
from tests.exploration.contents import Effect, Stores, may_write
from tests.exploration.machines import Machines
from tests.exploration.process import (
    GROUPS,
    KEYS,
    METADATA,
    Answer,
    Birth,
    Cancel,
    Event,
    Fail,
    Rebalance,
    Request,
    Result,
    Start,
)

INDEX = {name: at for at, name in enumerate(GROUPS)}
DEAD = -1
NONE_SILENT = -1


class Kind(Enum):
    """Of a step. `values` are what a trace says."""

    START = "its client makes the next call"
    DO = "is executed and answered"
    EXECUTE = "is executed; the answer is under way"
    DELIVER = "the answer arrives"
    LOSE = "gets no answer"
    AGAIN = "gets no answer, and is sent again"
    LATE = "is executed after its caller got an error"
    CANCEL = "its client gives up"
    KILL = "is killed"
    SILENCE = "falls silent for ever"


FAULTS = (Kind.LOSE, Kind.AGAIN, Kind.CANCEL, Kind.KILL, Kind.SILENCE)


class Step(NamedTuple):
    """`slot`: the process; of LATE and SILENCE the Raft group. `number`: of the call; of LATE its place among the late ones."""

    kind: Kind
    slot: int
    number: int = 0


class State(NamedTuple):
    """`contents`: of the Raft groups. `nodes`: of the processes. `answers`: (process, call, answer). `late`: may be executed."""

    contents: tuple[int, ...]
    nodes: tuple[int, ...]
    answers: tuple[tuple[int, int, int], ...]
    late: tuple[int, ...]
    faults: int
    silent: int
    ghost: int


class Moved(NamedTuple):
    """A step that was taken: the state after it but for its ghost, and what the properties have to see."""

    state: State
    slot: int  # of the process that it happened to, DEAD if to none
    results: tuple[Result, ...]
    effect: Effect | None = None
    group: int = DEAD  # the Raft group of a call


class World:
    """The processes of a scope and what they can do."""

    def __init__(self, births: tuple[Birth, ...], kinds: frozenset[Kind], silent: frozenset[int], stores: Stores) -> None:
        self.machines = Machines()
        self.stores = stores
        self.births = births
        self.kinds = kinds
        self._may_fall_silent = silent
        self._requests: dict[Request, int] = {}
        self.requests: list[Request] = []
        self._answers: dict[bytes, int] = {}
        self._answer_data: list[bytes] = []
        self._private: dict[Request, bool] = {}
        self._is_move = [isinstance(birth.program[0], Rebalance) for birth in births]
        self._writes: dict[Request, bool] = {}

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen next."""
        first = self._first(state)
        for slot, at in enumerate(state.nodes):
            if at != DEAD and first in {DEAD, slot}:
                yield from self._steps_of(state, slot)
        if first == DEAD:
            for place, number in enumerate(state.late):
                group = INDEX[self.requests[number].group]
                if (not place or state.late[place - 1] != number) and group != state.silent:
                    yield Step(Kind.LATE, group, place)
            if Kind.SILENCE in self.kinds and state.silent == NONE_SILENT:
                for group in sorted(self._may_fall_silent):
                    yield Step(Kind.SILENCE, group)

    def _steps_of(self, state: State, slot: int) -> Iterator[Step]:
        node = self.machines.nodes[state.nodes[slot]]
        executed = {number for owner, number, _ in state.answers if owner == slot}
        alone = len(node.calls) == 1 and not node.startable and not executed
        if node.startable:
            yield Step(Kind.START, slot)
        for number, request in node.calls:
            if number in executed:
                yield Step(Kind.DELIVER, slot, number)
            elif INDEX[request.group] == state.silent:
                if not self._is_move[slot]:
                    yield Step(Kind.LOSE, slot, number)
            else:
                yield Step(Kind.DO if alone else Kind.EXECUTE, slot, number)
                if state.faults:
                    yield from self._losses(slot, number, request)
        if state.faults and Kind.KILL in self.kinds:
            yield Step(Kind.KILL, slot)
        if state.faults and Kind.CANCEL in self.kinds and node.busy and not self._is_move[slot]:
            yield Step(Kind.CANCEL, slot)

    def take(self, state: State, step: Step) -> Moved:
        """Take a step."""
        simple = {
            Kind.LATE: lambda: self._execute_late(state, step),
            Kind.SILENCE: lambda: Moved(state._replace(silent=step.slot), DEAD, ()),
            Kind.KILL: lambda: self._kill(state, step.slot),
            Kind.START: lambda: self._happen(state, step.slot, Start()),
            Kind.CANCEL: lambda: self._happen(state._replace(faults=state.faults - 1), step.slot, Cancel()),
        }.get(step.kind)
        return simple() if simple else self._take_with_call(state, step)

    def _take_with_call(self, state: State, step: Step) -> Moved:
        request = dict(self.machines.nodes[state.nodes[step.slot]].calls)[step.number]
        group = INDEX[request.group]
        if step.kind is Kind.DELIVER:
            (found,) = (one for one in state.answers if one[:2] == (step.slot, step.number))
            rest = tuple(one for one in state.answers if one is not found)
            data = self._answer_data[found[2]]
            return self._happen(state._replace(answers=rest), step.slot, Answer(step.number, data))
        if step.kind is Kind.LOSE:
            lost = state if group == state.silent else self._lost(state, request)
            return self._happen(lost, step.slot, Fail(step.number))._replace(group=group)
        if step.kind is Kind.AGAIN:
            return Moved(self._lost(state, request), DEAD, (), group=group)
        effect = self.stores.execute(state.contents[group], request)
        after = state._replace(contents=_replaced(state.contents, group, effect.after))
        if step.kind is Kind.DO:
            moved = self._happen(after, step.slot, Answer(step.number, effect.answer))
        else:
            answer = (step.slot, step.number, self._answer(effect.answer))
            moved = Moved(after._replace(answers=tuple(sorted((*after.answers, answer)))), step.slot, ())
        return moved._replace(effect=effect, group=group)

    def end_of(self, contents: tuple[int, ...], birth: Birth) -> tuple[tuple[int, ...], tuple[Result, ...]]:
        """Run one process to its end, without faults: the contents then, and what its last event gave."""
        results: tuple[Result, ...] = ()
        last = contents
        for last, _, results in self.run_alone(contents, birth):  # noqa: B007 - the last ones count
            pass
        return last, results

    def run_alone(self, contents: tuple[int, ...], birth: Birth) -> Iterator[tuple[tuple[int, ...], int, tuple[Result, ...]]]:
        """Run one process to its end, without faults: contents and node after each event, and what its clients got."""
        node = self.machines.born(birth)
        results: tuple[Result, ...] = ()
        while True:
            yield contents, node, results
            found = self.machines.nodes[node]
            if found.startable:
                event: Event = Start()
            elif found.calls:
                number, request = found.calls[0]
                group = INDEX[request.group]
                effect = self.stores.execute(contents[group], request)
                contents = _replaced(contents, group, effect.after)
                event = Answer(number, effect.answer)
            else:
                return
            node, results = self.machines.after(node, event)

    def _first(self, state: State) -> int:
        """A process whose next step commutes with every step of all others, now and later; DEAD if there is none.

        Then the steps of the others need not come first. It has one call, which reads the mark of the format: that never changes.
        Or it is the only rebalance that is left, and calls the metadata Raft group, which no Meta Service changes, and does not
        change the layout.
        """
        moves = [
            slot
            for slot, at in enumerate(state.nodes)
            if at != DEAD and self._is_move[slot] and not self.machines.nodes[at].ended
        ]
        for slot, at in enumerate(state.nodes):
            if at == DEAD:
                continue
            node = self.machines.nodes[at]
            if len(node.calls) == 1 and (node.busy or not node.opened):
                ((_, request),) = node.calls
                group = INDEX[request.group]
                answers = group != state.silent and (state.silent != NONE_SILENT or group not in self._may_fall_silent)
                if answers and (self._is_constant(request) or (moves == [slot] and not state.late and self._is_private(request))):
                    return slot
        return DEAD

    def _is_constant(self, request: Request) -> bool:
        return not request.is_txn and request.data.endswith(KEYS.format)

    def _is_private(self, request: Request) -> bool:
        """Whether only a rebalance can see a difference."""
        found = self._private.get(request)
        if found is None:
            txn = etcd_pb.TxnRequest.FromString(request.data) if request.is_txn else etcd_pb.TxnRequest()
            puts = [op.request_put.key for op in txn.success if op.HasField("request_put")]
            found = self._private[request] = request.group == METADATA and KEYS.layout not in puts and not txn.failure
        return found

    def _losses(self, slot: int, number: int, request: Request) -> Iterator[Step]:
        if Kind.LOSE in self.kinds:
            yield Step(Kind.LOSE, slot, number)
        if Kind.AGAIN in self.kinds and request.resend and self._may_write(request):
            yield Step(Kind.AGAIN, slot, number)

    def _happen(self, state: State, slot: int, event: Event) -> Moved:
        node, results = self.machines.after(state.nodes[slot], event)
        return Moved(state._replace(nodes=_replaced(state.nodes, slot, self.settled(node))), slot, results)

    def settled(self, node: int) -> int:
        """Where a process is at once, from a node: its client's next call has begun; with nothing left to do it counts as dead.

        A call that begins early hides nothing: what it does depends on its process alone, and what it has to see counts from the
        first request of it that is executed.
        """
        found = self.machines.nodes[node]
        if found.at_rest:
            return DEAD
        if found.startable and not found.calls:
            node, results = self.machines.after(node, Start())
            assert not results
        return node

    def _kill(self, state: State, slot: int) -> Moved:
        """What it had sent may still be executed. A Meta Service is started again, and its client repeats its call there."""
        node = self.machines.nodes[state.nodes[slot]]
        executed = {number for owner, number, _ in state.answers if owner == slot}
        state = state._replace(answers=tuple(one for one in state.answers if one[0] != slot), faults=state.faults - 1)
        for number, request in node.calls:
            if number not in executed:
                state = self._late(state, request)
        left = node.left + node.busy
        again = DEAD
        if left and not isinstance(node.birth.program[0], Rebalance):
            again = self.machines.born(node.birth._replace(program=node.birth.program[len(node.birth.program) - left :]))
        return Moved(state._replace(nodes=_replaced(state.nodes, slot, again)), slot, ())

    def _execute_late(self, state: State, step: Step) -> Moved:
        number = state.late[step.number]
        request = self.requests[number]
        group = INDEX[request.group]
        effect = self.stores.execute(state.contents[group], request)
        late = state.late[: step.number] + state.late[step.number + 1 :]
        after = state._replace(contents=_replaced(state.contents, group, effect.after), late=late)
        return Moved(after, DEAD, (), effect, group)

    def _lost(self, state: State, request: Request) -> State:
        return self._late(state._replace(faults=state.faults - 1), request)

    def _late(self, state: State, request: Request) -> State:
        if not self._may_write(request):
            return state
        number = self._requests.setdefault(request, len(self.requests))
        if number == len(self.requests):
            self.requests.append(request)
        return state._replace(late=tuple(sorted((*state.late, number))))

    def _may_write(self, request: Request) -> bool:
        found = self._writes.get(request)
        if found is None:
            found = self._writes[request] = may_write(request)
        return found

    def _answer(self, data: bytes) -> int:
        number = self._answers.setdefault(data, len(self._answer_data))
        if number == len(self._answer_data):
            self._answer_data.append(data)
        return number


def _replaced(numbers: tuple[int, ...], at: int, number: int) -> tuple[int, ...]:
    return (*numbers[:at], number, *numbers[at + 1 :])
