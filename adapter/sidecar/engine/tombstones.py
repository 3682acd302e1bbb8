"""Which local tombstones are past: so old that nothing depends on them, and that the Meta Service may have forgotten its own.

One that outlived the Meta Service's would hide what was committed since. So an adapter forgets them: in each sweep (`expiry`), at
its start (`recovery`), and, since neither may have run for long on a machine that was suspended, when a load finds less there.
"""

from collections.abc import Callable

from adapter.meta.client import MetaClient
from adapter.model.records import OffsetRecord, is_old_tombstone, meet
from adapter.sidecar.ledger.rules import Holds

# Longer than a commit or a load is in flight, and shorter than any retention of the Meta Service.
TOMBSTONE_MS = 600_000


class Tombstones:
    """Tells a tombstone that is past from one that still counts."""

    def __init__(self, meta: MetaClient, holds: Holds, now_ms: Callable[[], int]) -> None:
        self._meta = meta
        self._holds = holds
        self._now_ms = now_ms

    def is_past(self, record: OffsetRecord) -> bool:
        """True for a tombstone that is older than TOMBSTONE_MS, and than a hold lasts. None is, while the clock may be wrong."""
        age_ms = max(TOMBSTONE_MS, self._holds.hold_ms)
        old = is_old_tombstone(record, self._now_ms() - age_ms)
        return old and self._meta.kind.keeps(record) and not self._meta.server_reports.skew.off

    def outlived(self, here: OffsetRecord, there: OffsetRecord | None) -> bool:
        """True for a local tombstone that is past, and of which the Meta Service holds less, or nothing (None)."""
        return self.is_past(here) and (there is None or meet(here, there) != there)
