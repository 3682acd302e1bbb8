"""Requests of saves as entries."""

import pytest

from adapter.meta.wire import save_entries
from adapter.metaservice.engine import Overwrite
from adapter.model.records import SaveEntry
from adapter.rpc import meta_pb

NOW_MS = 1_000


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        ({}, Overwrite),
        ({"expected_offset": 3}, Overwrite),
        ({"topic": "t", "partition": 1}, Overwrite),
        ({"epoch": 1}, SaveEntry),
        ({"committed_at_ms": 1}, SaveEntry),
        ({"tombstone": True}, SaveEntry),
    ],
)
def test_only_an_entry_without_epoch_and_time_is_bare(item: dict[str, int], kind: type[SaveEntry]) -> None:
    """An adapter that is cut off sends no epoch either, but always a time: it must not take a group back."""
    offset = meta_pb.SaveOffsetDataRequestOffset(shard_name="s", offset=5, **item)  # type: ignore[arg-type]
    request = meta_pb.SaveOffsetDataRequest(offsets=[meta_pb.SaveOffsetData(group="g", offsets=[offset])])
    (entry,) = save_entries(request, NOW_MS, Overwrite)
    assert type(entry) is kind
    assert entry.record.committed_at_ms == item.get("committed_at_ms", NOW_MS)
    (plain,) = save_entries(request, NOW_MS)
    assert (type(plain), plain) == (SaveEntry, entry)
