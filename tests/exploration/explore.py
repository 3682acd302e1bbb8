"""The search: breadth first over all states of a scope, each once. So the first violation is found by a shortest trace."""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from adapter.metaservice.etcd import rebalancing
from adapter.metaservice.etcd.sharding import first_layout
from adapter.rpc import etcd_pb
from tests.exploration.contents import Stores
from tests.exploration.process import GROUPS, KEYS, STORE, Birth, DiedError, Operation, Rebalance, Report, Request, Save
from tests.exploration.properties import Properties, ViolationError
from tests.exploration.scope import STORED, Scope, stored_record
from tests.exploration.world import FAULTS, INDEX, NONE_SILENT, Kind, State, Step, World


@dataclass
class Explored:
    """What was covered. `executions`: different ways from the first state to a last one. `cut`: states that were not followed."""

    states: int = 0
    transitions: int = 0
    executions: int = 0
    depth: int = 0
    contents: int = 0
    nodes: int = 0
    finishes: int = 0
    cut: int = 0
    cut_depth: int = 0
    violation: str = ""
    trace: list[Step] = field(default_factory=list)


class Exploration:
    """One scope, at its first state."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        silent = frozenset(INDEX[name] for name in scope.silent)
        kinds = scope.kinds | ({Kind.SILENCE} if silent else set())
        self.world = World(scope.births, frozenset(kinds), silent, Stores(revisions=scope.revisions))
        contents = self._prepared()
        nodes = [self.world.machines.born(birth) for birth in scope.births]
        for slot, birth in enumerate(scope.births):
            if not isinstance(birth.program[0], Rebalance) and not (scope.late_start and slot == len(scope.metas) - 1):
                contents, nodes[slot] = self._opened(contents, birth)
                nodes[slot] = self.world.settled(nodes[slot])
        self.properties = Properties(scope, self.world, contents)
        self.first = State(contents, tuple(nodes), (), (), scope.faults, NONE_SILENT, self.properties.first)

    def next(self, state: State, step: Step) -> State:
        """Take a step and check it. Raises ViolationError."""
        moved = self.world.take(state, step)
        return moved.state._replace(ghost=self.properties.after(state, step, moved))

    def check(self, state: State, steps: list[Step]) -> None:
        """Check a state, given all its steps. Raises ViolationError."""
        if not any(self._by_itself(state, step) for step in steps):
            self.properties.at_rest(state)

    @staticmethod
    def _by_itself(state: State, step: Step) -> bool:
        """Whether a step happens without a fault: so does the end of a call to a Raft group that is silent."""
        if step.kind is Kind.LOSE:
            return state.silent != NONE_SILENT
        return step.kind not in FAULTS and step.kind is not Kind.LATE

    def _prepared(self) -> tuple[int, ...]:
        """The layout before the change, and what is stored; all of it written by a Meta Service, but for the layout."""
        put = etcd_pb.TxnRequest()
        layout = put.success.add().request_put
        layout.key, layout.value = KEYS.layout, first_layout(self.scope.change[0]).encode()
        stores = self.world.stores
        written = stores.execute(stores.empty, Request(GROUPS[0], is_txn=True, data=put.SerializeToString(), resend=True))
        contents = (written.after, *(stores.empty for _ in GROUPS[1:]))
        saved = Save(tuple((key, stored_record()) for key in self.scope.stored if key != STORE))
        program: tuple[Operation, ...] = (saved, *([Report(STORED)] if STORE in self.scope.stored else []))
        return self.world.end_of(contents, Birth("setup", program))[0]

    def _opened(self, contents: tuple[int, ...], birth: Birth) -> tuple[tuple[int, ...], int]:
        """A Meta Service that has been started, before the first call of its client."""
        for after, node, _ in self.world.run_alone(contents, birth):
            if self.world.machines.nodes[node].startable:
                return after, node
        raise AssertionError(birth)


def explore(scope: Scope, *, max_states: int = 0) -> Explored:
    """Visit every state of a scope, or `max_states` of them, until something is violated."""
    with pages(scope.page):
        exploration = Exploration(scope)
        try:
            return _Search(exploration, max_states).run()
        finally:
            exploration.world.machines.close()


@contextmanager
def pages(size: int) -> Iterator[None]:
    """Let a rebalance read pages of this size."""
    before = rebalancing.PAGE
    rebalancing.PAGE = size
    try:
        yield
    finally:
        rebalancing.PAGE = before


class _FoundError(Exception):
    """A property does not hold, on the way to a state and the step after it."""

    def __init__(self, text: str, number: int, last: list[Step]) -> None:
        super().__init__(text)
        self.number = number
        self.last = last


class _Search:
    """A breadth-first search. A state is found by its number, which grows with its depth."""

    def __init__(self, exploration: Exploration, max_states: int) -> None:
        self._exploration = exploration
        self._max_states = max_states
        self._found = Explored()
        self._numbers: dict[State, int] = {}
        self._before = array("q")  # for each state: the state it was found from
        self._step = array("q")  # and the number of the step among the steps of that one
        self._followers = array("q")  # of all states, in their order
        self._ends = array("q")  # for each state: where its followers end
        self._contents: set[tuple[int, ...]] = set()

    def run(self) -> Explored:
        """Search."""
        level = [self._exploration.first]
        self._add(level[0], -1, 0)
        try:
            while level:
                following: list[State] = []
                for state in level:
                    following += self._follow(state)
                level = following
                self._found.depth += bool(level)
        except _FoundError as error:
            self._found.violation = str(error)
            self._found.trace = [*self._way_to(error.number), *error.last]
        else:
            self._found.executions = self._executions()
        self._found.contents = len(self._contents)
        self._found.nodes = len(self._exploration.world.machines.nodes)
        self._found.finishes = self._exploration.properties.finishes
        return self._found

    def _follow(self, state: State) -> list[State]:
        """Take all steps of a state; return the states that are new. Raises _FoundError."""
        number = self._numbers[state]
        steps = self._checked_steps(state, number)
        new: list[State] = []
        if self._max_states and self._found.states >= self._max_states:
            self._found.cut += 1
            self._found.cut_depth = self._found.depth
            steps = []
        for at, step in enumerate(steps):
            try:
                after = self._exploration.next(state, step)
            except (ViolationError, DiedError) as error:
                raise _FoundError(str(error), number, [step]) from error
            self._found.transitions += 1
            known = self._numbers.get(after)
            if known is None:
                known = self._add(after, number, at)
                new.append(after)
            if known != number:
                self._followers.append(known)
        self._ends.append(len(self._followers))
        return new

    def _checked_steps(self, state: State, number: int) -> list[Step]:
        try:
            if state.contents not in self._contents:
                self._contents.add(state.contents)
                self._exploration.properties.can_be_finished(state.contents)
            steps = list(self._exploration.world.steps(state))
            self._exploration.check(state, steps)
        except (ViolationError, DiedError) as error:
            raise _FoundError(str(error), number, []) from error
        return steps

    def _add(self, state: State, before: int, at: int) -> int:
        number = self._numbers[state] = len(self._numbers)
        self._before.append(before)
        self._step.append(at)
        self._found.states += 1
        return number

    def _way_to(self, number: int) -> list[Step]:
        choices = []
        while number > 0:
            choices.append(self._step[number])
            number = self._before[number]
        state, way = self._exploration.first, []
        for choice in reversed(choices):
            step = list(self._exploration.world.steps(state))[choice]
            state = self._exploration.next(state, step)
            way.append(step)
        return way

    def _executions(self) -> int:
        """How many ways there are from the first state to one without a next step. No step leads back: there are no cycles."""
        total = len(self._ends)
        entering = array("q", bytes(8 * total))
        for follower in self._followers:
            entering[follower] += 1
        ways = [0] * total
        ways[0] = 1
        ready, executions, seen = [0], 0, 0
        while ready:
            number = ready.pop()
            seen += 1
            start = self._ends[number - 1] if number else 0
            if start == self._ends[number]:
                executions += ways[number]
            for at in range(start, self._ends[number]):
                follower = self._followers[at]
                ways[follower] += ways[number]
                entering[follower] -= 1
                if not entering[follower]:
                    ready.append(follower)
            ways[number] = 0
        if seen != total:
            raise AssertionError("the states have a cycle")
        return executions
