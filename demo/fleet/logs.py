"""The logs of one broker: ends that grow at a rate, beginnings that retention moves. Serves `offsets.v1.BrokerLog`.

Of the messages only their number and time are kept, a mark for each turn of the producer, so that the memory is bounded by the
retention whatever the rate.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from adapter.model.bounds import ShardKey
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.serving.statuses import Context

MARK_MS = 1_000  # between two marks of the past that a log begins with
TRIM_AT = 256  # marks that retention has passed and that are still kept


class PacedLog:
    """The log of one shard. Times are Unix time in milliseconds, `rate` is in messages per second."""

    def __init__(self, rate: float, retention_s: float, now_ms: int, high: int) -> None:
        """Begin with a past of `retention_s` seconds at this rate, and with its end at `high`."""
        self.rate = rate
        self._retention_ms = int(retention_s * 1_000)
        self._end = float(high)
        past = range(now_ms - self._retention_ms, now_ms + 1, MARK_MS)
        # The messages from ends[i-1] to ends[i] are of the time times[i].
        self._times = list(past)
        self._ends = [max(int(high - rate * (now_ms - at_ms) / 1_000), 0) for at_ms in past]
        self.low = self._ends[0]

    def __len__(self) -> int:
        """The number of marks that are kept."""
        return len(self._times)

    @property
    def high(self) -> int:
        """The offset of the next message."""
        return int(self._end)

    def produce(self, seconds: float, now_ms: int) -> None:
        """Write what comes in so many seconds, as of now, and let retention remove what is too old."""
        self._end += self.rate * seconds
        self._times.append(now_ms)
        self._ends.append(self.high)
        kept = bisect_left(self._times, now_ms - self._retention_ms)
        self.low = max(self.low, self._ends[kept - 1] if kept else 0)
        if kept > TRIM_AT:
            del self._times[: kept - 1], self._ends[: kept - 1]

    def first_since(self, time_ms: int) -> int | None:
        """The offset of the first message of this time or later; None if all are older."""
        at = bisect_left(self._times, time_ms)
        before = self._ends[at - 1] if at else 0
        return max(before, self.low) if before < self.high else None


class BrokerLogs(offsets_grpc.BrokerLogServicer):
    """The logs of all shards of one broker."""

    def __init__(self) -> None:
        self._logs: dict[ShardKey, PacedLog] = {}

    def add(self, shard: ShardKey, log: PacedLog) -> None:
        """Serve a shard."""
        self._logs[shard] = log

    def __getitem__(self, shard: ShardKey) -> PacedLog:
        """The log of a shard. Raises KeyError."""
        return self._logs[shard]

    def __iter__(self) -> Iterator[PacedLog]:
        """All logs."""
        return iter(self._logs.values())

    def __len__(self) -> int:
        """The number of shards."""
        return len(self._logs)

    async def GetBounds(  # noqa: D102 - documented in the proto
        self,
        request: offsets_pb.GetBoundsRequest,
        context: Context,  # noqa: ARG002 - of the interface
    ) -> offsets_pb.GetBoundsReply:
        reply = offsets_pb.GetBoundsReply()
        for name, log in self._known(request.namespace, request.shards):
            reply.bounds.add(shard=name, low=log.low, high=log.high)
        return reply

    async def GetOffsetsForTime(  # noqa: D102
        self,
        request: offsets_pb.GetOffsetsForTimeRequest,
        context: Context,  # noqa: ARG002 - of the interface
    ) -> offsets_pb.GetOffsetsForTimeReply:
        reply = offsets_pb.GetOffsetsForTimeReply()
        for name, log in self._known(request.namespace, request.shards):
            reply.found.add(shard=name, offset=log.first_since(request.timestamp_ms))
        return reply

    def _known(self, namespace: str, names: Iterable[str]) -> Sequence[tuple[str, PacedLog]]:
        found = ((name, self._logs.get(ShardKey(namespace, name))) for name in names)
        return [(name, log) for name, log in found if log is not None]
