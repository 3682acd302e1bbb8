"""The manifest of a snapshot: it comes back as it was, and one that cannot be read is named."""

import pytest

from adapter.errors import StoreDamagedError, StoreVersionError
from adapter.model.snapshots import Manifest

WHOLE = Manifest("c", 1_700_000_000_123, 3, 1, ("part-00000.parquet", "part-00001.parquet"))


def test_a_manifest_comes_back_as_it_was() -> None:
    """With every field."""
    assert Manifest.decode(WHOLE.encode(), "x") == WHOLE


@pytest.mark.parametrize(
    "bad",
    [b"", b"{}", b"[]", WHOLE.encode()[:-20], WHOLE.encode().replace(b"records", b"record"), WHOLE._replace(files=()).encode()],
)
def test_a_damaged_manifest_is_named(bad: bytes) -> None:
    """By its path."""
    with pytest.raises(StoreDamagedError, match=r"^data/x: is no manifest of a snapshot"):
        Manifest.decode(bad, "data/x")


def test_a_manifest_of_a_later_version_is_refused() -> None:
    """Its fields may mean something else."""
    with pytest.raises(StoreVersionError, match=r"has version 2.*upgrade"):
        Manifest.decode(WHOLE.encode().replace(b'"version": 1', b'"version": 2'), "x")
