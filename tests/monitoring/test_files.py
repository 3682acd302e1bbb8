"""The generated files are current and valid, and the command that writes them says what is wrong."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from deploy.monitoring.source.__main__ import main
from deploy.monitoring.source.alerts import ALERTS
from deploy.monitoring.source.files import Options, generated
from deploy.monitoring.source.model import Times
from deploy.monitoring.source.recordings import objectives
from deploy.monitoring.source.runbooks import pages
from tests.monitoring.programs import MONITORING, ROOT, program, promtool

PROGRAM = (sys.executable, "-m", "deploy.monitoring.source")


def command(*arguments: str | Path) -> Result:
    """What `python -m deploy.monitoring.source` does, in this process."""
    return CliRunner().invoke(main, [*map(str, arguments)])


def test_what_is_committed_is_current() -> None:
    """Otherwise run `make monitoring`."""
    outdated = [name for name, text in generated(Options()).items() if (MONITORING / name).read_text() != text]
    outdated += [path.name for path, text in pages(ROOT / "docs" / "runbooks").items() if path.read_text() != text]
    assert outdated == []


def test_a_file_that_is_not_current_is_named(tmp_path: Path) -> None:
    """By `--check`, which writes nothing."""
    assert command("--output", tmp_path).exit_code == 0
    assert command("--output", tmp_path, "--check").exit_code == 0
    rules = tmp_path / "rules.yaml"
    rules.write_text(rules.read_text().replace("> 30", "> 31"))
    told = subprocess.run([*PROGRAM, "--output", tmp_path, "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert told.stderr.split("\n")[0] == f"{rules} is not current: run make monitoring"
    assert "> 31" in rules.read_text()


def test_prometheus_takes_the_rules_and_the_example() -> None:
    """By promtool: `check config` reads the rules that the configuration names, too."""
    said = promtool("check", "config", MONITORING / "prometheus.yaml")
    assert "SUCCESS" in said
    assert "rules found" in said


def test_the_alertmanager_takes_its_example() -> None:
    """By amtool, and each alert that it names exists."""
    path = MONITORING / "alertmanager.yaml"
    ended = subprocess.run([program("amtool"), "check-config", path], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    names = {alert.name for alert in ALERTS}
    for rule in yaml.safe_load(path.read_text())["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            pattern = matcher.split('"')[1]
            assert sum(bool(re.fullmatch(pattern, name)) for name in names) == pattern.count("|") + 1, pattern


def test_the_operator_gets_the_same_rules() -> None:
    """In the form of a PrometheusRule."""
    for ours, theirs in (("rules.yaml", "prometheus-rule.yaml"), ("objectives.yaml", "prometheus-rule-objectives.yaml")):
        resource = yaml.safe_load((MONITORING / "kubernetes" / theirs).read_text())
        assert resource["kind"] == "PrometheusRule"
        assert resource["spec"] == yaml.safe_load((MONITORING / ours).read_text())


def test_the_compose_file_scrapes_services_that_there_are() -> None:
    """By their names in deploy/compose.yaml, with the same rules; and it names files that exist."""
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    config = yaml.safe_load((MONITORING / "compose-prometheus.yaml").read_text())
    targets = [target for job in config["scrape_configs"] for group in job["static_configs"] for target in group["targets"]]
    assert sorted(target.split(":")[0] for target in targets) == sorted(
        name for name in services if name.startswith(("adapter", "meta"))
    )
    example = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    assert config["rule_files"] == example["rule_files"]
    assert [job["job_name"] for job in config["scrape_configs"]] == [job["job_name"] for job in example["scrape_configs"]]
    beside = yaml.safe_load((MONITORING / "compose.yaml").read_text())["services"]
    mounted = [volume.split(":")[0] for one in beside.values() for volume in one["volumes"] if volume.startswith("./")]
    assert all((ROOT / "deploy" / path).is_dir() for path in mounted)


def test_all_ways_to_scrape_name_the_jobs_that_the_rules_know() -> None:
    """Targets on hosts, pods by the operator, pods by discovery; and what a group calls its namespace stays."""
    hosts = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())["scrape_configs"]
    pods = yaml.safe_load((MONITORING / "kubernetes-scrape.yaml").read_text())["scrape_configs"]
    monitors = list(yaml.safe_load_all((MONITORING / "kubernetes" / "pod-monitor.yaml").read_text()))
    jobs = ["offset-adapter", "offset-meta"]
    assert [job["job_name"] for job in hosts] == [job["job_name"] for job in pods] == jobs
    assert hosts[0]["honor_labels"] is pods[0]["honor_labels"] is True
    [adapter, meta] = [monitor["spec"]["podMetricsEndpoints"][0] for monitor in monitors]
    assert adapter["honorLabels"] is True
    assert [one["relabelings"][0]["replacement"] for one in (adapter, meta)] == jobs
    # Two namespaces may have pods of one name, and a group's own label `namespace` replaces that of its adapter's target.
    named = ["__meta_kubernetes_namespace", "__meta_kubernetes_pod_name"]
    for rules, source, target in (
        *((job["relabel_configs"], "source_labels", "target_label") for job in pods),
        *((endpoint["relabelings"], "sourceLabels", "targetLabel") for endpoint in (adapter, meta)),
    ):
        assert [rule[source] for rule in rules if rule.get(target) == "instance"] == [named]
    ports = {port for name in ("broker.yaml", "meta.yaml") for port in _ports(ROOT / "deploy" / "kubernetes" / name)}
    assert {adapter["port"], meta["port"]} <= ports


def _ports(path: Path) -> set[str]:
    pods = [
        document["spec"]["template"]["spec"]
        for document in yaml.safe_load_all(path.read_text())
        if "template" in document["spec"]
    ]
    containers = [one for pod in pods for one in [*pod.get("initContainers", []), *pod["containers"]]]
    return {port["name"] for one in containers for port in one.get("ports", [])}


def test_times_are_scaled_everywhere(tmp_path: Path) -> None:
    """Durations and seconds alike; a window holds a few scrapes still; Prometheus takes it."""
    assert command("--output", tmp_path, "--scale", "0.02", "--runbooks", "https://docs.example/").exit_code == 0
    promtool("check", "rules", tmp_path / "rules.yaml", tmp_path / "objectives.yaml")
    rules = {
        rule["alert"]: rule
        for group in yaml.safe_load((tmp_path / "rules.yaml").read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert len(rules) == len(ALERTS)
    away, dirty = rules["OffsetAdapterAway"], rules["OffsetAdapterDirtyTooOld"]
    assert (away["for"], dirty["expr"], dirty["keep_firing_for"]) == (
        "2400ms",
        "offset_adapter_oldest_dirty_age_seconds > 0.6",
        "2400ms",
    )
    assert "[5s]" in rules["OffsetAdapterFlushFailing"]["expr"]
    assert away["annotations"]["runbook_url"] == "https://docs.example/OffsetAdapterAway.md"


@pytest.mark.parametrize(("text", "expected"), [("5m", "5m"), ("0s", "0s"), ("1h", "1h")])
def test_times_are_as_written_without_a_scale(text: str, expected: str) -> None:
    """Production."""
    assert Times().duration(text) == expected


def test_a_group_has_the_first_objective_that_fits_its_name(tmp_path: Path) -> None:
    """All others have the default; promtool evaluates it."""
    assert (
        command("--output", tmp_path, "--lag-objective", "60", "--objective", "pay.*=10", "--objective", "pay-late=20").exit_code
        == 0
    )
    series = [
        {"series": f'offset_adapter_group_lag_seconds{{namespace="n",group="{group}",instance="{at}"}}', "values": "5x10"}
        for group in ("pay-late", "mail")
        for at in ("a", "b")
    ]
    name = "offset_adapter:group_lag_objective_seconds"
    expected = [
        {"labels": f'{name}{{namespace="n",group="pay-late"}}', "value": 10},
        {"labels": f'{name}{{namespace="n",group="mail"}}', "value": 60},
    ]
    tests = {
        "rule_files": [str(tmp_path / "objectives.yaml")],
        "tests": [
            {"input_series": series, "promql_expr_test": [{"expr": name, "eval_time": "2m", "exp_samples": expected}]},
        ],
    }
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump(tests))
    promtool("test", "rules", path)
    assert '\\\\d\\"' in objectives(1, [('\\d"', 2)]).expr


@pytest.mark.parametrize("text", ["pay.*", "=5", "pay=0", "pay=soon", "pay=inf", "pay(=5"])
def test_an_objective_that_is_none_is_refused(text: str) -> None:
    """The message names the option."""
    told = command("--objective", text, "--check")
    assert told.exit_code == 2
    assert "--objective" in told.stderr
    assert repr(text) in told.stderr


def test_an_unknown_file_is_refused() -> None:
    """The message names those that there are."""
    told = command("--only", "rule.yaml", "--check")
    assert told.exit_code == 2
    assert "rules.yaml" in told.stderr
