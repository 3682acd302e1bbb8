"""Which local keys were compared with the Meta Service: one answer, which everybody asks and nobody copies."""

import anyio

from adapter.model.codec import encode_key, group_prefix
from adapter.model.records import GroupKey, OffsetKey


class Recovered:
    """`once`: all keys were compared since the store was opened. Before, the Meta Service may hold more of any that was not.

    `now`: they were, since the Meta Service last lost something. Before, keys may be dirty that are not known as such, and
    nothing counts as flushed. `degraded`: it did not answer at the start, so nothing but reads of the store waits for it.
    `settled`: all keys were compared, or that was not waited for.
    """

    def __init__(self) -> None:
        self.once = self.now = self.degraded = False
        self.settled = anyio.Event()
        self._up_to = b""

    def has(self, group: GroupKey) -> bool:
        """True if the recovery has compared all keys of a group since the last loss: it goes through them in their order."""
        if self.now:
            return True
        prefix = group_prefix(group)
        return self._up_to > prefix and not self._up_to.startswith(prefix)

    def advance(self, key: OffsetKey) -> None:
        """Note that the recovery has compared all keys up to this one."""
        self._up_to = encode_key(key)

    def finish(self) -> None:
        """Note that all keys are compared."""
        self.once = self.now = True
        self.settled.set()

    def degrade(self) -> None:
        """Note that the Meta Service does not answer."""
        self.degraded = True
        self.settled.set()

    def begin_again(self) -> None:
        """Note that all keys have to be compared once more."""
        self.now, self._up_to = False, b""
