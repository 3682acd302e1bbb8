"""The job `report`: writes a page of the lag tables. It needs no Spark.

The page exists as a whole or not at all: a browser that has it open sees a complete one at any time.
"""

from adapter.errors import ConfigError
from adapter.pipeline.config import JobConfig, ReportSection
from adapter.pipeline.jobs import DONE, JobError, Switches
from adapter.pipeline.lag.files import LagFiles
from adapter.pipeline.places import Place, unusable
from adapter.pipeline.report.content import Report, gather
from adapter.pipeline.report.page import render
from adapter.runtime.clocks import wall_ms
from adapter.runtime.wording import counted

PAGE = "index.html"


def run(config: JobConfig, switches: Switches) -> int:
    """Write the report; returns 0.

    Raises ConfigError if the tables are missing, or the directory cannot be written, AdapterError if a table is damaged, JobError
    if one cannot be read.
    """
    section = config.report
    try:
        report = _read(section, switches)
    except OSError as error:
        raise _unreadable(section.tables, error) from error
    if switches.dry_run:
        switches.tell(f"{counted(report.groups, 'group')}, {counted(report.shards, 'shard')}; nothing was written")
        return DONE
    page = write(report, section.tables, section.output, section.console)
    switches.tell(f"report: {page}")
    return DONE


def _read(section: ReportSection, switches: Switches) -> Report:
    if not section.tables.is_directory():
        raise ConfigError(
            f"[report] tables = '{section.tables}': is no directory; it is `output` of [lag], run the job `lag` first"
        )
    with switches.step(f"reading the tables in {section.tables}"):
        return gather(LagFiles(section.tables), section.hours, section.worst)


def _unreadable(tables: Place, error: OSError) -> JobError:
    reason = f"{error.strerror}: {error.filename}" if error.filename else str(error).partition("\n")[0]
    return JobError(f"[report] tables = '{tables}': {reason.replace(tables.url, str(tables))}")


def write(report: Report, tables: Place, output: Place, console: str = "", made_ms: int | None = None) -> Place:
    """Write the page; returns its place. `made_ms`: the time of the page, Unix milliseconds; None: now. Raises ConfigError."""
    page = output / PAGE
    html = render(report, str(tables), console, wall_ms() if made_ms is None else made_ms)
    try:
        page.write(html.encode(), "text/html; charset=utf-8")
    except OSError as error:
        raise unusable(output, "[report] output", error) from error
    return page
