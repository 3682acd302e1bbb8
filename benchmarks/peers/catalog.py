"""The peers by key, and the loads."""

from dataclasses import dataclass

from benchmarks.load import GROUPS
from benchmarks.peers.adapter import Adapter, MetaService
from benchmarks.peers.etcd import Etcd
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.nats import Nats
from benchmarks.peers.peer import Factory
from benchmarks.peers.postgres import Postgres
from benchmarks.peers.rabbitmq import RabbitStreams
from benchmarks.peers.redis import Redis
from benchmarks.scale import Scale

# For each durability, the first of our peers is compared to the others.
PEERS: dict[str, Factory] = {
    "adapter-interval": lambda: Adapter("interval"),
    "adapter-never": lambda: Adapter("never"),
    "redis-everysec": lambda: Redis("everysec"),
    "postgres-off": lambda: Postgres("off"),
    "nats": Nats,
    "kafka": Kafka,
    "rabbitmq": lambda: RabbitStreams(confirmed=True),
    "adapter-always": lambda: Adapter("always"),
    "meta": MetaService,
    "redis-always": lambda: Redis("always"),
    "postgres-on": lambda: Postgres("on"),
    "etcd": Etcd,
    "rabbitmq-unanswered": lambda: RabbitStreams(confirmed=False),
}


@dataclass(frozen=True)
class Shape:
    """A load: consumers, each of which waits for the answer before its next commit."""

    name: str  # also part of group names
    title: str  # in tables and bars
    consumers: int
    batch: int = 1  # offsets of one commit
    coalesced: bool = False  # waiting commits share the next call


SHAPES = (
    Shape("lone", "1 consumer, one offset each commit, 1 in flight", 1),
    Shape("64", "64 consumers, one offset each, by the client library as it is", 64),
    Shape("1000", "1,000 consumers, one offset each, by the client library as it is", 1_000),
    Shape("together", "1,000 consumers, one offset each, coalesced for every client", 1_000, coalesced=True),
    *(Shape(f"batch-{batch}", f"{GROUPS} consumers, {batch:,} offsets each commit", GROUPS, batch) for batch in (16, 128, 1_024)),
)
SHORT_SHAPES = ("64", "together", "batch-128")


def shapes(scale: Scale) -> list[Shape]:
    """The loads of a run."""
    return [shape for shape in SHAPES if not scale.short or shape.name in SHORT_SHAPES]
