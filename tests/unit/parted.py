"""A Meta Service of which a part does not answer, for the tests of flushes and other saves."""

from collections.abc import Sequence

from adapter.model.records import GroupKey, SaveEntry, SaveOutcome, Status
from adapter.sidecar.engine.core import Core
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import commit_of, key, send

UP, GONE = key("s", "up"), key("s", "gone")
BOTH = (UP, GONE)
GONE_GROUP = GroupKey("default", "gone")
WHY = "raft-2 does not answer"


class PartedMeta(FakeMeta):
    """A Meta Service in several parts by group: groups in `gone` get no reply, although their saves may be applied."""

    def __init__(self, *gone: str, applies: bool = False) -> None:
        super().__init__()
        self.gone = set(gone)
        self.applies = applies

    def apply(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Apply each entry in its own part."""
        outcomes = []
        for entry in entries:
            away = entry.key.group in self.gone
            outcome = super().apply([entry])[0] if not away or self.applies else None
            outcomes.append(SaveOutcome(Status.UNAVAILABLE, None, WHY) if away or not outcome else outcome)
        return outcomes


async def commit_both(core: Core, offset: int) -> None:
    """Commit the same offset to a group of each part."""
    await send(core, commit_of(dict.fromkeys(BOTH, offset)))
