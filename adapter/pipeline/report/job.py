"""The job `report`: writes a page and plots of the lag tables into a directory.

Each file exists as a whole or not at all, the page is written last, so that the plots which it shows exist.
"""

from pyspark.sql import SparkSession

from adapter.errors import ConfigError
from adapter.pipeline.config import JobConfig
from adapter.pipeline.jobs import DONE, Switches
from adapter.pipeline.places import Place, unusable
from adapter.pipeline.report.content import Report, gather
from adapter.pipeline.report.page import render
from adapter.pipeline.report.plots import lag_plot, lag_seconds_plot, rewinds_plot
from adapter.runtime.clocks import wall_ms
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
        page = write(report, section.tables, section.output, wall_ms())
    switches.tell(f"report: {page}")
    return DONE


def write(report: Report, tables: Place, output: Place, made_ms: int) -> Place:
    """Write the page and its plots, and remove plots of an earlier page that it does not show; returns the page's place."""
    drawn = {name: png for name, draw in PICTURES.items() if (png := draw(report)) is not None}
    page = render(report, drawn, str(tables), made_ms)
    try:
        for name, png in drawn.items():
            (output / name).write(png)
        (output / PAGE).write(page.encode())
        for name in PICTURES.keys() - drawn.keys():
            (output / name).delete()
    except OSError as error:
        raise unusable(output, "[report] output", error) from error
    return output / PAGE
