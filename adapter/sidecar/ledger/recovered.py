"""Whether all local keys were compared with the Meta Service: one answer, which everybody asks and nobody copies."""


class Recovered:
    """`once`: they were, since the store was opened. Before, the Meta Service may hold more of any key.

    `now`: they were, since the Meta Service last lost something. Before, keys may be dirty that are not known as such, and
    nothing counts as flushed.
    """

    def __init__(self) -> None:
        self.once = self.now = False

    def finish(self) -> None:
        """Note that all keys are compared."""
        self.once = self.now = True

    def begin_again(self) -> None:
        """Note that all keys have to be compared once more."""
        self.now = False
