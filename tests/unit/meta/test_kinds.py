"""The two kinds of Meta Service, without one. That a server of each does what is said of it: tests/contract/test_kinds.py."""

import pytest

from adapter.meta.kinds import OFFSETS_ONLY, WITH_EPOCHS, ServerKind
from adapter.model.records import OffsetRecord
from tests.unit.helpers import record, tombstone


@pytest.mark.parametrize(
    ("kind", "local", "kept"),
    [
        (WITH_EPOCHS, record(5), True),
        (WITH_EPOCHS, record(5, 0), True),
        (WITH_EPOCHS, tombstone(2**32), True),
        (OFFSETS_ONLY, record(5), True),
        (OFFSETS_ONLY, record(0, 2**32), True),
        (OFFSETS_ONLY, tombstone(2**32), False),
        (OFFSETS_ONLY, OffsetRecord(1, 50, live=False), False),
    ],
)
def test_without_epochs_only_tombstones_are_not_kept(kind: ServerKind, local: OffsetRecord, kept: bool) -> None:
    """Whether deleted or expired: that it is absent there is then what it means."""
    assert kind.keeps(local) is kept


def test_an_operator_is_told_only_of_what_is_weaker() -> None:
    """In sentences, as `status` shows them."""
    assert WITH_EPOCHS.weaker == ()
    assert len(set(OFFSETS_ONLY.weaker)) == len(OFFSETS_ONLY.weaker) > 0
