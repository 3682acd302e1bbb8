"""`adapter.client`, the public API: every name can be imported, and importing it loads few modules."""

import subprocess
import sys
from pathlib import Path

import adapter.client

NOT_LOADED = ("rocksdict", "pydantic", "structlog", "prometheus_client", "click", "rich", "pyarrow")
MODULES_MAX = 16  # of ours that hold code: a package that only names things, and generated messages, do not count
SCRIPT = """
import sys
from pathlib import Path
import adapter.client
ours = [name for name, module in sys.modules.items() if name.startswith("adapter.") and not hasattr(module, "__path__")]
print(*sorted(name for name in ours if not name.startswith("adapter.rpc.")))
print(*sorted(sys.modules))
"""


def test_every_public_name_is_there() -> None:
    """Names that are imported lazily included."""
    for name in adapter.client.__all__:
        assert getattr(adapter.client, name).__name__ == name
    assert not hasattr(adapter.client, "OffsetStores")


def test_importing_it_loads_little() -> None:
    """It loads no store, no settings and no command."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    ours, everything = (line.split() for line in ended.stdout.splitlines())
    assert len(ours) <= MODULES_MAX, ours
    assert not {*NOT_LOADED} & {*everything}


def test_the_package_says_that_it_is_typed() -> None:
    """Else mypy and pyright check nothing of what a consumer does with the client (PEP 561)."""
    assert Path(adapter.client.__file__).parents[1].joinpath("py.typed").is_file()
