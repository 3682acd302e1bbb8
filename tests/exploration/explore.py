"""The search: breadth first over all states of a scope, each once. So the first violation is found by a shortest trace."""

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from adapter.metaservice.etcd import rebalancing
from adapter.metaservice.etcd.sharding import first_layout
from adapter.rpc import etcd_pb
from tests.exploration.contents import KEYS, Stores
from tests.exploration.process import GROUPS, Birth, DiedError, Rebalance, Request, Save
from tests.exploration.properties import Properties, ViolationError
from tests.exploration.scope import Scope, stored_record
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
        if all(step.kind in FAULTS and not (step.kind is Kind.LOSE and state.silent >= 0) or step.kind is Kind.LATE for step in steps):
            self.properties.at_rest(state)

    def _prepared(self) -> tuple[int, ...]:
        """The layout before the change, and what is stored; all of it written by a Meta Service, but for the layout."""
        put = etcd_pb.TxnRequest()
        layout = put.success.add().request_put
        layout.key, layout.value = KEYS.layout, first_layout(self.scope.change[0]).encode()
        stores = self.world.stores
        written = stores.execute(stores.empty, Request(GROUPS[0], is_txn=True, data=put.SerializeToString(), resend=True))
        contents = (written.after, *(stores.empty for _ in GROUPS[1:]))
        program = (Save(tuple((key, stored_record()) for key in self.scope.stored)),)
        for contents, _, _ in self.world.run_alone(contents, Birth("setup", program)):
            pass
        return contents

    def _opened(self, contents: tuple[int, ...], birth: Birth) -> tuple[tuple[int, ...], int]:
        """A Meta Service that has been started, before the first call of its client."""
        for after, node, _ in self.world.run_alone(contents, birth):
            if self.world.machines.nodes[node].startable:
                return after, node
        raise AssertionError(birth)


def explore(scope: Scope, *, max_states: int = 0, told: Callable[[Explored], None] = lambda _: None) -> Explored:
    """Visit every state of a scope, or `max_states` of them, until something is violated."""
    with pages(scope.page):
        exploration = Exploration(scope)
        try:
            return _Search(exploration, max_states, told).run()
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


_TELL_EVERY = 1_000


class _Search:
    """A breadth-first search. A state is found by its number, which grows with its depth."""

    def __init__(self, exploration: Exploration, max_states: int, told: Callable[[Explored], None]) -> None:
        self._exploration = exploration
        self._max_states = max_states
        self._told = told
        self._found = Explored()
        self._numbers: dict[State, int] = {}
        self._before = array("q")  # for each state: the state it was found from
        self._step = array("q")  # and the number of the step among the steps of that one
        self._followers = array("q")  # of all states, in their order
        self._ends = array("q")  # for each state: where its followers end
        self._contents: set[tuple[int, ...]] = set()

    def run(self) -> Explored:
        exploration, found = self._exploration, self._found
        level, depth = [exploration.first], 0
        self._add(exploration.first, -1, 0)
        while level:
            following: list[State] = []
            for state in level:
                number = self._numbers[state]
                try:
                    if state.contents not in self._contents:
                        self._contents.add(state.contents)
                        exploration.properties.can_be_finished(state.contents)
                    steps = list(exploration.world.steps(state))
                    exploration.check(state, steps)
                except ViolationError as error:
                    return self._violated(str(error), number, [])
                if self._max_states and found.states >= self._max_states:
                    found.cut += 1
                    found.cut_depth = depth
                    self._ends.append(len(self._followers))
                    continue
                for at, step in enumerate(steps):
                    try:
                        after = exploration.next(state, step)
                    except (ViolationError, DiedError) as error:
                        return self._violated(str(error), number, [step])
                    found.transitions += 1
                    known = self._numbers.get(after)
                    if known is None:
                        known = self._add(after, number, at)
                        following.append(after)
                    if known != number:
                        self._followers.append(known)
                self._ends.append(len(self._followers))
                if number % _TELL_EVERY == 0:
                    self._told(found)
            level = following
            if level:
                depth += 1
                found.depth = depth
        self._count()
        found.executions = self._executions()
        return found

    def _add(self, state: State, before: int, at: int) -> int:
        number = self._numbers[state] = len(self._numbers)
        self._before.append(before)
        self._step.append(at)
        self._found.states += 1
        return number

    def _violated(self, text: str, number: int, last: list[Step]) -> Explored:
        self._found.violation = text
        self._found.trace = [*self._way_to(number), *last]
        self._count()
        return self._found

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

    def _count(self) -> None:
        self._found.contents = len(self._contents)
        self._found.nodes = len(self._exploration.world.machines.nodes)
        self._found.finishes = self._exploration.properties.finishes

    def _executions(self) -> int:
        """How many ways there are from the first state to one without a next step. Each step makes something smaller: no cycles."""
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
