"""The public API for consumers and brokers: `from adapter.client import OffsetClient`. Only the names in `__all__` are public.

Importing the package loads no RocksDB and no settings. `ClientTls`, `AckWindow`, `BlockingOffsetClient` and RocketMQ's offset
stores are loaded when they are accessed.

Modules: `client` (OffsetClient, for asyncio), `blocking` (BlockingOffsetClient, for threads), `batching` and `pending`
(concurrent commits share requests), `superseded` (which superseded shards of a commit are an error), `progress` (Progress: an
offset with bounds, metadata and labels), `ack_window` (AckWindow: the committable offset while messages finish out of order),
`offset_store` (RocketMQ's OffsetStore), `broker_log` (the bounds of a broker's log; also used by the adapter itself).
"""

from importlib import import_module
from typing import TYPE_CHECKING

from adapter.client.client import OffsetClient
from adapter.client.pending import Committed
from adapter.client.progress import Progress
from adapter.client.superseded import SupersededError
from adapter.model.queues import MessageQueue
from adapter.model.records import CommitMode, Member, ReadMode

if TYPE_CHECKING:
    from adapter.client.ack_window import AckWindow
    from adapter.client.blocking import BlockingOffsetClient
    from adapter.client.offset_store.local_file import LocalFileOffsetStore
    from adapter.client.offset_store.rebalance import Rebalance
    from adapter.client.offset_store.remote import RemoteOffsetStore
    from adapter.client.offset_store.start import ConsumeFromWhere, QueueBounds, StartPositions, consume_timestamp_ms
    from adapter.client.offset_store.store import OffsetStore, OffsetStoreError, ReadOffsetType
    from adapter.runtime.settings.config import ClientTls

_LAZY = {
    "AckWindow": "adapter.client.ack_window",
    "BlockingOffsetClient": "adapter.client.blocking",
    "ClientTls": "adapter.runtime.settings.config",
    "ConsumeFromWhere": "adapter.client.offset_store.start",
    "LocalFileOffsetStore": "adapter.client.offset_store.local_file",
    "OffsetStore": "adapter.client.offset_store.store",
    "OffsetStoreError": "adapter.client.offset_store.store",
    "QueueBounds": "adapter.client.offset_store.start",
    "ReadOffsetType": "adapter.client.offset_store.store",
    "Rebalance": "adapter.client.offset_store.rebalance",
    "RemoteOffsetStore": "adapter.client.offset_store.remote",
    "StartPositions": "adapter.client.offset_store.start",
    "consume_timestamp_ms": "adapter.client.offset_store.start",
}

__all__ = [
    "AckWindow",
    "BlockingOffsetClient",
    "ClientTls",
    "CommitMode",
    "Committed",
    "ConsumeFromWhere",
    "LocalFileOffsetStore",
    "Member",
    "MessageQueue",
    "OffsetClient",
    "OffsetStore",
    "OffsetStoreError",
    "Progress",
    "QueueBounds",
    "ReadMode",
    "ReadOffsetType",
    "Rebalance",
    "RemoteOffsetStore",
    "StartPositions",
    "SupersededError",
    "consume_timestamp_ms",
]


def __getattr__(name: str) -> object:
    """Import a public name that is loaded on first access. Raises AttributeError for any other name."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
