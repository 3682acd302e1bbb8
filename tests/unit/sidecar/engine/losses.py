"""Local stores of which something is missing, and what a recovery makes of them."""

from pathlib import Path

from adapter.model.records import OffsetKey, OffsetRecord
from adapter.runtime.watermark import Watermark
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.recovery import RecoveryReport
from adapter.sidecar.storage.store import LocalStore
from tests.unit.helpers import crash

Records = dict[OffsetKey, OffsetRecord]


def left_behind(directory: Path, records: Records, flushed: int = 0) -> None:
    """The store of a process that was killed with these records."""
    store = LocalStore.open(directory / "adapter", "interval")
    store.write(records)
    store.advance_flushed(flushed)
    store.write({})
    crash(store)


def lost(directory: Path, writes: int) -> None:
    """Let the store look as if acknowledged writes were missing."""
    mark = Watermark.open(directory / "adapter" / "watermark")
    mark.advance(mark.value + writes)
    mark.close()


def counts(report: RecoveryReport) -> tuple[int, int, int, int, int]:
    """Compared, pushed, adopted, equal, failed."""
    return report.compared, report.pushed, report.adopted, report.equal, report.failed


def local(core: Core) -> Records:
    """What stands here."""
    return {stored.key: stored.record for stored in core.store.scan()}
