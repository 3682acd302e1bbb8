"""What a consumer or a broker imports: `from adapter.client import OffsetClient`. What is named here is public, all else is not.

Importing it loads no RocksDB and no settings; what few need (`ClientTls`, RocketMQ's offset stores) is loaded when it is named.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from adapter.client.ack_window import AckWindow
from adapter.client.blocking import BlockingOffsetClient
from adapter.client.client import OffsetClient
from adapter.model.queues import MessageQueue
from adapter.model.records import CommitMode, Member, ReadMode

if TYPE_CHECKING:
    from adapter.client.offset_store.local_file import LocalFileOffsetStore
    from adapter.client.offset_store.rebalance import Rebalance
    from adapter.client.offset_store.remote import RemoteOffsetStore
    from adapter.client.offset_store.start import ConsumeFromWhere, QueueBounds, StartPositions, consume_timestamp_ms
    from adapter.client.offset_store.store import OffsetStore, OffsetStoreError, ReadOffsetType
    from adapter.runtime.config import ClientTls

_LATER = {
    "ClientTls": "adapter.runtime.config",
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
    "ConsumeFromWhere",
    "LocalFileOffsetStore",
    "Member",
    "MessageQueue",
    "OffsetClient",
    "OffsetStore",
    "OffsetStoreError",
    "QueueBounds",
    "ReadMode",
    "ReadOffsetType",
    "Rebalance",
    "RemoteOffsetStore",
    "StartPositions",
    "consume_timestamp_ms",
]


def __getattr__(name: str) -> object:
    """Load what is not needed by everybody."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
