"""Everything that the adapter raises on purpose.

Transient errors may go away when the same thing is tried again; permanent ones will not.
Foreign exceptions are translated into these once, where they enter (gRPC: `meta_client`, RocksDB: `store`, `rocksdb_engine`).
"""

from collections.abc import Sequence


class AdapterError(Exception):
    """Base of all of them. Its text is written for the person who has to act on it.

    `attempted`: the `Change`s that a reset, delete or clone had set out to do when it failed half way; for the audit log.
    """

    attempted: Sequence[object] = ()

    def note_attempted(self, changes: Sequence[object]) -> None:
        """Keep, for the audit log, the changes that had been set out to do when this error ended them."""
        self.attempted = changes


class TransientError(AdapterError):
    """Trying again later may help: not before `retry_after_s` seconds, where whoever refused said so; 0 where not."""

    def __init__(self, text: str = "", *, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class PermanentError(AdapterError):
    """Trying the same again cannot help."""


class MetaUnavailableError(TransientError):
    """The Meta Service did not answer, not in time, or not for all of it, or is overloaded. What it applied is unknown."""


class TimedOutError(MetaUnavailableError):
    """The same because of the time alone: asked for less, the Meta Service may answer."""


class OverloadedError(TransientError):
    """Too much is under way in this process. Nothing of the request was done."""


class BrokerLogError(TransientError):
    """The broker's log did not answer, not in time, or not in a way that can be trusted; or there is none."""


class NotReadyError(TransientError):
    """The adapter is recovering, degraded or stopping; what was asked for is not available now."""


class DiskFullError(TransientError):
    """The local store has no space. Nothing of the request was stored."""


class StorageFailedError(TransientError):
    """A write or a sync of the local store failed for good; it has to be opened again."""


class ContendedError(TransientError):
    """Commits kept coming in for keys that were to be removed."""


class InvalidInputError(PermanentError):
    """A request breaks a rule; the text names the field and the entry."""


class TooLargeError(PermanentError):
    """The answer would be larger than one may be; the text says how to ask for less at a time."""


class FencedError(PermanentError):
    """A commit of a generation that a rebalance has ended. Kafka's ILLEGAL_GENERATION."""


class UnknownBoundsError(PermanentError):
    """A reset needs the bounds of a shard, and nobody told them."""


class AccessDeniedError(PermanentError):
    """What was asked for is not open on this address."""


class UnauthenticatedError(PermanentError):
    """The caller does not show who it is, or shows a wrong token."""


class RefusedError(PermanentError):
    """The Meta Service refused an entry (INVALID or CONFLICT) or a whole request."""


class UnknownCallError(RefusedError):
    """The server does not have this call."""


class ConfigError(PermanentError):
    """The configuration cannot be used; the text names file, section and key."""


class StoreLockedError(PermanentError):
    """Another process has the store open."""


class StoreDamagedError(PermanentError):
    """The store cannot be opened without losing data silently."""


class ListenError(PermanentError):
    """An address cannot be listened on."""


def leaves(group: BaseExceptionGroup[AdapterError]) -> list[AdapterError]:
    """The errors in a group of groups, which task groups nest."""
    found: list[AdapterError] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
