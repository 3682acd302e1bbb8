"""The image as `make image` wrote it: what is inside, and that it works with a read-only root, as nobody, without a privilege.

`IMAGE=archive pytest tests/interop/image.py`; `make image-check` does it. The containers are runc's, on the network of this
machine. Needs root and Debian's runc.
"""

import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from adapter.testing.processes import free_port
from tests.integration.helpers import wait_until
from tests.release.versions import project_version

ROOT = Path(__file__).parents[2]
ARCHIVE = Path(os.environ.get("IMAGE") or ROOT / f"build/offset-adapter-{project_version(ROOT)}-image.tar")
TRUSTED: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
SECONDS_MAX = 120
MB_MAX = 300  # of what is stored on a node; numpy is 73 of them
USER = 10001
NAMESPACES = ("pid", "mount", "ipc", "uts")
MOUNTS = [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "noexec"]},  # noqa: S108
]


class Image:
    """An unpacked image, and what its configuration says."""

    def __init__(self, archive: Path, directory: Path) -> None:
        """Unpack an archive as `docker save` and `buildah push docker-archive:` write it."""
        self.directory = directory
        self.root = directory / "root"
        self.root.mkdir()
        with tarfile.open(archive) as file:
            (manifest,) = json.load(self._member(file, "manifest.json"))
            self.tags = manifest["RepoTags"]
            self.config: dict[str, Any] = json.load(self._member(file, manifest["Config"]))["config"]
            for layer in manifest["Layers"]:
                with tarfile.open(fileobj=self._member(file, layer)) as part:
                    assert not any(Path(name).name.startswith(".wh.") for name in part.getnames()), (
                        "a layer removes files of another"
                    )
                    part.extractall(self.root, numeric_owner=True, **TRUSTED)  # noqa: S202 - our own image

    @staticmethod
    def _member(file: tarfile.TarFile, name: str) -> Any:
        found = file.extractfile(name)
        assert found is not None, name
        return found


