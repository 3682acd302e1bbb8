"""`offset-adapter config`: the commented configuration files, from a checkout and from an installed wheel."""

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import adapter
from adapter.cli.main import cli
from adapter.cli.process.config import KINDS, file_of

ROOT = Path(adapter.__file__).parents[1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_printed_file_is_that_of_the_checkout_byte_for_byte(kind: str) -> None:
    """`offset-adapter config adapter > adapter.toml` makes a file that is kept and edited."""
    ran = CliRunner().invoke(cli, ["config", kind])
    assert ran.exit_code == 0, ran.output
    assert ran.stdout_bytes == (ROOT / "config" / f"{kind}.toml").read_bytes()


def test_each_file_of_config_has_its_kind() -> None:
    """One that is added is printed, too."""
    assert {file.name for file in (ROOT / "config").iterdir()} == {f"{kind}.toml" for kind in KINDS}


def test_the_wheel_brings_the_files_to_where_the_command_looks_for_them(tmp_path: Path) -> None:
    """By pyproject.toml, which the tests of builds and releases check with real wheels."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"config": "adapter/config"}
    package = tmp_path / "site-packages" / "adapter"
    (package / "config").mkdir(parents=True)
    assert file_of("meta", package) == package / "config" / "meta.toml"
    assert file_of("meta", ROOT / "adapter") == ROOT / "config" / "meta.toml"
