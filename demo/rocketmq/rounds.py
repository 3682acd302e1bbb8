"""One kill and what it cost: acknowledged commits that are lost, messages that are handled again, and messages that never are.

A round has a topic and two groups of its own. A client commits offsets of the first, each acknowledged by the broker; a push
consumer handles the messages of the second. After a random time the processes of the round's kind are killed, everything is
started again, and a new consumer handles the rest.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from adapter.testing.waiting import PATIENCE_S
from demo.rocketmq.lab import Lab, LabError, noted

MESSAGES = 40_000
COMMITS_PER_S = 1_000
HANDLE_MS = 1.5
LIFE_S = (6.0, 12.0)  # a broker writes its offsets every five seconds
SETTLE_S = 0.4  # of a consumer, which may handle more than it should


class Kind(Enum):
    """What is killed or lost. The consumer is killed with the broker, since one that survives goes on by itself."""

    BROKER = "broker"
    SIDECAR = "sidecar"
    BOTH = "broker and sidecar"
    FILE = "broker, its offset file lost"
    DISK = "broker and sidecar, offset file and local store lost"
    MOVED = "broker moved to an empty disk"

    @property
    def broker_dies(self) -> bool:
        """True when the broker is killed."""
        return self is not Kind.SIDECAR


@dataclass(frozen=True)
class Cost:
    """What one kill cost. `lost`: acknowledged commits; `again`, `never`: messages; `met_s`: as in `Lab`."""

    kind: Kind
    acknowledged: int
    lost: int
    handled: int
    again: int
    never: int
    met_s: float


def play(lab: Lab, kinds: list[Kind], chance: random.Random, messages: int = MESSAGES) -> Iterator[Cost]:
    """One round for each kind, in order. The broker may run or not."""
    for number, kind in enumerate(kinds):
        yield _round(lab, f"T{number}", kind, chance.uniform(*LIFE_S), messages)


def _round(lab: Lab, topic: str, kind: Kind, life_s: float, messages: int) -> Cost:
    if lab.broker is None:
        lab.start_broker()
    lab.ask("send", topic, messages)
    committed, handled = lab.directory / f"{topic}.committed", lab.directory / f"{topic}.handled"
    lab.start_consumer(f"consumer-{topic}", topic, handled, HANDLE_MS)
    until(lambda: len(noted(handled)) > messages // 200, f"the consumer of {topic} handles messages")
    lab.ask("commit", f"commits-{topic}", topic, COMMITS_PER_S, committed)
    time.sleep(life_s)
    before = _kill(lab, kind, handled)
    acknowledged = dict(noted(committed))
    if kind is Kind.MOVED:
        return _moved(lab, kind, topic, acknowledged, len(before), messages)
    _start(lab, kind)
    found = lab.query(f"commits-{topic}", topic)
    lost = sum(max(offset - found.get(queue, 0), 0) for queue, offset in acknowledged.items())
    if kind.broker_dies:
        lab.start_consumer(f"consumer-{topic}", topic, handled, 0.0)
    until(lambda: len(set(noted(handled))) >= messages, f"all messages of {topic} are handled", give_up=True)
    time.sleep(SETTLE_S)
    lab.kill_consumer()
    after = noted(handled)
    again, never = len(after) - len(set(after)), messages - len(set(after))
    return Cost(kind, sum(acknowledged.values()), lost, len(before), again, never, lab.met_s)


def _kill(lab: Lab, kind: Kind, handled: Path) -> list[tuple[int, int]]:
    """Kill what the kind names; returns what was handled until then."""
    if kind is not Kind.BROKER and kind is not Kind.FILE:
        lab.kill_adapter()
    if kind.broker_dies:
        lab.kill_broker()
        lab.kill_consumer()
    lab.ask("halt")
    if kind in {Kind.FILE, Kind.DISK}:
        lab.lose_offsets()
    if kind in {Kind.DISK, Kind.MOVED}:
        lab.lose_adapter_store()
    return noted(handled)


def _start(lab: Lab, kind: Kind) -> None:
    if kind is not Kind.BROKER and kind is not Kind.FILE:
        lab.start_adapter()
    if lab.broker is None:
        lab.start_broker()


def _moved(lab: Lab, kind: Kind, topic: str, acknowledged: dict[int, int], handled: int, messages: int) -> Cost:
    """The log is gone with the disk: offsets of it must not be given to a new one, which would skip its messages."""
    lab.store = f"store-{topic}"
    _start(lab, kind)
    fresh = messages // 10
    lab.ask("send", topic, fresh)
    file = lab.directory / f"{topic}.moved"
    lab.start_consumer(f"consumer-{topic}", topic, file, 0.0)
    until(lambda: len(set(noted(file))) >= fresh, f"all messages of the new {topic} are handled", give_up=True)
    time.sleep(SETTLE_S)
    lab.kill_consumer()
    after = noted(file)
    return Cost(kind, sum(acknowledged.values()), 0, handled, len(after) - len(set(after)), fresh - len(set(after)), lab.met_s)


def until(condition: object, what: str, *, give_up: bool = False) -> None:
    """Wait for a client. Raises LabError after a minute without it, unless the caller counts what is missing."""
    assert callable(condition)
    deadline = time.monotonic() + 2 * PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            if give_up:
                return
            raise LabError(f"still not so after {2 * PATIENCE_S:g} s: {what}")
        time.sleep(0.1)
