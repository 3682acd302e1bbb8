"""Traces for a person: each step as a line, and the choices that lead there, by which it is replayed."""

from collections.abc import Iterator, Sequence

from adapter.metaservice.etcd.keys import decode_value
from adapter.rpc import etcd_pb
from tests.exploration.explore import Exploration, pages
from tests.exploration.process import GROUPS, KEYS, DiedError, Request
from tests.exploration.properties import ViolationError
from tests.exploration.scope import NAMES, WHERE, Scope, told, value_of
from tests.exploration.world import DEAD, Kind, State, Step


def choices(scope: Scope, trace: Sequence[Step]) -> list[int]:
    """The number of each step among those that were possible."""
    with pages(scope.page):
        exploration = Exploration(scope)
        state, found = exploration.first, []
        for step in trace:
            found.append(list(exploration.world.steps(state)).index(step))
            try:
                state = exploration.next(state, step)
            except (ViolationError, DiedError):
                break
        exploration.world.machines.close()
    return found


def lines(scope: Scope, numbers: Sequence[int]) -> Iterator[str]:
    """Replay the steps of these numbers, and tell what happens."""
    with pages(scope.page):
        exploration = Exploration(scope)
        state = exploration.first
        for number in numbers:
            steps = list(exploration.world.steps(state))
            if number >= len(steps):
                yield "there is no such step: was the code changed?"
                return
            yield _step(exploration, state, steps[number])
            try:
                after = exploration.next(state, steps[number])
            except (ViolationError, DiedError) as error:
                yield f"VIOLATED: {error}"
                return
            yield from _results(exploration, state, steps[number])
            state = after
        try:
            exploration.properties.can_be_finished(state.contents)
            exploration.check(state, list(exploration.world.steps(state)))
        except (ViolationError, DiedError) as error:
            yield f"VIOLATED: {error}"
        exploration.world.machines.close()


def _step(exploration: Exploration, state: State, step: Step) -> str:
    world = exploration.world
    if step.kind is Kind.SILENCE:
        return f"{GROUPS[step.slot]} {step.kind.value}"
    if step.kind is Kind.LATE:
        return f"{_told(world.requests[state.late[step.number]])} {step.kind.value}"
    node = world.machines.nodes[state.nodes[step.slot]]
    if step.kind in {Kind.KILL, Kind.CANCEL, Kind.START}:
        return f"{node.birth.name} {step.kind.value}"
    request = dict(node.calls)[step.number]
    refused = ""
    if step.kind in {Kind.DO, Kind.EXECUTE}:
        effect = world.stores.execute(state.contents[GROUPS.index(request.group)], request)
        refused = "" if effect.succeeded else " (its condition does not hold)"
    return f"{node.birth.name}: {_told(request)} {step.kind.value}{refused}"


def _results(exploration: Exploration, state: State, step: Step) -> Iterator[str]:
    for result in exploration.world.take(state, step).results:
        name = exploration.scope.births[step.slot].name
        answers = [f"{NAMES[key]}={record.offset if record else 'nothing'}" for key, record in result.stands.items()]
        failed = [f"{NAMES[key]} refused" for key in result.failed]
        yield f"  {name} has done: {told(result.operation)} -> {', '.join([*answers, *failed]) or result.error or 'done'}"


def _told(request: Request) -> str:
    if not request.is_txn:
        asked = etcd_pb.RangeRequest.FromString(request.data)
        return f"{request.group}[read {_key(asked.key)}{' ...' if asked.range_end else ''}]"
    txn = etcd_pb.TxnRequest.FromString(request.data)
    return f"{request.group}[{_txn(txn)}]"


def _txn(txn: etcd_pb.TxnRequest) -> str:
    conditions = [f"{_key(compare.key)} {_SIGNS[compare.result]} {_value(compare.key, compare)}" for compare in txn.compare]
    done = "; ".join(filter(None, map(_op, txn.success))) or "nothing"
    other = "; ".join(filter(None, map(_op, txn.failure)))
    text = f"if {' and '.join(conditions)}: {done}" if conditions else done
    return f"{text}, else {other}" if other else text


_SIGNS = {
    etcd_pb.Compare.EQUAL: "=",
    etcd_pb.Compare.GREATER: ">",
    etcd_pb.Compare.LESS: "<",
    etcd_pb.Compare.NOT_EQUAL: "is not",
}


def _op(op: etcd_pb.RequestOp) -> str:
    if op.HasField("request_txn"):
        return f"({_txn(op.request_txn)})"
    if op.HasField("request_put"):
        if op.request_put.key.startswith(KEYS.writers):
            return ""
        return f"put {_key(op.request_put.key)}={_stored(op.request_put.key, op.request_put.value)}"
    if op.HasField("request_range"):
        return f"read {_key(op.request_range.key)}{' ...' if op.request_range.range_end else ''}"
    return f"delete {_key(op.request_delete_range.key)}{' ...' if op.request_delete_range.range_end else ''}"


def _key(key: bytes) -> str:
    if key in WHERE:
        return NAMES[WHERE[key]]
    inside = next((f"{NAMES[name]}+" for where, name in WHERE.items() if key == where + b"\0"), "")
    return inside or key.removeprefix(b"offsets/").decode(errors="replace").replace("\0", "+")


def _value(key: bytes, compare: etcd_pb.Compare) -> str:
    if compare.target == etcd_pb.Compare.VALUE:
        return _stored(key, compare.value)
    return f"version {compare.version}" if compare.target == etcd_pb.Compare.VERSION else f"revision {compare.mod_revision}"


def _stored(key: bytes, value: bytes) -> str:
    if key in WHERE:
        record = decode_value(value_of(WHERE[key], value))
        return f"{record.offset}{'' if record.live else ' (tombstone)'}"
    if key == KEYS.layout:
        return f"v{value.partition(b':')[2].partition(b',')[0].decode()}"
    if key == KEYS.fence:
        digits = value[2:22].lstrip(b"0").decode(errors="replace")
        return f"v{digits}" if digits else value[:2].decode(errors="replace")
    return repr(value[:20])


assert DEAD < 0
