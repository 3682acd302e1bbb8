"""Local stores that have lost acknowledged writes, and the result of their recovery."""

from pathlib import Path

from adapter.model.records import OffsetKey, OffsetRecord
from adapter.runtime.durable.watermark import Watermark
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.recovery import RecoveryReport
from adapter.sidecar.ledger.store import LocalStore
from tests.unit.helpers import crash

Records = dict[OffsetKey, OffsetRecord]


def left_behind(directory: Path, records: Records, flushed: int = 0) -> None:
    """The store of a killed process with these records."""
    store = LocalStore.open(directory / "adapter", "interval")
    store.write(records)
    store.advance_flushed(flushed)
    store.write({})
    crash(store)


def lost(directory: Path, writes: int) -> None:
    """Make the store look as if acknowledged writes were missing."""
    mark = Watermark.open(directory / "adapter" / "watermark")
    mark.advance(mark.value + writes)
    mark.close()


def counts(report: RecoveryReport) -> tuple[int, int, int, int, int]:
    """The numbers of compared, pushed, adopted, equal and failed keys."""
    return report.compared, report.pushed, report.adopted, report.equal, report.failed


def local(core: Core) -> Records:
    """The records in the local store."""
    return {stored.key: stored.record for stored in core.ledger.store.scan()}
