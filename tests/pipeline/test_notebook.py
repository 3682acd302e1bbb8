"""The notebook of the examples, executed on a small journal."""

from datetime import timedelta
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode, read

from tests.pipeline.jvm import SHORT_LIVED
from tests.pipeline.segments import START, journal_table, write_segment

pytestmark = pytest.mark.release  # what its cells call is in test_source_*.py
ROOT = Path(__file__).parents[2]
MINUTES = 30
STOPS_AT = 15


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half an hour of a log that grows by 60 messages a minute, and of three groups that read it, each in its way."""
    path = tmp_path_factory.mktemp("journal")
    rows = []
    for minute in range(MINUTES):
        head = 60 * minute
        offsets = {"keeps-up": head, "slow": head // 2} | ({"stops": head} if minute <= STOPS_AT else {})
        at = START + timedelta(minutes=minute)
        rows += [
            {"at": at, "committed_at": at, "group": name, "offset": offset, "high_watermark": head, "watermark_at": at}
            for name, offset in offsets.items()
        ]
    write_segment(path, journal_table(rows))
    return path


@pytest.fixture(scope="module")
def executed(journal: Path, tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    """The notebook with the output of its cells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOURNAL", str(journal))
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        patch.setenv("JDK_JAVA_OPTIONS", SHORT_LIVED)
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        notebook: NotebookNode = read(ROOT / "examples" / "lag.ipynb", as_version=4)  # type: ignore[no-untyped-call]
        directory = tmp_path_factory.mktemp("notebook")
        patch.setenv("TMPDIR", str(directory))
        NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(directory)}}).execute()
    return notebook


def outputs(notebook: NotebookNode, begins: str) -> list[NotebookNode]:
    """What the cell with this text in it has shown."""
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and begins in cell.source]
    return [output for output in cell.outputs if "data" in output]


def test_the_lag_of_each_group_is_plotted(executed: NotebookNode) -> None:
    """As a picture."""
    (picture,) = [output for output in outputs(executed, "lag.plot") if "image/png" in output.data]
    assert picture.data["image/png"].startswith("iVBORw0KGgo")


def test_the_job_judges_the_groups(executed: NotebookNode) -> None:
    """The one that stopped has the lag of what was written since."""
    *_, table = outputs(executed, "lag_views")  # after what the job tells
    rows = [line.split()[2:5] for line in table.data["text/plain"].splitlines()[1:]]
    assert rows[0] == ["slow", "WARN", str(60 * (MINUTES - 1) - 60 * (MINUTES - 1) // 2)]
    assert rows[1] == ["stops", "STOP", str(60 * (MINUTES - 1 - STOPS_AT))]
    assert rows[2] == ["keeps-up", "OK", "0"]


def test_the_notebook_is_stored_without_output() -> None:
    """So that a change of it can be read."""
    cells = read(ROOT / "examples" / "lag.ipynb", as_version=4).cells  # type: ignore[no-untyped-call]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code")
