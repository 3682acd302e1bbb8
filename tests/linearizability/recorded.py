"""The form of a recorded history: a JSON object for each operation, one a line, written when it has ended."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

from adapter.model.records import OffsetKey
from adapter.testing.history import Carrying, History, Position, Reading, Value, Write


@dataclass(frozen=True)
class Operation:
    """A write of one key, a read of some keys or of all (None), or a copy of everything from the first place to the second.

    Times are seconds. `ended`: None without an answer. `values`: that a write may store; its answer may have `told` which one, or
    which larger one is `standing`. `found`: what a read showed; every other key that it asked for was absent.
    """

    what: Literal["write", "read", "carry"]
    began: float
    ended: float | None
    places: tuple[str, ...]
    keys: tuple[OffsetKey, ...] | None = None
    values: tuple[Value, ...] = ()
    told: Value | None = None
    standing: Value | None = None
    found: Mapping[OffsetKey, Value] = field(default_factory=dict)

    def concerns(self, key: OffsetKey) -> bool:
        """Whether it says anything about a key."""
        return self.keys is None or key in self.keys


@contextmanager
def recording(path: Path) -> Iterator[History]:
    """An empty history, whose operations also go into a file; those without an answer at the end."""
    with path.open("w", encoding="utf-8") as file:
        recorded = _Recorded(file)
        yield recorded
        recorded.close()


class _Recorded(History):
    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file
        self._open: dict[int, Write | Reading | Carrying] = {}

    def record(self, at: float, event: Write | Reading | Carrying, *, ended: bool) -> None:
        """Note that an event began or got its reply."""
        super().record(at, event, ended=ended)
        if ended:
            del self._open[id(event)]
            self._file.write(line(_operation(event, at)))
        else:
            self._open[id(event)] = event

    def close(self) -> None:
        """Add what had no answer."""
        for event in self._open.values():
            self._file.write(line(_operation(event, None)))


def line(operation: Operation) -> str:
    """An operation as a line."""
    values: dict[str, Any] = {name: value for name, value in vars(operation).items() if value is not None}
    values["ended"] = operation.ended
    values["found"] = list(operation.found.items())
    return json.dumps(values, separators=(",", ":")) + "\n"


def operations(path: Path) -> Iterator[Operation]:
    """Those of a file. Raises ValueError, KeyError or TypeError if it has another form."""
    with path.open(encoding="utf-8") as lines:
        yield from (_parsed(json.loads(each)) for each in lines)


def history(recorded: Iterable[Operation]) -> History:
    """The same for our own checker."""
    replayed = History()
    for each in recorded:
        match each.what:
            case "carry":
                event: Write | Reading | Carrying = replayed.carrying(*each.places, at=each.began)
            case "read":
                event = replayed.reading(*each.places, keys=each.keys, at=each.began)
            case "write":
                assert each.keys is not None
                event = replayed.begin(each.keys[0], *each.values, places=each.places, at=each.began)
        if each.ended is not None:
            _end(event, each, each.ended)
    return replayed


def _end(event: Write | Reading | Carrying, operation: Operation, at: float) -> None:
    match event:
        case Carrying():
            event.done(at=at)
        case Reading():
            event.found(operation.found, at=at)
        case Write() if operation.standing:
            event.superseded(operation.standing, at=at)
        case Write():
            event.acknowledged(operation.told, at=at)


def _operation(event: Write | Reading | Carrying, ended: float | None) -> Operation:
    match event:
        case Carrying():
            return Operation("carry", event.began, ended, (event.source, event.target))
        case Reading():
            keys = None if event.keys is None else tuple(event.keys)
            found = {key: _value(position) for key, position in event.seen.items()}
            return Operation("read", event.began, ended, tuple(event.places), keys, found=found)
        case Write():
            values = tuple(event.values)
            return Operation("write", event.began, ended, tuple(event.places), (event.key,), values, event.told, event.standing)


def _parsed(values: dict[str, Any]) -> Operation:
    keys, told, standing = values.get("keys"), values.get("told"), values.get("standing")
    return Operation(
        values["what"],
        values["began"],
        values["ended"],
        tuple(values["places"]),
        None if keys is None else tuple(OffsetKey(*key) for key in keys),
        tuple(_value(value) for value in values["values"]),
        _value(told) if told else None,
        _value(standing) if standing else None,
        {OffsetKey(*key): _value(value) for key, value in values["found"]},
    )


def _value(position: Position | Sequence[Any]) -> Value:
    epoch, offset, *live = position
    return epoch, offset, live[0] if live else True
