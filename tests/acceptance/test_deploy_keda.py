"""The example for KEDA: its metadata are a trigger, it calls what the manifests serve, and the document agrees with the code."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from adapter.fleet.scaler import STREAMS_MAX
from adapter.fleet.scaling import KEYS, LAG_METRIC, SECONDS_METRIC, parse_trigger
from adapter.metaservice.config import MetaConfig
from adapter.runtime.settings.config import parse

ROOT = Path(__file__).parents[2]
KEDA = ROOT / "deploy" / "keda"
DOCUMENT = ROOT / "docs" / "keda.md"


def objects(name: str) -> list[dict[str, Any]]:
    """The objects of a file."""
    return [*yaml.safe_load_all((KEDA / name).read_text())]


def test_the_metadata_of_the_example_are_a_trigger() -> None:
    """As KEDA sends them: all values are strings."""
    scaled, _ = objects("scaledobject.yaml")
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["type"] == "external-push"
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    found = parse_trigger(trigger["metadata"])
    assert (found.group, found.lag_threshold, found.exclude_stalled) == ("orders-consumer", 1_000, True)


def test_the_example_does_not_scale_to_zero_on_an_error() -> None:
    """KEDA does so only with `fallback.replicas: 0`."""
    scaled, _ = objects("scaledobject.yaml")
    assert scaled["spec"]["fallback"]["replicas"] > 0


def test_the_example_calls_the_service_of_the_manifests() -> None:
    """By its name and port, and with the parameters that KEDA's scaler reads."""
    scaled, authentication = objects("scaledobject.yaml")
    address = scaled["spec"]["triggers"][0]["metadata"]["scalerAddress"]
    services = [
        found for found in yaml.safe_load_all((ROOT / "deploy/kubernetes/meta.yaml").read_text()) if found["kind"] == "Service"
    ]
    (service,) = services
    ports = {port["port"] for port in service["spec"]["ports"]}
    namespace = yaml.safe_load((ROOT / "deploy/kubernetes/kustomization.yaml").read_text())["namespace"]
    assert address.split(".")[:2] == [service["metadata"]["name"], namespace]
    assert int(address.rpartition(":")[2]) in ports
    assert {one["parameter"] for one in authentication["spec"]["secretTargetRef"]} == {"caCert", "tlsClientCert", "tlsClientKey"}


def test_the_policy_selects_the_pods_of_the_manifests() -> None:
    """By the labels of deploy/kubernetes/network-policy.yaml."""
    theirs = {
        policy["metadata"]["name"]: policy
        for policy in yaml.safe_load_all((ROOT / "deploy/kubernetes/network-policy.yaml").read_text())
    }
    (meta,) = objects("network-policy.yaml")
    assert meta["spec"]["podSelector"] == theirs["offset-meta"]["spec"]["podSelector"]


def test_no_policy_closes_the_ports_of_a_broker() -> None:
    """A policy that selects a pod refuses what it does not name: the broker's clients, and Prometheus."""
    (broker,) = [
        found
        for found in yaml.safe_load_all((ROOT / "deploy/kubernetes/broker.yaml").read_text())
        if found["kind"] == "StatefulSet"
    ]
    labels = broker["spec"]["template"]["metadata"]["labels"]
    for path in (ROOT / "deploy").rglob("*.yaml"):
        if "\nkind: NetworkPolicy\n" not in path.read_text() or "templates" in path.parts:
            continue
        for policy in yaml.safe_load_all(path.read_text()):
            selector = policy["spec"]["podSelector"]
            if "matchExpressions" not in selector:  # that of etcd is by one of `app`
                assert not selector.get("matchLabels", {}).items() <= labels.items(), f"{path}: {policy['metadata']['name']}"


def test_the_document_has_every_key_and_no_other() -> None:
    """With the names of the metrics, and the limit of streams."""
    text = DOCUMENT.read_text()
    table = text.partition("| key of `metadata`")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == ["scalerAddress", *KEYS]
    assert LAG_METRIC in text
    assert SECONDS_METRIC in text
    assert f"{STREAMS_MAX:,} streams" in text


def test_the_settings_in_the_document_are_settings() -> None:
    """Of the Meta Service."""
    text = "\n".join(line.strip() for line in DOCUMENT.read_text().splitlines() if re.match(r" {6}[\[a-z]", line))
    found = parse(tomllib.loads(text), MetaConfig, source="docs/keda.md")
    assert found.fleet.adapters == ("dns:broker.offset-adapter.svc:9520",)
