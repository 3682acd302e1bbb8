"""The topics and consumer groups of the fleet: names and rates of a shop, and groups that do all that a group can do wrong.

A topic has partitions; each is a shard (`topic/partition`) of one broker, so that most groups have shards on several adapters.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

RETENTION_S = 600.0
BACKLOG_S = 300.0  # how far behind a group begins that has to catch up


class Way(Enum):
    """The way in which a group consumes."""

    STEADY = "keeps up"
    LAGS = "reads 0.6 of what is written: its lag grows"
    CATCHES_UP = "began minutes behind, and reads faster than is written"
    STALLS = "commits the same offset again and again"
    ONE_STALLS = "keeps up, but for one shard, which commits the same offset again and again"
    STOPS = "commits no more"
    REWINDS = "goes back every few seconds, as a consumer that crashes on a message does"
    RESET = "keeps up; an operator sets it back by a minute"
    BEHIND = "is so slow that retention removes messages before it has read them"


@dataclass(frozen=True)
class Topic:
    """A topic: its name, its partitions, messages per second over all of them, and for how long they are kept."""

    name: str
    partitions: int
    rate: float
    retention_s: float = RETENTION_S

    @property
    def shards(self) -> Sequence[str]:
        """The names of its shards, by partition."""
        return [f"{self.name}/{partition}" for partition in range(self.partitions)]


@dataclass(frozen=True)
class Group:
    """A consumer group: the topics that it reads, how, and the seconds between two commits."""

    name: str
    topics: Sequence[str]
    way: Way = Way.STEADY
    commit_s: float = 1.0
    namespace: str = "default"

    @property
    def key(self) -> tuple[str, str]:
        """Its namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True)
class Scenario:
    """What runs on the fleet. The seconds after which stalls and stops begin are counted from the start of the load."""

    topics: Mapping[str, Topic]
    groups: Sequence[Group]
    ill_after_s: float = 15.0
    reset_after_s: float = 25.0

    def of(self, way: Way) -> Iterator[Group]:
        """The groups that consume in this way."""
        return (group for group in self.groups if group.way is way)


TOPICS = (
    Topic("orders.created", 12, 180.0),
    Topic("orders.paid", 12, 120.0),
    Topic("orders.shipped", 6, 60.0),
    Topic("orders.returned", 3, 2.0),
    Topic("payments.authorized", 6, 90.0),
    Topic("payments.settled", 3, 20.0),
    Topic("inventory.changes", 12, 240.0),
    Topic("catalog.updates", 3, 8.0),
    Topic("clickstream.web", 12, 900.0),
    Topic("clickstream.mobile", 6, 600.0),
    Topic("search.queries", 6, 300.0),
    Topic("telemetry.devices", 12, 1_200.0, retention_s=30.0),
    Topic("email.outbound", 3, 15.0),
    Topic("sms.outbound", 3, 4.0),
    Topic("shipping.labels", 3, 12.0),
    Topic("invoices.issued", 3, 3.0),
    Topic("audit.events", 6, 40.0),
    # Quiet: a message now and then, or none at all.
    Topic("fraud.alerts", 3, 0.1),
    Topic("refunds.requested", 2, 0.05),
    Topic("config.changes", 1, 0.0),
)

GROUPS = (
    Group("order-service", ["orders.created"]),
    Group("order-projection", ["orders.created", "orders.paid", "orders.shipped"]),
    Group("order-history", ["orders.created", "orders.paid", "orders.shipped", "orders.returned"], commit_s=5.0),
    Group("order-confirmation-mailer", ["orders.created"]),
    Group("warehouse-picker", ["orders.paid"]),
    Group("warehouse-forecast", ["orders.paid", "inventory.changes"], commit_s=5.0),
    Group("returns-desk", ["orders.returned"]),
    Group("shipping-labels", ["orders.shipped"]),
    Group("carrier-tracking", ["orders.shipped", "shipping.labels"]),
    Group("label-printer", ["shipping.labels"]),
    Group("payment-service", ["payments.authorized"]),
    Group("payment-ledger", ["payments.authorized", "payments.settled"], Way.ONE_STALLS),
    Group("payment-reconciliation", ["payments.settled"], Way.STALLS),
    Group("fraud-scoring", ["payments.authorized", "orders.created"]),
    Group("fraud-case-desk", ["fraud.alerts"]),
    Group("refund-service", ["refunds.requested"]),
    Group("invoice-archive", ["invoices.issued"]),
    Group("invoice-mailer", ["invoices.issued"]),
    Group("tax-export", ["invoices.issued", "payments.settled"], Way.STOPS),
    Group("inventory-service", ["inventory.changes"]),
    Group("inventory-cache", ["inventory.changes"]),
    Group("price-watch", ["catalog.updates"]),
    Group("catalog-search-index", ["catalog.updates", "inventory.changes"], Way.RESET),
    Group("storefront-cache", ["catalog.updates"]),
    Group("recommendations", ["clickstream.web", "clickstream.mobile"], Way.LAGS),
    Group("sessionizer", ["clickstream.web", "clickstream.mobile"]),
    Group("ab-testing", ["clickstream.web"]),
    Group("clickstream-lake", ["clickstream.web", "clickstream.mobile"], commit_s=5.0),
    Group("mobile-push", ["clickstream.mobile"], Way.CATCHES_UP),
    Group("search-analytics", ["search.queries"]),
    Group("search-suggestions", ["search.queries"], Way.REWINDS),
    Group("device-health", ["telemetry.devices"]),
    Group("device-archive", ["telemetry.devices"], Way.BEHIND),
    Group("device-firmware", ["telemetry.devices"]),
    Group("email-sender", ["email.outbound"]),
    Group("email-archive", ["email.outbound"], commit_s=5.0),
    Group("sms-gateway", ["sms.outbound"]),
    Group("audit-trail", ["audit.events"]),
    Group("audit-siem", ["audit.events", "config.changes"]),
    Group("config-reloader", ["config.changes"]),
    Group("order-service", ["orders.created"], namespace="staging"),
    Group("payment-service", ["payments.authorized"], namespace="staging"),
)

SHOP = Scenario({topic.name: topic for topic in TOPICS}, GROUPS)
