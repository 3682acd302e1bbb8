"""The Kubernetes manifests and the chart as data."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml

from adapter.runtime.settings.config import Section, parse

C = TypeVar("C", bound=Section)


def parts(path: Path) -> list[dict[str, Any]]:
    """The documents of a file. Raises yaml.YAMLError."""
    return [part for part in yaml.safe_load_all(path.read_text(encoding="utf-8")) if part is not None]


def pods(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The `spec` of each pod that a file has made, by the name of its Deployment or StatefulSet."""
    for part in parts(path):
        if part["kind"] in {"Deployment", "StatefulSet"}:
            yield part["metadata"]["name"], part["spec"]["template"]["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """All of a pod's, sidecars first."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def images(path: Path) -> Iterator[str]:
    """The image of each container in a file."""
    for _, pod in pods(path):
        for container in containers(pod):
            yield container["image"]


def config_map(path: Path, name: str) -> dict[str, str]:
    """The entries of a ConfigMap. Raises KeyError."""
    for part in parts(path):
        if part["kind"] == "ConfigMap" and part["metadata"]["name"] == name:
            return dict(part["data"])
    raise KeyError(name)


def settings(path: Path, name: str, file: str, kind: type[C]) -> C:
    """The settings of a file in a ConfigMap. Raises ConfigError."""
    return parse(tomllib.loads(config_map(path, name)[file]), kind, source=f"{path.name}: {file}")
