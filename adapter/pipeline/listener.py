"""OffsetCommitListener: commits how far streaming queries have read, as consumer groups, so that tools for lag see Spark.

Spark keeps the offsets of a query in its checkpoint, where no such tool looks (SPARK-27549). The listener hears of a batch when
its sink has it, so a committed offset may be behind the query, never ahead of it. No query reads what is committed, waits for it,
or fails by it.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias
from uuid import UUID

import structlog
from prometheus_client import Counter
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from adapter.errors import InvalidInputError
from adapter.model.names import check_name
from adapter.model.records import DEFAULT_NAMESPACE
from adapter.pipeline.config import fields_of
from adapter.pipeline.outbox import Commit, Outbox
from adapter.rpc import offsets_pb
from adapter.runtime.clocks import wall_ms
from adapter.runtime.settings.addresses import split_address

if TYPE_CHECKING:
    from adapter.runtime.settings.config import ClientTls

log = structlog.get_logger(__name__)

FLUSH_S = 5.0

UNUSABLE = Counter("offset_listener_unusable_batches", "Batches of streaming queries whose offsets could not be used.")


class Position(NamedTuple):
    """How far a query has processed a partition.

    `offset` is the next one to read, `end` the one that the next message will get (None: unknown).
    """

    topic: str
    partition: int
    offset: int
    end: int | None = None


Positions: TypeAlias = Callable[[SourceProgress], Iterable[Position]]


def kafka_positions(source: SourceProgress) -> list[Position]:
    """The positions of a Kafka source; none for any other.

    Spark's end offset is exclusive: the next offset to read, as that of a commit in Kafka and here.
    """
    if not source.description.startswith("Kafka"):
        return []
    ends = _parsed(source.latestOffset)
    return [
        Position(topic, int(partition), offset, ends.get(topic, {}).get(partition))
        for topic, partitions in _parsed(source.endOffset).items()
        for partition, offset in partitions.items()
    ]


class OffsetCommitListener(StreamingQueryListener):
    """Commits the end offsets of each batch of each query to the adapter at `address` (`host:port` or `unix:path`).

        spark.streams.addListener(OffsetCommitListener("127.0.0.1:9520"))

    `group` names the consumer group of a query, by the fields {query} (its name) and {id} (that of its checkpoint); `shard` names
    a partition, by {topic} and {partition}. `positions` tells the positions of a source. Where several sources of a query read
    one partition, the lowest counts.

    Offsets only increase. With `rewind`, the first offsets of each run of a query, and those that go back within it, are stored
    even if larger ones stand: for queries whose checkpoint was reset.

    When a query ends, its last offsets are waited for, `flush_s` seconds at most. Raises InvalidInputError for an address, names
    and patterns that are not valid, ConfigError for TLS files.
    """

    def __init__(
        self,
        address: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        group: str = "{query}",
        shard: str = "{topic}/{partition}",
        positions: Positions = kafka_positions,
        rewind: bool = False,
        flush_s: float = FLUSH_S,
        tls: "ClientTls | None" = None,
    ) -> None:
        _check_address(address)
        self._group_fields = _checked_fields("group", group, {"query", "id"})
        if _checked_fields("shard", shard, {"topic", "partition"}) != {"topic", "partition"}:
            raise InvalidInputError(
                f"shard = {shard!r}: needs {{topic}} and {{partition}}: else partitions would share an offset"
            )
        self._group = group
        self._shard = shard
        self._positions = positions
        self._rewind = rewind
        self._flush_s = flush_s
        self._runs: dict[UUID, _Run] = {}
        self._outbox = Outbox(address, check_name(namespace, "namespace"), tls)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: a query that starts has processed nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take the end offsets of a batch. Never raises, never waits."""
        progress = event.progress
        run = self._runs.setdefault(progress.runId, _Run())
        try:
            self._take(run, progress)
        except Exception as error:  # noqa: BLE001 - also of the user's function
            UNUSABLE.inc()
            run.tell(error, progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Commit the last offsets again, as Kafka's consumers do: the group of a query without new data must not expire."""
        run = self._runs.get(event.runId)
        if run:
            self._outbox.put_again(run.group, run.reached)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Wait until the last offsets are committed, `flush_s` seconds at most. Other queries go on meanwhile."""
        self._runs.pop(event.runId, None)
        self._outbox.flush(self._flush_s)

    def flush(self, limit_s: float = FLUSH_S) -> bool:
        """Wait up to `limit_s` seconds until all offsets that were taken are committed; returns whether they are."""
        return self._outbox.flush(limit_s)

    def close(self) -> None:
        """Flush, and end the thread that commits. A process that just ends needs no call: the thread ends with it."""
        self._outbox.close(self._flush_s)

    def __enter__(self) -> Self:
        """Return the listener; leaving the context closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the listener."""
        self.close()

    def _take(self, run: "_Run", progress: StreamingQueryProgress) -> None:
        reached = self._reached(progress)
        if not reached:
            return
        run.group = self._group_of(progress)
        commits = {}
        for shard, entry in reached.items():
            before = run.reached.get(shard)
            rewind = self._rewind and (before is None or entry.offset < before.offset)
            commits[run.group, shard] = Commit(entry, rewind=rewind)
        run.reached.update(reached)
        self._outbox.put(commits)

    def _reached(self, progress: StreamingQueryProgress) -> dict[str, offsets_pb.ShardCommit]:
        """Shard -> what to commit. Raises InvalidInputError, and what the user's function and protobuf raise."""
        now_ms = wall_ms()
        reached: dict[str, offsets_pb.ShardCommit] = {}
        for source in progress.sources:
            for topic, partition, offset, end in self._positions(source):
                shard = check_name(self._shard.format(topic=topic, partition=partition), "the shard")
                if shard not in reached or offset < reached[shard].offset:
                    reached[shard] = offsets_pb.ShardCommit(
                        shard=shard,
                        offset=offset,
                        committed_at_ms=now_ms,
                        topic=topic,
                        partition=partition,
                        high_watermark=end,
                    )
        return reached

    def _group_of(self, progress: StreamingQueryProgress) -> str:
        if progress.name is None and "query" in self._group_fields:
            raise InvalidInputError("the query has no name: give it one by queryName(), or the listener a group without {query}")
        return check_name(self._group.format(query=progress.name, id=progress.id), "the group")


@dataclass
class _Run:
    """One run of a query, from its start to its end."""

    group: str = ""
    reached: dict[str, offsets_pb.ShardCommit] = field(default_factory=dict)
    told: set[type[Exception]] = field(default_factory=set)

    def tell(self, error: Exception, progress: StreamingQueryProgress) -> None:
        """Log why a batch cannot be used: the first error of each type in a run."""
        if type(error) not in self.told:
            self.told.add(type(error))
            problem = f"{type(error).__name__}: {error}"
            log.warning("listener.unusable_batch", query=progress.name, batch=progress.batchId, problem=problem)


def _parsed(offset: str) -> dict[str, dict[str, int]]:
    """Kafka's topic -> partition -> offset. Spark has null or None for an offset that it does not know."""
    return {} if offset in {"null", "None"} else json.loads(offset)


def _check_address(address: str) -> None:
    if address.startswith("unix:"):
        return
    try:
        split_address(address)
    except ValueError as error:
        raise InvalidInputError(f"address = {error}, and not unix:path either") from error


def _checked_fields(name: str, pattern: str, known: set[str]) -> set[str]:
    """The fields of a pattern. Raises InvalidInputError for any that are not `known`."""
    try:
        fields = set(fields_of(pattern))
    except ValueError as error:
        raise InvalidInputError(f"{name} = {pattern!r}: {error}") from error
    if not fields <= known:
        listed = ", ".join(f"{{{one}}}" for one in sorted(known))
        raise InvalidInputError(f"{name} = {pattern!r}: its fields may be {listed}")
    return fields
