"""What processes do, recorded: a node is where a process is, an edge the event that leads it to the next one.

Each edge is found once, by running the production code, and looked up ever after. A node is the whole history of events since the
process was born; but a Meta Service between two calls of its client is what it keeps of them: the layout, and what it has copied.
"""

from collections import OrderedDict
from typing import NamedTuple

from tests.exploration.process import Birth, Event, Fail, Process, Request, Result

_LIVE = 2_000  # processes that are kept running, to go on without a replay


class Node(NamedTuple):
    """Where a process is. `before` and `event` led here first."""

    birth: Birth
    before: int
    event: Event | None
    calls: tuple[tuple[int, Request], ...]
    left: int  # operations that have not begun
    startable: bool
    busy: bool
    ended: bool
    opened: bool
    made: int  # calls, so far

    @property
    def at_rest(self) -> bool:
        """Whether nothing more happens to it by itself."""
        return not self.calls and not self.left and not self.busy


class Machines:
    """All nodes so far."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.runs = 0  # events that were given to running processes
        self._births: dict[Birth, int] = {}
        self._between: dict[object, int] = {}
        self._edges: dict[tuple[int, Event], tuple[int, tuple[Result, ...]]] = {}
        self._live: OrderedDict[int, Process] = OrderedDict()

    def born(self, birth: Birth) -> int:
        """The node of a process that has just started."""
        node = self._births.get(birth)
        if node is None:
            process = Process(birth)
            node = self._births[birth] = self._add(process, -1, None)
        return node

    def after(self, node: int, event: Event) -> tuple[int, tuple[Result, ...]]:
        """Where a process is after an event, and what its clients got by it."""
        found = self._edges.get((node, event))
        if found is None:
            process = self._live.pop(node, None) or self._replayed(node)
            process.results.clear()
            process.feed(event)
            self.runs += 1
            if isinstance(event, Fail) and not process.results and _calls(process) == _requests(self.nodes[node]):
                # It makes the same call again: it stands where it stood.
                found = node, ()
                process.close()
            else:
                found = self._add(process, node, event), tuple(process.results)
            self._edges[node, event] = found
        return found

    def close(self) -> None:
        """Kill all processes."""
        while self._live:
            self._live.popitem()[1].close()

    def _add(self, process: Process, before: int, event: Event | None) -> int:
        calls = tuple((number, request) for number, (request, _) in sorted(process.calls.items()))
        node = Node(
            process.birth,
            before,
            event,
            calls,
            process.left,
            process.startable,
            process.busy,
            process.ended,
            process.opened,
            process.made,
        )
        number = len(self.nodes)
        key = _between_calls(process)
        if key is not None:
            number = self._between.setdefault(key, number)
        if number == len(self.nodes):
            self.nodes.append(node)
        else:
            process.count_on(self.nodes[number].made)
        self._keep(number, process)
        return number

    def _keep(self, number: int, process: Process) -> None:
        if number in self._live:
            process.close()
            return
        self._live[number] = process
        while len(self._live) > _LIVE:
            self._live.popitem(last=False)[1].close()

    def _replayed(self, node: int) -> Process:
        """A process that has gone the same way. Raises AssertionError if the production code is not deterministic."""
        way = []
        at = node
        while at >= 0:
            way.append(at)
            at = self.nodes[at].before
        process = Process(self.nodes[node].birth)
        for at in reversed(way[:-1]):
            event = self.nodes[at].event
            assert event is not None
            process.feed(event)
            self.runs += 1
        calls = tuple((number, request) for number, (request, _) in sorted(process.calls.items()))
        assert calls == self.nodes[node].calls, "a process went another way on the same events"
        return process


def _calls(process: Process) -> list[Request]:
    return [request for request, _ in process.calls.values()]


def _requests(node: Node) -> list[Request]:
    return [request for _, request in node.calls]


def _between_calls(process: Process) -> object:
    """What a process keeps of what was before: a Meta Service between two calls, a rebalance between two steps. Else None."""
    if process.begins is not None:
        return process.birth, process.begins, tuple(_calls(process))
    engine = process.engine
    if engine is None or not process.opened or process.busy or process.calls or process.ended:
        return None
    layout, migration = engine.fences.layout, engine._migration
    copied = frozenset(migration._copied) if migration._layout is layout and layout.moving_from else frozenset()
    widths = tuple((end, width.value, width._step) for end, width in engine._widths._known.items())
    return process.birth.name, process.birth.program[len(process.birth.program) - process.left :], layout, copied, widths
