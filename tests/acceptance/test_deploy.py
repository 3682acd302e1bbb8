"""What is in deploy/ is what the commands take: its settings, the flags of etcd, and the names by which parts find each other.

There is no Docker and no Kubernetes here, so nothing of it is started. For the rest of the
manifests see tests/release/test_manifests.py.
"""

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.metaservice.config import MetaConfig
from adapter.runtime.settings.addresses import split_address
from adapter.runtime.settings.config import load
from adapter.sidecar.config import AdapterConfig
from adapter.testing.etcd import RECOMMENDED, EtcdMissingError, etcd_binary
from tests.release.manifests import settings as manifest_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
KUBERNETES = DEPLOY / "kubernetes"
CONFIG = KUBERNETES / "config.yaml"
# `ETCD_MAX_TXN_OPS: "512"`, `name: ETCD_NAME` of a container.
ETCD_SETTING = re.compile(r'^\s*(?:- name: )?ETCD_([A-Z_]+)(?:: *"?([^"\s#]*)"?)?', re.MULTILINE)


def settings(path: Path) -> Iterator[tuple[str, str]]:
    """The flags of etcd in a file, without dashes, and their values."""
    for name, value in ETCD_SETTING.findall(path.read_text()):
        yield name.lower().replace("_", "-"), value


def meta(directory: Path) -> MetaConfig:
    """The settings of the Meta Service. Raises ConfigError."""
    if directory == KUBERNETES:
        return manifest_settings(CONFIG, "offset-meta", "meta.toml", MetaConfig)
    return load(directory / "config" / "meta.toml", MetaConfig)


def adapter(directory: Path) -> AdapterConfig:
    """The settings of the adapters. Raises ConfigError."""
    if directory == KUBERNETES:
        return manifest_settings(CONFIG, "offset-adapter", "adapter.toml", AdapterConfig)
    return load(directory / "config" / "adapter.toml", AdapterConfig)


@pytest.mark.parametrize("directory", [DEPLOY, KUBERNETES])
def test_deployed_metas_use_etcd_and_adapters_use_the_metas(directory: Path) -> None:
    """The files are valid, and name two Raft groups of three members."""
    etcd = meta(directory).etcd
    assert etcd.metadata
    assert [len(members.endpoints) for members in (etcd.metadata, *etcd.offsets)] == [3, 3]
    assert etcd.placement.balance
    assert str(etcd.max_txn_ops) == RECOMMENDED["max-txn-ops"]
    assert adapter(directory).meta.endpoints


@pytest.mark.parametrize("path", [COMPOSE, CONFIG])
def test_deployed_members_have_the_recommended_flags(path: Path) -> None:
    """With the values that are tried here, in every test with etcd."""
    assert dict(settings(path)).items() >= RECOMMENDED.items()


def test_every_etcd_variable_is_one_of_its_flags() -> None:
    """Of others it only warns: a misspelt quota would be no quota."""
    try:
        said = subprocess.run([etcd_binary(), "--help"], capture_output=True, text=True, check=False)
    except EtcdMissingError as error:
        pytest.skip(f"flags in deploy/: not checked: {error}")
    flags = {*re.findall(r"^\s+--([a-z-]+)", said.stdout + said.stderr, re.MULTILINE)}
    found = {name for path in (COMPOSE, *KUBERNETES.glob("*.yaml")) for name, _ in settings(path)}
    assert len(found) > len(RECOMMENDED)
    assert found - flags == set()


def test_every_endpoint_is_a_part_of_the_compose_file() -> None:
    """A service there, by its name."""
    etcd = meta(DEPLOY).etcd
    assert etcd.metadata
    hosts = [*etcd.metadata.endpoints, *etcd.offsets[0].endpoints, *adapter(DEPLOY).meta.endpoints]
    services = {
        *re.findall(r"^  ([a-z0-9-]+):", COMPOSE.read_text().split("\nservices:")[1].split("\nvolumes:")[0], re.MULTILINE)
    }
    assert {split_address(host)[0] for host in hosts} <= services


def test_every_endpoint_is_a_part_of_the_manifests() -> None:
    """A pod of a StatefulSet and its headless Service, or a Service; and the members' certificates have their names."""
    etcd = meta(KUBERNETES).etcd
    assert etcd.metadata
    named = {
        *re.findall(r"^  name: ([a-z0-9-]+)$", "".join(path.read_text() for path in KUBERNETES.glob("*.yaml")), re.MULTILINE)
    }
    certified = re.search(r"CLUSTERS:-(.*)}", (KUBERNETES / "certificates.sh").read_text())
    assert certified
    for cluster, members in zip(certified[1].split(), (etcd.metadata, *etcd.offsets), strict=True):
        assert cluster in named
        assert [split_address(endpoint)[0] for endpoint in members.endpoints] == [f"{cluster}-{n}.{cluster}" for n in range(3)]
    assert {split_address(endpoint)[0] for endpoint in adapter(KUBERNETES).meta.endpoints} <= named


