"""The errors that the adapter raises on purpose.

A transient error may disappear when the same call is made again; a permanent one will not. Foreign exceptions are translated into
these once, at the boundary where they enter: gRPC in `adapter.meta`, `adapter.client` and `metaservice.etcd.errors`, RocksDB in
`runtime.durable.rocks`. The gRPC servers map them to status codes in `runtime.serving.statuses`.
"""

from collections.abc import Sequence


class AdapterError(Exception):
    """The base class. The message is written for the person who has to act on it.

    `attempted`: the changes that a reset, delete or clone had planned when it failed half way, for the audit log; empty
    otherwise.
    """

    attempted: Sequence[object] = ()

    def note_attempted(self, changes: Sequence[object]) -> None:
        """Keep, for the audit log, the changes that had been set out to do when this error ended them."""
        self.attempted = changes


class TransientError(AdapterError):
    """A later attempt may succeed.

    `retry_after_s`: seconds that the server asked us to wait; 0 if it did not ask.
    """

    def __init__(self, text: str = "", *, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class PermanentError(AdapterError):
    """The same request cannot succeed later."""


class MetaUnavailableError(TransientError):
    """The Meta Service did not answer in time, answered only in part, or is overloaded.

    It is unknown whether it applied the request.
    """


class TimedOutError(MetaUnavailableError):
    """The Meta Service did not answer within the deadline. A smaller request may be answered."""


class OverloadedError(TransientError):
    """Too many requests are in progress in this process. Nothing of the request was done."""


class BrokerLogError(TransientError):
    """The broker's log is not configured, did not answer in time, or gave an answer that cannot be right."""


class NotReadyError(TransientError):
    """The process is recovering, degraded or stopping, and cannot serve this request now."""


class DiskFullError(TransientError):
    """The local store has no space. Nothing of the request was stored."""


class StorageFailedError(TransientError):
    """A write or a sync of the local store failed permanently. The store has to be opened again."""


class ContendedError(TransientError):
    """Concurrent writes to the same keys kept this operation from finishing."""


class InvalidInputError(PermanentError):
    """A request breaks a rule. The message names the field and the entry."""


class TooLargeError(PermanentError):
    """The reply would exceed the size limit. The message says how to request less at a time."""


class FencedError(PermanentError):
    """A commit of a generation that a later rebalance has ended. Kafka's ILLEGAL_GENERATION."""


class UnknownBoundsError(PermanentError):
    """A reset needs the bounds of a shard's log, and neither the broker nor a commit has reported them."""


class UnknownGroupError(PermanentError):
    """Nothing is kept here of the group that is asked for."""


class SwitchedOffError(PermanentError):
    """The settings of this process leave out what is asked for. The message names the setting."""


class AccessDeniedError(PermanentError):
    """The method may not be called on this address."""


class UnauthenticatedError(PermanentError):
    """The caller sent no token, or a wrong one."""


class RefusedError(PermanentError):
    """The Meta Service refused an entry (INVALID or CONFLICT) or the whole request. Nothing of it was applied."""


class UnknownCallError(RefusedError):
    """The server does not implement this call."""


class ConfigError(PermanentError):
    """The configuration cannot be used. The message names file, section and key."""


class StoreLockedError(PermanentError):
    """Another process has the store open."""


class StoreDamagedError(PermanentError):
    """Opening the store would silently lose acknowledged data."""


class StoreVersionError(PermanentError):
    """A store was written by a later version of this program. Nothing was changed."""


class ListenError(PermanentError):
    """The process cannot listen on an address."""


def leaves(group: BaseExceptionGroup[AdapterError]) -> list[AdapterError]:
    """Flatten the nested exception groups that task groups raise, in order."""
    found: list[AdapterError] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
