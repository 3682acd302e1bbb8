"""What a person is told who lacks the packages of an extra."""

from importlib import metadata

import pytest

from adapter.runtime.version import install_extra


def test_the_command_installs_the_packages_themselves() -> None:
    """The package of this name need not be in a registry."""
    assert install_extra("journal") == "pip install 'pyarrow<27,>=22'"
    assert install_extra("otel").startswith("pip install 'opentelemetry-exporter-otlp-proto-grpc<2,>=1.45' ")


def test_a_source_tree_that_nobody_installed_installs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows no requirements."""

    def requires(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert install_extra("journal") == "pip install '.[journal]', in the checkout"
