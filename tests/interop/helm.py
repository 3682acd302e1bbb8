"""The chart by Helm itself, and what it renders by Kubernetes' own schemas (kubeconform). `make interop` runs it."""

import filecmp
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapter.metaservice.config import MetaConfig
from adapter.sidecar.config import AdapterConfig
from tests.release.manifests import config_map, containers, parts, pods, settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/offset-adapter"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-adapter-interop/helm"
SCHEMAS = CACHE / "schemas/kubernetes_validate/kubernetes-json-schema"
OLDEST, NEWEST = "1.31.0", "1.37.0"
SECONDS_MAX = 120
KINDS = (
    "configmap-v1",
    "deployment-apps-v1",
    "networkpolicy-networking-v1",
    "poddisruptionbudget-policy-v1",
    "service-v1",
    "statefulset-apps-v1",
)

EVERYTHING = {"broker": {"enabled": True}, "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}
OFFSETS = {"storage": "40Gi", "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "8Gi"}}}
LARGE = {
    "etcd": {
        "storageClassName": "local-ssd",
        "offsets": [
            {"name": "offsets-1", "besideMetadata": True, **OFFSETS},
            {"name": "offsets-2", "besideMetadata": False, **OFFSETS},
        ],
    },
    "image": {"repository": "registry.example.org/offset-adapter", "tag": "1.2.3"},
    "sidecar": {
        "settings": {
            "stop": {"drain_timeout_ms": 60_500},
            "meta": {"tls": {"ca": "/etc/meta-ca/ca.crt"}},
            "policy": [{"groups": "payments-*", "mode": "write_through"}, {"groups": 'it\'s "quoted" <&>', "mode": "write_back"}],
        },
        "extraVolumes": [{"name": "meta-ca", "secret": {"secretName": "meta-ca"}}],
        "extraVolumeMounts": [{"name": "meta-ca", "mountPath": "/etc/meta-ca", "readOnly": True}],
    },
    **EVERYTHING,
}
BROKERS_ONLY = {
    "meta": {"enabled": False},
    "etcd": {"enabled": False},
    "serviceMonitor": {"enabled": True},
    "broker": {"enabled": True},
}
OWN_ETCD = {
    "etcd": {"enabled": False},
    "meta": {
        "settings": {
            "etcd": {
                "tls": None,
                "metadata": {"endpoints": ["a:2379"], "nodes": ["a"]},
                "offsets": [{"name": "one", "endpoints": ["b:2379"], "nodes": ["b"]}],
            }
        }
    },
}
VALUES = {"default": {}, "everything": EVERYTHING, "large": LARGE, "brokers only": BROKERS_ONLY, "own etcd": OWN_ETCD}


def helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Helm."""
    command = [str(CACHE / "helm"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)


def rendered(directory: Path, values: object, chart: Path = CHART, version: str = OLDEST) -> Path:
    """What the chart renders, as a file."""
    (directory / "values.yaml").write_text(yaml.safe_dump(values))
    done = helm("template", "x", chart, "--namespace", "n", "--kube-version", version, "--values", directory / "values.yaml")
    assert done.returncode == 0, done.stderr
    path = directory / "rendered.yaml"
    path.write_text(done.stdout)
    return path


@cache
def schemas(version: str) -> str:
    """The schemas as kubeconform names them: a Kubernetes version's, strict, and the ServiceMonitor's."""
    directory = CACHE / f"strict-{version}"
    directory.mkdir(exist_ok=True)
    for name in ("_definitions", *KINDS):
        source = SCHEMAS / f"v{version}-local-strict" / f"{name}.json"
        schema = json.loads(source.read_text().replace("/api/_definitions.json#", "_definitions.json#"))
        del schema["$id"]  # by which the definitions would be looked for in the network
        (directory / source.name).write_text(json.dumps(schema))
    (monitor,) = parts(CACHE / "servicemonitor.yaml")
    schema = monitor["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    (directory / "servicemonitor-monitoring-v1.json").write_text(json.dumps(strict(schema)))
    return f"{directory}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"


def strict(schema: Any) -> Any:
    """A CRD's schema that allows no other properties, as the API server with strict validation."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {name: strict(part) for name, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and "x-kubernetes-preserve-unknown-fields" not in schema:
        changed.setdefault("additionalProperties", False)
    if schema.get("type") == "object" and "properties" in schema and "kind" in schema["properties"]:
        changed["properties"]["metadata"] = {"type": "object"}
    return changed


def problems(path: Path, version: str) -> list[str]:
    """What kubeconform has against a file."""
    command = [
        str(CACHE / "kubeconform"),
        "-strict",
        "-output",
        "json",
        "-schema-location",
        schemas(version),
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    found = json.loads(done.stdout)
    bad = [f"{one['kind']} {one['name']}: {one['msg']}" for one in found["resources"] if one["status"] != "statusValid"]
    assert bool(bad) == bool(done.returncode), done.stderr
    return bad


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", VALUES)
def test_what_the_chart_renders_is_what_kubernetes_takes(name: str, version: str, tmp_path: Path) -> None:
    """Every field is one that there is, with a value of its type, in the oldest and the newest version."""
    path = rendered(tmp_path, VALUES[name], version=version)
    assert problems(path, version) == []


def test_a_field_that_does_not_exist_is_found(tmp_path: Path) -> None:
    """So that the test above means something: in a pod, and in a ServiceMonitor."""
    path = rendered(tmp_path, EVERYTHING)
    text = path.read_text()
    path.write_text(text.replace("serviceName:", "servceName:", 1).replace("interval:", "intervall:", 1))
    assert len(problems(path, OLDEST)) == 2


@pytest.mark.parametrize("name", VALUES)
def test_the_settings_are_what_the_programs_read(name: str, tmp_path: Path) -> None:
    """By the classes of the settings; and the pods have time for what they say."""
    path = rendered(tmp_path, VALUES[name])
    adapter = settings(path, "offset-adapter", "adapter.toml", AdapterConfig)
    found = dict(pods(path))
    if "broker" in found:
        assert (
            found["broker"]["terminationGracePeriodSeconds"]
            >= 30 + (adapter.stop.grace_ms + adapter.stop.drain_timeout_ms) / 1000
        )
    if "offset-meta" in found:
        meta = settings(path, "offset-meta", "meta.toml", MetaConfig)
        assert meta.etcd.metadata
        assert found["offset-meta"]["terminationGracePeriodSeconds"] > meta.stop.grace_ms / 1000
        for members in (meta.etcd.metadata, *meta.etcd.offsets):
            assert len({*members.endpoints}) == len(members.nodes)
    if name == "large":
        assert [policy.groups for policy in adapter.policy] == ["payments-*", 'it\'s "quoted" <&>']
        assert (adapter.stop.grace_ms, adapter.stop.drain_timeout_ms) == (5_000, 60_500)
        assert [group.nodes[0] for group in meta.etcd.offsets] == ["pair-0", "offsets-2-0"]
        assert {container["image"] for container in containers(found["broker"])} == {"registry.example.org/offset-adapter:1.2.3"}


def test_the_chart_lints() -> None:
    """Warnings are errors."""
    done = helm("lint", "--strict", CHART, "--values", ROOT / "deploy/helm/kubernetes.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"metta": {}}, "metta"),
        ({"meta": {"replicas": 0}}, "replicas"),
        ({"meta": {"settings": {"engine": "rocksdb"}}}, "engine"),
        ({"meta": {"settings": {"stop": {"grace_ms": -1}}}}, "grace_ms"),
        ({"etcd": {"settings": {"max-txn-ops": "512"}}}, "max-txn-ops"),
        ({"etcd": {"settings": {"ETCD_MAX_TXN_OPS": 512}}}, "ETCD_MAX_TXN_OPS"),
        ({"etcd": {"offsets": [{"name": "Offsets_1", "besideMetadata": True, **OFFSETS}]}}, "name"),
        ({"sidecar": {"storage": "much"}}, "storage"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: object, named: str, tmp_path: Path) -> None:
    """By values.schema.json, before anything is rendered."""
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    done = helm("template", "x", CHART, "--kube-version", OLDEST, "--values", tmp_path / "values.yaml")
    assert done.returncode != 0
    assert named in done.stderr


def test_the_chart_of_a_broker_takes_the_sidecar_from_this_one(tmp_path: Path) -> None:
    """As templates/_sidecar.tpl says: a dependency with everything off, and the named templates."""
    chart = tmp_path / "broker"
    (chart / "templates").mkdir(parents=True)
    shutil.copytree(CHART, chart / "charts/offset-adapter")
    (chart / "Chart.yaml").write_text(
        "apiVersion: v2\nname: my-broker\nversion: 1.0.0\ndependencies:\n- {name: offset-adapter, version: '>=0.0.0'}\n"
    )
    off = {"enabled": False}
    (chart / "values.yaml").write_text(yaml.safe_dump({"offset-adapter": {"meta": off, "etcd": off, "networkPolicy": off}}))
    (chart / "templates/broker.yaml").write_text(
        """{{- $adapter := index .Subcharts "offset-adapter" }}
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: mine}
spec:
  serviceName: mine
  selector: {matchLabels: {app: mine}}
  template:
    metadata:
      labels:
        app: mine
        {{- include "offset-adapter.sidecarLabels" $adapter | nindent 8 }}
    spec:
      terminationGracePeriodSeconds: {{ add 60 (include "offset-adapter.sidecarStopSeconds" $adapter) }}
      securityContext: {fsGroup: 10001}
      initContainers:
        {{- include "offset-adapter.sidecar" $adapter | nindent 8 }}
      containers:
        - {name: broker, image: "mine:1"}
      volumes:
        {{- include "offset-adapter.sidecarVolumes" $adapter | nindent 8 }}
  volumeClaimTemplates:
    {{- include "offset-adapter.sidecarVolumeClaim" $adapter | nindent 4 }}
"""
    )
    path = rendered(tmp_path, {"offset-adapter": {"sidecar": {"settings": {"stop": {"drain_timeout_ms": 20_000}}}}}, chart)
    assert problems(path, OLDEST) == []
    ((name, pod),) = pods(path)
    assert (name, pod["terminationGracePeriodSeconds"]) == ("mine", 60 + 5 + 20 + 5)
    assert [one["name"] for one in containers(pod)] == ["offset-adapter", "broker"]
    assert pod["initContainers"][0]["restartPolicy"] == "Always"
    assert [*config_map(path, "offset-adapter")] == ["adapter.toml"]


def test_the_manifests_in_the_tree_are_what_the_chart_renders(tmp_path: Path) -> None:
    """Else: make chart."""
    subprocess.run(["sh", ROOT / "deploy/helm/render.sh", CACHE / "helm", tmp_path], timeout=SECONDS_MAX, check=True)
    names = [path.name for path in tmp_path.iterdir()]
    assert len(names) == 5
    assert filecmp.cmpfiles(tmp_path, ROOT / "deploy/kubernetes", names, shallow=False)[1:] == ([], [])
