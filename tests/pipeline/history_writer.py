"""`python -m tests.pipeline.history_writer OUTPUT NOTED`: appends to the history as the lag job does.

The URL of the tables comes on the standard input. Each complete batch of the output is appended, from the one after that in the
file NOTED on, where Spark's checkpoint would have it. Before each the number is printed.
"""

import sys
from pathlib import Path

from adapter.pipeline.config import HistorySection
from adapter.pipeline.lag.files import LagFiles
from adapter.pipeline.lag.history import History
from adapter.pipeline.places import Place

STREAM = "stream"


def main(output: str, noted: Path, tables: str) -> None:
    """Append what is left."""
    files = LagFiles(Place.of(output))
    history = History(files, HistorySection(delta=Place.of(tables)))
    newest = int(noted.read_text()) if noted.exists() else -1
    for batch in files.complete():
        if batch > newest:
            sys.stdout.write(f"{batch}\n")
            sys.stdout.flush()
            history.add(files.info(batch), STREAM)
            noted.with_suffix(".new").write_text(str(batch))
            noted.with_suffix(".new").rename(noted)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.stdin.readline().strip())