class Container:
    """A container that runs."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self._log = log

    @property
    def log(self) -> str:
        """All that it has written."""
        return self._log.read_text(errors="replace")

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as its user."""
        more = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        return subprocess.run(
            ["runc", "exec", *more, self.name, *command], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image of the archive."""
    with tempfile.TemporaryDirectory(prefix="image-") as directory:
        yield Image(ARCHIVE, Path(directory))


@contextmanager
def running(image: Image, name: str, *arguments: str, **environment: str) -> Iterator[Container]:
    """A container of the image with these arguments, and a volume of its own for each that the image declares."""
    bundle = image.directory / name
    bundle.mkdir()
    mounts = [*MOUNTS]
    for number, volume in enumerate(image.config["Volumes"]):
        source = bundle / f"volume-{number}"
        shutil.copytree(image.root / volume.lstrip("/"), source)  # as an engine does with a new volume
        os.chown(source, USER, USER)
        mounts.append(
            {"destination": volume, "type": "bind", "source": str(source), "options": ["rbind", "rw", "nosuid", "nodev"]}
        )
    user = int(image.config["User"])
    process = {
        "terminal": False,
        "user": {"uid": user, "gid": user},
        "args": [*image.config["Entrypoint"], *(arguments or image.config["Cmd"])],
        "env": [*image.config["Env"], *(f"{name}={value}" for name, value in environment.items())],
        "cwd": image.config["WorkingDir"],
        "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")},
        "noNewPrivileges": True,
    }
    spec = {
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": str(image.root), "readonly": True},
        "hostname": name,
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in NAMESPACES]},
    }
    (bundle / "config.json").write_text(json.dumps(spec))
    identity = f"{name}-{os.getpid()}"
    log = bundle / "log"
    with log.open("wb") as output:
        command = ["runc", "run", "--bundle", str(bundle), identity]
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            yield Container(identity, log)
            started.terminate()  # runc passes signals on
            assert started.wait(SECONDS_MAX) == 0, log.read_text()
        finally:
            subprocess.run(["runc", "delete", "--force", identity], capture_output=True, check=False)
            started.kill()
            started.wait()


def health_check(container: Container, image: Image, port: int) -> int:
    """The exit code of the image's own health check."""
    kind, *command = image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    return container.run(*command, METRICS_PORT=str(port)).returncode


def test_it_becomes_healthy_and_a_commit_comes_back_from_the_meta_service(image: Image) -> None:
    """Two containers of it, an adapter and a Meta Service; and both end with 0 on SIGTERM."""
    grpc, metrics, meta_grpc, meta_metrics = (free_port() for _ in range(4))
    etc = image.root / "etc/offset-adapter"
    listening = '[server]\nlisten = "127.0.0.1:{}"\n[metrics]\nlisten = "127.0.0.1:{}"\n'
    (etc / "test-meta.toml").write_text(listening.format(meta_grpc, meta_metrics))
    (etc / "test-adapter.toml").write_text(listening.format(grpc, metrics) + f'[meta]\nendpoints = ["127.0.0.1:{meta_grpc}"]\n')
    with (
        running(image, "meta", "meta", "--config", "/etc/offset-adapter/test-meta.toml") as meta,
        running(image, "adapter", "serve", "--config", "/etc/offset-adapter/test-adapter.toml") as adapter,
    ):
        wait_until(lambda: health_check(meta, image, meta_metrics) == 0, "the Meta Service is healthy")
        wait_until(lambda: health_check(adapter, image, metrics) == 0, "the adapter is healthy")
        assert health_check(adapter, image, free_port()) != 0
        committed = adapter.run("offset-adapter", "commit", "g", "t/0", "42")
        assert (committed.returncode, committed.stdout.strip()) == (0, "committed"), committed.stderr
        assert adapter.run("offset-adapter", "flush").returncode == 0
        read = adapter.run("offset-adapter", "get", "g", "--mode", "store")
        assert (read.returncode, "42" in read.stdout) == (0, True), read.stderr
        owned = adapter.run(
            "sh", "-c", "id -u; touch /etc/x; touch /opt/x; grep -E 'Cap(Prm|Eff|Bnd)|NoNewPrivs' /proc/self/status"
        )
        assert owned.stdout.split() == [
            str(USER),
            "CapPrm:",
            "0" * 16,
            "CapEff:",
            "0" * 16,
            "CapBnd:",
            "0" * 16,
            "NoNewPrivs:",
            "1",
        ]
        assert owned.stderr.count("Read-only file system") == 2


def test_the_version_and_the_commit_are_those_of_the_tree(image: Image) -> None:
    """And the tag says the version."""
    done = subprocess.run(
        ["chroot", image.root, "/opt/offset-adapter/bin/offset-adapter", "--version"], capture_output=True, text=True, check=True
    )
    commit = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert done.stdout == f"offset-adapter, version {project_version(ROOT)}, commit {commit}\n"
    assert {tag.rpartition(":")[2] for tag in image.tags} == {project_version(ROOT)}


def test_nothing_is_inside_that_a_running_process_does_not_need(image: Image) -> None:
    """No installer, no compiler, no Perl, nothing with setuid; and the configuration says who it runs as."""
    assert image.config["User"] == str(USER)
    unwanted = re.compile(r"^(pip3?(\.\d+)?|apt(-.*)?|gcc(-.*)?|cc|make|perl.*|sudo|mount|passwd|curl|wget|git|ensurepip)$")
    programs = [path for place in ("usr/bin", "usr/sbin", "opt/offset-adapter/bin") for path in (image.root / place).iterdir()]
    assert [path.name for path in programs if unwanted.match(path.name)] == []
    packages = [path.name for path in (image.root / "opt/offset-adapter/lib").glob("python3*/site-packages/*")]
    assert not [name for name in packages if name.startswith(("pip", "setuptools", "pkg_resources", "hatchling"))]
    found = [path for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in found if path.stat().st_mode & 0o6000] == []
    size = sum(path.stat().st_size for path in found)
    print(f"\nthe image has {size / 1e6:.0f} MB in {len(found)} files")  # noqa: T201 - stated by make image-check
    assert size < MB_MAX * 1e6