def test_a_raft_group_that_is_added_gets_its_certificate_and_secret(tmp_path: Path) -> None:
    """By the script that made the others; these stay as they are."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\n[ "$3" = create ] && echo "$6" >> "$CALLS" || cat\n')
    kubectl.chmod(0o700)
    calls, made = tmp_path / "calls", tmp_path / "certificates"
    command = ["sh", str(KUBERNETES / "certificates.sh"), str(made)]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls)}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    secrets = ["etcd-metadata-tls", "etcd-offsets-1-tls", "offset-meta-etcd-tls"]
    assert calls.read_text().split() == secrets
    before = {path.name: path.read_bytes() for path in made.iterdir() if path.suffix in {".crt", ".key"}}

    more = environment | {"CLUSTERS": "etcd-metadata etcd-offsets-1 etcd-offsets-2"}
    subprocess.run(command, env=more, check=True, capture_output=True, timeout=60)
    assert calls.read_text().split()[3:] == [*secrets[:2], "etcd-offsets-2-tls", secrets[2]]
    after = {path.name: path.read_bytes() for path in made.iterdir() if path.suffix in {".crt", ".key"}}
    assert after.keys() - before.keys() == {"etcd-offsets-2.crt", "etcd-offsets-2.key"}
    assert before.items() <= after.items()
    verified = ["openssl", "verify", "-CAfile", str(made / "ca.crt"), str(made / "etcd-offsets-2.crt")]
    subprocess.run(verified, check=True, capture_output=True, timeout=60)


def test_everything_that_pip_installs_into_the_image_has_a_hash() -> None:
    """Also what builds the package: the locked version that pyproject.toml names, and pip may fetch nothing beside."""
    image = (ROOT / "Dockerfile").read_text()
    for install in re.findall(r"pip (?:install|wheel) [^\n&]*", image):
        assert "--require-hashes" in install or ("--no-index" in install and "--no-deps" in install), install
    assert "--no-build-isolation" in image
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (builder,) = project["build-system"]["requires"]
    assert project["dependency-groups"]["build"] == [builder]
    lock = (ROOT / "requirements/build.lock").read_text()
    assert f"{builder} \\\n    --hash=sha256:" in lock
    locked = {*re.findall(r"^\S+==\S+", lock, re.MULTILINE)}
    assert locked <= {*re.findall(r"^\S+==\S+", (ROOT / "requirements/dev.lock").read_text(), re.MULTILINE)}
    for name in re.findall(r"requirements[a-z-]*\.lock", image):
        assert f"!{name}" in (ROOT / ".dockerignore").read_text().splitlines()


def test_the_base_of_the_image_is_named_by_its_digest() -> None:
    """A tag is another image tomorrow."""
    image = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=\S+@sha256:[0-9a-f]{64}$", image, re.MULTILINE)
    assert {*re.findall(r"^FROM (\S+)", image, re.MULTILINE)} == {"${BASE}", "scratch"}


def test_every_service_of_the_compose_file_writes_only_to_volumes_and_has_no_privilege() -> None:
    """All of them come from these two."""
    text = COMPOSE.read_text()
    hardened = re.search(r"^x-hardened: &hardened\n((?:  .*\n)+)", text, re.MULTILINE)
    assert hardened
    for line in ("read_only: true", "tmpfs: [/tmp]", "cap_drop: [ALL]", 'security_opt: ["no-new-privileges:true"]'):
        assert line in hardened[1]
    for anchor in ("etcd", "adapter-image"):
        assert f": &{anchor}\n  <<: *hardened\n" in text
    for anchor in ("meta", "adapter"):
        assert f": &{anchor}\n  <<: *adapter-image\n" in text
    services = text.split("\nservices:")[1].split("\nvolumes:")[0]
    bodies = re.findall(r"^  [a-z0-9-]+:(.*\n(?:    .*\n)*)", services, re.MULTILINE)
    assert len(bodies) == 11
    assert all(re.search(r"\*(etcd|meta|adapter)$", body, re.MULTILINE) for body in bodies)
