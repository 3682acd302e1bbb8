"""Whatever a rule, an alert or a panel asks for, a real registry has: a renamed metric or label is found at once."""

from pathlib import Path

import pytest

from deploy.monitoring.source.alerts import ALERTS
from deploy.monitoring.source.dashboards import DASHBOARDS
from deploy.monitoring.source.model import Times
from deploy.monitoring.source.promql import problems, uses
from deploy.monitoring.source.recordings import RECORDINGS, objectives
from tests.monitoring.catalog import Catalog, real_metrics

TARGET = frozenset({"job", "instance", "namespace"})  # the last one in Kubernetes
PROMETHEUS: Catalog = {
    "up": frozenset(),
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "raft_group", "group", "namespace"}),
}


def expressions() -> dict[str, str]:
    """Every expression, by where it stands."""
    rules = [*RECORDINGS, objectives(300, [("pay.*", 30)])]
    found = {rule.name: rule.expr for rule in rules} | {alert.name: alert.expr for alert in ALERTS}
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            found |= {f"{dashboard.uid}: {panel.title}: {number}": query.expr for number, query in enumerate(panel.queries)}
        found |= {f"{dashboard.uid}: ${variable.name}": variable.metric for variable in dashboard.variables}
    return {place: Times().expr(expr) for place, expr in found.items()}


def recorded(known: Catalog) -> Catalog:
    """The recording rules, with the labels that the metrics in them have."""
    rules = [*RECORDINGS, objectives(300)]
    return {
        rule.name: frozenset().union(*(known.get(name, frozenset()) for name in uses(Times().expr(rule.expr)).metrics))
        for rule in rules
    }


def wrong(known: Catalog) -> list[str]:
    """What expressions use that does not exist."""
    everything = known | recorded(known) | PROMETHEUS
    return [f"{place}: {problem}" for place, expr in expressions().items() for problem in problems(expr, everything, TARGET)]


async def test_every_metric_and_label_of_every_expression_exists(tmp_path: Path) -> None:
    """By the registries of an adapter and a Meta Service."""
    assert wrong(await real_metrics(tmp_path)) == []


def test_raft_groups_of_one_name_are_told_apart_by_namespace() -> None:
    """Every installation in Kubernetes has a group `metadata`: the good one must not hide the bad one."""
    grouped = {place: uses(expr).grouped for place, expr in expressions().items()}
    assert [place for place, labels in grouped.items() if "raft_group" in labels and "namespace" not in labels] == []


async def test_a_metric_that_is_renamed_is_found(tmp_path: Path) -> None:
    """By name, wherever it is used; a label as well."""
    known = await real_metrics(tmp_path)
    renamed = {name.replace("oldest_dirty_age_seconds", "oldest_dirty_seconds"): labels for name, labels in known.items()}
    found = wrong(renamed)
    assert "OffsetAdapterDirtyTooOld: there is no metric offset_adapter_oldest_dirty_age_seconds" in found
    relabelled = known | {"offset_meta_raft_group_leader": frozenset({"name"})}
    assert "OffsetMetaNoLeader: no metric of it has the label raft_group" in wrong(relabelled)
    selected = known | {"offset_adapter_lag_groups": frozenset({"verdict"})}
    assert any("offset_adapter_lag_groups has no label status" in one for one in wrong(selected))


async def test_the_labels_that_alerts_tell_exist(tmp_path: Path) -> None:
    """A label that is not there would be empty in the text."""
    known = await real_metrics(tmp_path)
    everything = known | recorded(known) | PROMETHEUS
    for alert in ALERTS:
        found = uses(Times().expr(alert.expr))
        labels = TARGET.union(*(everything[name] for name in found.metrics))
        for text in (alert.summary, alert.description):
            told = {part.split(" ")[0].split("}")[0] for part in text.split("$labels.")[1:]}
            assert told <= labels, alert.name
            if found.grouped and " by (" in alert.expr:
                assert told <= found.grouped, alert.name


@pytest.mark.parametrize(
    ("expr", "metrics", "grouped"),
    [
        ("up == 0", {"up": set()}, set()),
        ('sum by (a, b) (rate(x_total{c="d e",f=~"g"}[5m])) > 2', {"x_total": {"c", "f"}}, {"a", "b"}),
        ("a:b / on (c) group_left (d) e or vector(0)", {"a:b": set(), "e": set()}, {"c", "d"}),
        ('label_replace(x, "to", "$1", "from", "(.*)") unless y offset 5m', {"x": set(), "y": set()}, set()),
        ("rate(x[$__rate_interval]) and y < bool 1e3", {"x": set(), "y": set()}, set()),
    ],
)
def test_names_are_found_in_an_expression(expr: str, metrics: dict[str, set[str]], grouped: set[str]) -> None:
    """Functions, operators, strings and durations are none."""
    found = uses(expr)
    assert (found.metrics, found.grouped) == (metrics, grouped)


@pytest.mark.parametrize("expr", ['{job="x"}', "x ; y", "sum by (a x"])
def test_what_is_no_expression_is_refused(expr: str) -> None:
    """It would hide a name."""
    with pytest.raises(ValueError, match=r"no PromQL|missing|without the name"):
        uses(expr)
