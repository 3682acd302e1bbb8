"""Dashboards in Grafana's form, by its own SDK (grafana-foundation-sdk), whose types follow Grafana's schema."""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.monitoring.source.panels import Dashboard, Panel, Query, Row, Variable

SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "offset-adapter"
ORDINARY, WARN, BAD = "green", "orange", "red"


def rendered(described: Dashboard) -> str:
    """A dashboard as JSON, to be imported or provisioned."""
    built = (
        builders.Dashboard(described.title)
        .uid(described.uid)
        .description(described.about)
        .tags([TAG])
        .editable()
        .refresh("30s")
        .time("now-6h", "now")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .link(
            builders.DashboardLink("Offset adapter")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(as_dropdown=True)
            .keep_time(keep_time=True)
        )
        .annotation(_firing())
    )
    for variable in described.variables:
        built.with_variable(_variable(variable))
    numbers = itertools.count(1)
    for row in described.rows:
        _add(built, row, numbers)
    text: str = json.dumps(built.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"
    return text


def _add(built: Any, row: Row, numbers: Iterator[int]) -> None:  # noqa: ANN401 - the SDK is not typed for mypy
    built.with_row(builders.Row(row.title).id(next(numbers)))
    for panel in row.panels:
        built.with_panel(_KINDS[panel.kind](panel).id(next(numbers)))


def _firing() -> Any:  # noqa: ANN401
    return (
        builders.AnnotationQuery()
        .name("Alerts")
        .datasource(SOURCE)
        .enable(enable=True)
        .icon_color(BAD)
        .expr('ALERTS{alertname=~"Offset.+", alertstate="firing", severity="critical"}')
    )


def _variable(variable: Variable) -> Any:  # noqa: ANN401
    built = (
        builders.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(SOURCE)
        .query(f"label_values({variable.metric}, {variable.of})")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )
    return built.multi(multi=True).include_all(include_all=True).all_value(".*") if variable.several else built


def _timeseries(panel: Panel) -> Any:  # noqa: ANN401
    built = (
        _common(timeseries.Panel(), panel)
        .legend(common_builders.VizLegendOptions().show_legend(show_legend=True).placement(common.LegendPlacement.BOTTOM))
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
        .fill_opacity(10)
        .span_nulls(span_nulls=False)
        .min(0)
    )
    if panel.warn is not None or panel.bad is not None:
        built.thresholds_style(common_builders.GraphThresholdsStyleConfig().mode(common.GraphTresholdsStyleMode.DASHED))
    return built


def _stat(panel: Panel) -> Any:  # noqa: ANN401
    return (
        _common(stat.Panel(), panel)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False))
        .color_mode(common.BigValueColorMode.BACKGROUND if _coloured(panel) else common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .no_value("none")
    )


def _states(panel: Panel) -> Any:  # noqa: ANN401
    built = _common(statetimeline.Panel(), panel).merge_values(merge_values=True).show_value(common.VisibilityMode.AUTO)
    return built.line_width(0).fill_opacity(80)


def _table(panel: Panel) -> Any:  # noqa: ANN401
    built = _common(table.Panel(), panel).show_header(show_header=True)
    names = {f"Value #{_letter(at)}": query.legend for at, query in enumerate(panel.queries)} | {"Value": panel.queries[0].legend}
    built.with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
    hidden = dict.fromkeys(panel.hidden, True)
    organized = {"excludeByName": hidden, "indexByName": {}, "renameByName": names}
    built.with_transformation(dashboard.DataTransformerConfig(id_val="organize", options=organized))
    for column, unit in panel.units:
        built.override_by_name(column, [dashboard.DynamicConfigValue(id_val="unit", value=unit)])
    return built


def _common(built: Any, panel: Panel) -> Any:  # noqa: ANN401
    built.title(panel.title).description(panel.about).datasource(SOURCE).unit(panel.unit).height(panel.height).span(panel.width)
    for at, query in enumerate(panel.queries):
        built.with_target(_query(query, _letter(at), panel))
    if _coloured(panel):
        built.thresholds(_thresholds(panel.warn, panel.bad))
    if panel.states:
        column = panel.queries[0].legend
        mapped = [_mapping(panel.states)]
        if panel.kind == "table":
            told = json.loads(json.dumps(mapped, cls=JSONEncoder))
            built.override_by_name(column, [dashboard.DynamicConfigValue(id_val="mappings", value=told)])
        else:
            built.mappings(mapped)
    return built


def _query(query: Query, letter: str, panel: Panel) -> Any:  # noqa: ANN401
    built = prometheus.Dataquery().expr(query.expr).ref_id(letter).legend_format(query.legend)
    if panel.kind == "table":
        return built.instant().format(PromQueryFormat.TABLE)
    return built.instant() if panel.kind == "stat" else built.range()


def _mapping(states: Sequence[tuple[int, str, str]]) -> Any:  # noqa: ANN401
    options = {
        str(value): dashboard.ValueMappingResult(text=text, color=color, index=at)
        for at, (value, text, color) in enumerate(states)
    }
    return dashboard.ValueMap(options=options)


def _coloured(panel: Panel) -> bool:
    return panel.warn is not None or panel.bad is not None


def _thresholds(warn: float | None, bad: float | None) -> Any:  # noqa: ANN401
    """Steps upwards; where the bad values are the small ones, from bad to good."""
    if warn is not None and bad is not None and bad < warn:
        steps = [dashboard.Threshold(None, BAD), dashboard.Threshold(bad, WARN), dashboard.Threshold(warn, ORDINARY)]
    else:
        later = [(warn, WARN), (bad, BAD)]
        steps = [
            dashboard.Threshold(None, ORDINARY),
            *(dashboard.Threshold(value, color) for value, color in later if value is not None),
        ]
    return builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)


def _letter(at: int) -> str:
    return chr(ord("A") + at)


_KINDS: dict[str, Callable[[Panel], Any]] = {"timeseries": _timeseries, "stat": _stat, "states": _states, "table": _table}
