"""The Kubernetes manifests against the settings: what stands twice is the same. Helm and the schemas: tests/interop/helm.py."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapter.metaservice.config import MetaConfig
from adapter.runtime.settings.addresses import split_address
from adapter.sidecar.config import AdapterConfig
from tests.release import manifests

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
CHART = ROOT / "deploy/helm/offset-adapter"
CONFIG = KUBERNETES / "config.yaml"


def adapter_settings() -> AdapterConfig:
    """Of the sidecars."""
    return manifests.settings(CONFIG, "offset-adapter", "adapter.toml", AdapterConfig)


def meta_settings() -> MetaConfig:
    """Of the Meta Service."""
    return manifests.settings(CONFIG, "offset-meta", "meta.toml", MetaConfig)


def pod_of(name: str) -> dict[str, Any]:
    """The pod of `broker` or `meta`."""
    ((_, pod),) = manifests.pods(KUBERNETES / f"{name}.yaml")
    return pod


def adapter_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    """The container that the pod of a broker has of ours."""
    (container,) = pod["initContainers"]
    return dict(container)


def broker_stop_s() -> int:
    """What the example's broker may take."""
    (values,) = manifests.parts(CHART / "values.yaml")
    return int(values["broker"]["stopSeconds"])


@pytest.mark.parametrize(
    "path", [*KUBERNETES.glob("*.yaml"), *CHART.glob("*.yaml"), CHART / "values.schema.json"], ids=lambda path: path.name
)
def test_every_file_is_yaml_and_no_key_stands_twice(path: Path) -> None:
    """A parser takes the last one of two, and a reader the first."""

    class Strict(yaml.SafeLoader):  # type: ignore[misc]  # no types of it are installed
        """Refuses a mapping with a key twice."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        keys = [loader.construct_object(key) for key, _ in node.value]
        assert len(keys) == len({*keys}), f"{path.name}{node.start_mark}: {keys}"
        return dict(loader.construct_mapping(node, deep=True))

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    assert [*yaml.load_all(path.read_text(), Strict)]


def test_a_pod_has_time_for_the_broker_and_then_for_the_last_flush() -> None:
    """Its terminationGracePeriodSeconds is one period for both: the kubelet kills what is left when it is over."""
    stop = adapter_settings().stop
    needed_s = broker_stop_s() + (stop.grace_ms + stop.drain_timeout_ms) / 1000
    assert pod_of("broker")["terminationGracePeriodSeconds"] >= needed_s + 5
    assert pod_of("meta")["terminationGracePeriodSeconds"] >= meta_settings().stop.grace_ms / 1000 + 5


def test_compose_has_time_for_the_last_flush() -> None:
    """The same there, in stop_grace_period."""
    (compose,) = manifests.parts(ROOT / "deploy/compose.yaml")
    stop = AdapterConfig().stop
    seconds = {name: int(service["stop_grace_period"].removesuffix("s")) for name, service in compose["services"].items()}
    assert seconds["adapter-1"] >= (stop.grace_ms + stop.drain_timeout_ms) / 1000 + 5
    assert seconds["meta-1"] >= MetaConfig().stop.grace_ms / 1000 + 5


def test_the_adapter_is_a_native_sidecar() -> None:
    """It starts before the broker and stops after it: an init container that is always restarted."""
    pod = pod_of("broker")
    container = adapter_of(pod)
    assert (container["name"], container["restartPolicy"]) == ("offset-adapter", "Always")
    assert container["args"][:2] == ["serve", "--config"]
    assert [other["name"] for other in pod["containers"]] == ["broker"]


@pytest.mark.parametrize("name", ["broker", "meta"])
def test_probes_ask_at_the_port_of_the_metrics_and_wait_for_a_recovery(name: str) -> None:
    """The broker starts when the startup probe has passed; a liveness probe that saw a recovery would repeat it for ever."""
    pod = pod_of(name)
    container = adapter_of(pod) if name == "broker" else pod["containers"][0]
    settings = adapter_settings() if name == "broker" else meta_settings()
    port = split_address(settings.metrics.listen)[1]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    probes = {kind: container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")}
    assert {ports[probe["httpGet"]["port"]] for probe in probes.values()} == {port}
    assert [probe["httpGet"]["path"] for probe in probes.values()] == ["/readyz", "/readyz", "/livez"]
    assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= 300


def test_the_ports_of_the_meta_service_are_those_of_its_settings() -> None:
    """Container, Service, NetworkPolicy, and the address that the sidecars have."""
    settings = meta_settings()
    port, metrics = (split_address(section.listen)[1] for section in (settings.server, settings.metrics))
    named = {port["name"]: port["containerPort"] for port in pod_of("meta")["containers"][0]["ports"]}
    assert named == {"grpc": port, "metrics": metrics}
    service = next(part for part in manifests.parts(KUBERNETES / "meta.yaml") if part["kind"] == "Service")
    assert {entry["name"]: entry["port"] for entry in service["spec"]["ports"]} == named
    assert [*adapter_settings().meta.endpoints] == [f"{service['metadata']['name']}:{port}"]
    policy = next(
        part for part in manifests.parts(KUBERNETES / "network-policy.yaml") if part["metadata"]["name"] == "offset-meta"
    )
    assert [entry["port"] for rule in policy["spec"]["ingress"] for entry in rule["ports"]] == [port, metrics]


def test_what_a_container_mounts_is_a_volume_of_its_pod_and_its_settings_are_a_config_map_that_is_there() -> None:
    """Else the pod hangs in ContainerCreating."""
    maps = {part["metadata"]["name"]: {*part["data"]} for part in manifests.parts(CONFIG)}
    for path in KUBERNETES.glob("*.yaml"):
        claims = {
            claim["metadata"]["name"]
            for part in manifests.parts(path)
            for claim in part.get("spec", {}).get("volumeClaimTemplates", [])
        }
        for _, pod in manifests.pods(path):
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            for container in manifests.containers(pod):
                mounts = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", [])}
                assert {*mounts} <= {*volumes, *claims}, container["name"]
                for name, place in mounts.items():
                    if config := volumes.get(name, {}).get("configMap"):
                        (file,) = maps[config["name"]]
                        assert container["args"][-1] == f"{place}/{file}"


def test_nothing_runs_as_root_or_may_become_it() -> None:
    """Of every pod: no root, no service account's token, the runtime's seccomp profile; limits of memory for all containers."""
    seen = 0
    for path in KUBERNETES.glob("*.yaml"):
        for name, pod in manifests.pods(path):
            context = pod["securityContext"]
            assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"}), name
            assert context["runAsUser"] == context["fsGroup"] == 10001, name
            assert pod["automountServiceAccountToken"] is False, name
            for container in manifests.containers(pod):
                own = container["securityContext"]
                assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"], own["capabilities"]) == (
                    False,
                    True,
                    {"drop": ["ALL"]},
                )
                assert {*container["resources"]["requests"]} == {"cpu", "memory"}
                assert "memory" in container["resources"]["limits"]
                seen += 1
    assert seen == 5


def test_every_workload_has_a_disruption_budget() -> None:
    """Of one: a drain of several machines at once takes one member of a Raft group after the other."""
    for path in KUBERNETES.glob("*.yaml"):
        parts = manifests.parts(path)
        budgets = {
            part["metadata"]["name"]: part["spec"]["maxUnavailable"] for part in parts if part["kind"] == "PodDisruptionBudget"
        }
        assert budgets == {name: 1 for name, _ in manifests.pods(path)}, path.name


def test_the_user_of_the_image_is_that_of_the_manifests() -> None:
    """Volumes belong to the group of the pod."""
    assert re.findall(r"^USER (\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE) == ["10001"]


def test_every_value_that_the_chart_uses_is_in_its_values() -> None:
    """Helm renders one that is not there as nothing, and says nothing."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    used = {
        (path.name, name)
        for path in (CHART / "templates").iterdir()
        for name in re.findall(r"\.Values\.(\w+(?:\.\w+)*)", path.read_text())
    }
    assert len(used) > 20
    assert [(path, name) for path, name in sorted(used) if not _has(values, name.split("."))] == []


def _has(values: Any, names: list[str]) -> bool:
    return not names or (isinstance(values, dict) and names[0] in values and _has(values[names[0]], names[1:]))
