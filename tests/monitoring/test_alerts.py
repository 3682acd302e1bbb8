"""Each alert fires and is resolved, by promtool; and none flaps when processes are restarted one after the other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy.monitoring.source.alerts import ALERTS
from tests.monitoring.programs import check_rules
from tests.monitoring.scenarios import ADAPTER, GOOD_S, META, SCENARIOS, Counting, Gauge, Scenario, Series, seconds, written

STEP_S = 15


def at(alert: str, when_s: int, *fired: dict[str, Any]) -> dict[str, Any]:
    """What promtool expects of an alert at a time."""
    return {"eval_time": f"{when_s}s", "alertname": alert, "exp_alerts": list(fired)}


def case(scenario: Scenario, expected: list[dict[str, Any]], gap_s: int | None = None) -> dict[str, Any]:
    """A test of promtool."""
    return {
        "name": scenario.alert,
        "interval": f"{scenario.interval_s}s",
        "input_series": scenario.input(gap_s),
        "alert_rule_test": expected,
    }


def test_every_alert_has_a_scenario_and_there_are_no_others() -> None:
    """An alert without one would never be seen firing."""
    assert sorted(scenario.alert for scenario in SCENARIOS) == sorted(alert.name for alert in ALERTS)


def test_every_scenario_says_how_its_value_is_written() -> None:
    """If a text of the alert has it."""
    for scenario in SCENARIOS:
        assert scenario.value or "$value" not in scenario.rule.description + scenario.rule.summary, scenario.alert


def test_an_alert_fires_within_its_time_says_the_values_and_is_resolved(tmp_path: Path) -> None:
    """Quiet while all is well; firing with all of its annotations filled in; quiet again."""
    check_rules(tmp_path, [case(scenario, fires_and_ends(scenario)) for scenario in SCENARIOS])


def fires_and_ends(scenario: Scenario) -> list[dict[str, Any]]:
    """What is expected before, while and after its series are bad."""
    expected = [at(scenario.alert, GOOD_S - STEP_S)]
    after_s = seconds(scenario.rule.after)
    if after_s > STEP_S:
        expected.append(at(scenario.alert, GOOD_S + after_s - STEP_S))  # bad, but not for long enough
    return [*expected, at(scenario.alert, scenario.fires_s, scenario.fired()), at(scenario.alert, scenario.resolved_s)]


def test_a_restart_does_not_resolve_an_alert_that_fires(tmp_path: Path) -> None:
    """For 30 s nothing is scraped of a process whose alert fires: nobody is told that it is over, and then that it is not."""
    check_rules(tmp_path, [with_a_restart(scenario) for scenario in SCENARIOS if scenario.series[0].name != "up"])


def with_a_restart(scenario: Scenario) -> dict[str, Any]:
    """A test of promtool in which it fires at each step around the restart."""
    good_s, bad_s, _ = scenario.phases_s
    gap_s = max(scenario.fires_s + STEP_S, good_s + bad_s - 180) // scenario.interval_s * scenario.interval_s
    times = range(gap_s - STEP_S, gap_s + 150, STEP_S)
    name, labels = scenario.alert, {**scenario.labels, "severity": scenario.rule.severity}
    matcher = ",".join(f'{label}="{value}"' for label, value in labels.items())
    firing = {"labels": f'ALERTS{{alertname="{name}",alertstate="firing",{matcher}}}', "value": 1}
    return case(scenario, [], gap_s) | {
        "promql_expr_test": [
            {"expr": f'ALERTS{{alertname="{name}",alertstate="firing"}}', "eval_time": f"{when}s", "exp_samples": [firing]}
            for when in times
        ]
    }


def test_an_installation_that_is_well_hides_no_other_one(tmp_path: Path) -> None:
    """In Kubernetes the names are the same in each namespace: of jobs, Raft groups, and objects."""
    check_rules(tmp_path, [with_a_good_one(one) for one in SCENARIOS if one.labels.keys() <= {"job", "raft_group"}])


def with_a_good_one(scenario: Scenario) -> dict[str, Any]:
    """A test of promtool in which it fires for the other installation."""
    bad = [replace(series, labels={**series.labels, "namespace": "bad"}) for series in scenario.series]
    good = [replace(series, labels={**series.labels, "namespace": "good"}, bad=series.good) for series in scenario.series]
    both = replace(scenario, series=[*bad, *good], labels={**scenario.labels, "namespace": "bad"})
    return case(both, [at(scenario.alert, scenario.fires_s, both.fired())])


def test_an_adapter_that_waits_beside_a_slave_is_no_reason_for_an_alert(tmp_path: Path) -> None:
    """The adapter of its master commits; each broker of a pair has one."""
    scenario = next(one for one in SCENARIOS if one.alert == "OffsetAdapterBridgeDisconnected")
    bridge = [Gauge(series.name, series.labels, good, good) for series, good in zip(scenario.series, (0, 1), strict=True)]
    times = (GOOD_S, scenario.fires_s, scenario.resolved_s)
    check_rules(tmp_path, [case(replace(scenario, series=bridge), [at(scenario.alert, when) for when in times])])


def restarted(series: Series, gap_s: int, total_s: int) -> dict[str, str]:
    """A good series whose process is away for 30 s, and whose counters begin at 0 behind that."""
    count = total_s // STEP_S
    values = series.values(count, 0, 0, STEP_S)
    if isinstance(series, Counting):
        back = gap_s // STEP_S + 2
        values = series.values(back, 0, 0, STEP_S) + series.values(count - back, 0, 0, STEP_S)
    if series.name == "offset_adapter_up_state":
        values[gap_s // STEP_S + 2 : gap_s // STEP_S + 5] = ["6", "1", "1"]
    return written(series, values, STEP_S, gap_s)


def test_no_alert_fires_while_processes_are_restarted_one_after_the_other(tmp_path: Path) -> None:
    """An adapter and a Meta Service process are away for 30 s each, recover, and begin to count at 0; flushes fail meanwhile."""
    adapter_s, meta_s, total_s = 600, 780, 1_500
    found: dict[str, dict[str, str]] = {}
    for scenario in SCENARIOS:
        for series in scenario.series:
            one = restarted(series, adapter_s if series.labels["job"] == ADAPTER["job"] else meta_s, total_s)
            found.setdefault(one["series"], one)
    away, steps = meta_s // STEP_S, total_s // STEP_S
    for name, good, meanwhile in (
        ("offset_adapter_meta_available", "1", "0"),
        ("offset_adapter_oldest_dirty_age_seconds", "0.1", "31"),
    ):
        values = [good] * away + [meanwhile] * 2 + [good] * (steps - away - 2)
        found |= {one["series"]: one for one in [written(Gauge(name, ADAPTER, 0, 0), values, STEP_S, None)]}
    failures = [str(min(max(step - away, 0), 2) * 5) for step in range(steps)]
    one = written(Gauge("offset_adapter_flush_failures_total", ADAPTER, 0, 0), failures, STEP_S, None)
    found[one["series"]] = one
    expected = [at(alert.name, when) for alert in ALERTS for when in range(adapter_s - STEP_S, total_s - STEP_S, STEP_S)]
    assert {META["job"], ADAPTER["job"]} <= {part for name in found for part in (META["job"], ADAPTER["job"]) if part in name}
    check_rules(tmp_path, [{"interval": f"{STEP_S}s", "input_series": list(found.values()), "alert_rule_test": expected}])
