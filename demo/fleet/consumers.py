"""The consumers of the fleet: where a group stands in one shard, and where it stands after some time.

Nothing here is random: the same seconds give the same offsets.
"""

from dataclasses import dataclass

from adapter.model.records import OffsetKey
from demo.fleet.logs import PacedLog
from demo.fleet.scenario import BACKLOG_S, Group, Way

CATCH_UP = 5.0  # times the rate of new messages, behind the end of the log
REWIND_EVERY_S = 6.0
REWIND_BY_S = 6.8  # of messages
SPEED = {Way.LAGS: 0.6, Way.CATCHES_UP: 1.6, Way.REWINDS: 1.2, Way.BEHIND: 0.02}


@dataclass(frozen=True)
class Commit:
    """An offset to commit. `back`: it is lower than the one before on purpose."""

    offset: int
    back: bool = False


class Consumer:
    """A group's consumer of one shard. `ill_after_s`: seconds after which it stalls or stops, if that is its way."""

    def __init__(self, group: Group, key: OffsetKey, partition: int, log: PacedLog, ill_after_s: float) -> None:
        self.group = group
        self.key = key
        self.partition = partition
        self.log = log
        # Of a group with one ill shard, all others keep up.
        alone = group.way is Way.ONE_STALLS
        self.way = (Way.STALLS if partition == 1 else Way.STEADY) if alone else group.way
        self.stalled = False
        self._ill_after_s = ill_after_s
        self._age_s = 0.0
        self._rewound_s = 0.0
        self._position = float(self._first())

    @property
    def topic(self) -> str:
        """The topic of its shard."""
        return self.key.shard.rpartition("/")[0]

    @property
    def offset(self) -> int:
        """The next offset to read."""
        return int(self._position)

    def moved(self, offset: int | None) -> None:
        """Go on at another offset, which the store has; None: there is none, so begin at the end of the log."""
        self._position = float(self.log.high if offset is None else offset)
        self._rewound_s = 0.0

    def consume(self, seconds: float) -> Commit | None:
        """Read for so many seconds. None if there is nothing to commit: it has stopped."""
        self._age_s += seconds
        ill = self._age_s > self._ill_after_s
        if ill and self.way is Way.STOPS:
            return None
        back = self.way is Way.REWINDS and self._rewinds(seconds)
        if not (self.stalled or (ill and self.way is Way.STALLS)):
            self._read(seconds)
        return Commit(self.offset, back)

    def _first(self) -> float:
        log = self.log
        if self.way is Way.CATCHES_UP:
            return max(log.low, log.high - log.rate * BACKLOG_S)
        if self.way is Way.BEHIND:
            return log.low
        return log.high

    def _rewinds(self, seconds: float) -> bool:
        self._rewound_s += seconds
        if self._rewound_s < REWIND_EVERY_S:
            return False
        self._rewound_s = 0.0
        before = self.offset
        self._position = max(self.log.low, self._position - self.log.rate * REWIND_BY_S)
        return self.offset < before

    def _read(self, seconds: float) -> None:
        speed = SPEED.get(self.way, CATCH_UP)
        self._position = min(self._position + max(speed * self.log.rate, 1.0) * seconds, max(self.log.high, self._position))
