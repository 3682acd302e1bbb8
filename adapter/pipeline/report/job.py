"""The job `report`: writes a page and plots of the lag tables into a directory.

Each file is written under a temporary name and renamed, the page last, so that the plots which it shows exist.
"""

from pathlib import Path

from pyspark.sql import SparkSession

from adapter.errors import ConfigError
from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import DONE, Switches
from adapter.pipeline.report.content import Report, gather
from adapter.pipeline.report.page import render
from adapter.pipeline.report.plots import lag_plot, lag_seconds_plot, rewinds_plot
from adapter.runtime.clocks import wall_ms
from adapter.runtime.files import write as write_file
from adapter.runtime.wording import counted

PAGE = "index.html"
PICTURES = {"lag.png": lag_plot, "lag-seconds.png": lag_seconds_plot, "rewinds.png": rewinds_plot}


def run(spark: SparkSession, config: JobConfig, switches: Switches) -> int:
    """Write the report; returns 0. Raises ConfigError if the tables are missing, or the directory cannot be written."""
    section = config.report
    if not section.tables.is_directory():
        raise ConfigError(
            f"[report] tables = '{section.tables}': is no directory; it is `output` of [lag], run the job `lag` first"
        )
    with switches.step(f"reading the tables in {section.tables}"):
        report = gather(spark, section.tables.path, section.worst)
    if switches.dry_run:
        switches.tell(f"{counted(report.groups, 'group')}, {counted(report.shards, 'shard')}; nothing was written")
        return DONE
    with switches.step("drawing"):
        page = write(report, section.tables.path, section.output.path, wall_ms())
    switches.tell(f"report: {page.resolve()}")
    return DONE


def write(report: Report, tables: Path, output: Path, made_ms: int) -> Path:
    """Write the page and its plots, and remove plots of an earlier page that it does not show; returns the page's path."""
    drawn = {name: png for name, draw in PICTURES.items() if (png := draw(report)) is not None}
    page = render(report, drawn, tables, made_ms)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"[report] output = '{output}': cannot be made: {error.strerror}") from error
    for name, png in drawn.items():
        write_file(str(output / name), png)
    write_file(str(output / PAGE), page.encode())
    for name in PICTURES.keys() - drawn.keys():
        (output / name).unlink(missing_ok=True)
    return output / PAGE
