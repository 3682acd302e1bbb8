"""Which journal a sidecar has. Arrow and Parquet are only loaded for one that writes."""

from adapter.errors import ConfigError
from adapter.runtime.clocks import REAL, Clocks
from adapter.runtime.version import install_extra
from adapter.sidecar.config import JournalSection
from adapter.sidecar.journal.journal import NO_JOURNAL, Journal, WrittenJournal
from adapter.sidecar.journal.notes import Counts


def journal_of(broker: str, section: JournalSection, clocks: Clocks = REAL) -> Journal:
    """The journal that the configuration asks for. Raises ConfigError when its extra is not installed."""
    root = section.path
    if root is None:
        return NO_JOURNAL
    try:
        # Here: a sidecar without a journal does without pyarrow.
        from adapter.sidecar.journal.segments import SegmentFiles  # noqa: PLC0415
        from adapter.sidecar.journal.writer import SegmentWriter, warm_up  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"journal.path is set, but {error.name} is not installed: {install_extra('journal')}") from error
    warm_up()
    counts = Counts(str(root))
    files = SegmentFiles(root, broker, section, counts, clocks.now_ms())
    return WrittenJournal(counts, lambda notes: SegmentWriter(section, notes, files, clocks), clocks.now_ms)
