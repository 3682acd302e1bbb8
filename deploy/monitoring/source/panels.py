"""What a dashboard shows, as values: `dashboards` has them, `grafana` writes them in Grafana's form."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["timeseries", "stat", "table", "states"]


@dataclass(frozen=True)
class Query:
    """An expression, and how its series are called. In a table it is a column of that name."""

    expr: str
    legend: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel. `unit` is Grafana's name of it. `warn` and `bad` colour values from there on; below, if `bad` is the smaller."""

    title: str
    queries: Sequence[Query]
    about: str
    kind: Kind = "timeseries"
    unit: str = "short"
    width: int = 8  # of 24
    height: int = 7
    warn: float | None = None
    bad: float | None = None
    states: Sequence[tuple[int, str, str]] = ()  # value, text, colour
    hidden: Sequence[str] = ()  # columns of a table
    units: Sequence[tuple[str, str]] = ()  # of columns of a table


@dataclass(frozen=True)
class Row:
    """A heading, and the panels below it."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A choice on top of a dashboard: the values of a label of a metric."""

    name: str
    label: str
    metric: str
    of: str
    several: bool = True


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """One dashboard. Its file is that of `uid`."""

    uid: str
    title: str
    about: str
    variables: Sequence[Variable]
    rows: Sequence[Row]

    @property
    def panels(self) -> list[Panel]:
        """All panels."""
        return [panel for row in self.rows for panel in row.panels]
