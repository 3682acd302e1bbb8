"""The SBOM has what the lock has: no package less, none more, of the same version, with the checksums."""

import copy
from typing import Any

import pytest

from tests.release.sbom import problem

DIGEST = "a" * 64
LOCK = f"anyio==4.16.0 \\\n    --hash=sha256:{DIGEST}\n    # via x\ncoverage[toml]==7.0 \\\n    --hash=sha256:{'b' * 64}\n"
SBOM: dict[str, Any] = {
    "metadata": {"component": {"name": "offset-adapter", "version": "0.1.0"}},
    "components": [
        {"name": "anyio", "version": "4.16.0", "externalReferences": [{"hashes": [{"alg": "SHA-256", "content": DIGEST}]}]},
        {"name": "coverage", "version": "7.0", "hashes": [{"alg": "SHA-256", "content": "b" * 64}]},
    ],
}


def changed(change: Any) -> dict[str, Any]:
    """The SBOM with a change."""
    sbom = copy.deepcopy(SBOM)
    change(sbom)
    return sbom


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda _: None, None),
        (lambda sbom: sbom["metadata"]["component"].update(version="0.2.0"), "of offset-adapter 0.2.0"),
        (lambda sbom: sbom["metadata"].clear(), "of None"),
        (lambda sbom: sbom["components"].pop(), "lacks coverage 7.0"),
        (lambda sbom: sbom["components"][0].update(version="4.15.0"), "lacks anyio 4.16.0"),
        (lambda sbom: sbom["components"].append({"name": "left", "version": "1"}), "more than the lock: left 1"),
        (lambda sbom: sbom["components"][0].update(externalReferences=[]), "lacks 1 checksums"),
    ],
)
def test_an_sbom_that_is_not_the_lock_is_refused(change: Any, text: str | None) -> None:
    """With what is missing, or too much."""
    found = problem(changed(change), LOCK, "0.1.0")
    assert (found is None) if text is None else (found is not None and text in found)
