"""Appends to the history as the lag job does, in a process that `test_lag_history_kill.py` starts and kills."""

from multiprocessing.connection import Connection
from pathlib import Path

from adapter.pipeline.config import HistorySection
from adapter.pipeline.lag.files import LagFiles
from adapter.pipeline.lag.history import History
from adapter.pipeline.places import Place

STREAM = "stream"


def append(output: str, noted: Path, tables: str, begun: Connection) -> None:
    """Append each complete batch of the output from the one after that in the file `noted` on, where Spark's checkpoint has it.

    `tables` is the URL of the history. The number of each batch is sent to `begun` before it is appended.
    """
    files = LagFiles(Place.of(output))
    history = History(files, HistorySection(delta=Place.of(tables)))
    newest = int(noted.read_text()) if noted.exists() else -1
    for batch in files.complete():
        if batch > newest:
            begun.send(batch)
            history.add(files.info(batch), STREAM)
            noted.with_suffix(".new").write_text(str(batch))
            noted.with_suffix(".new").rename(noted)
