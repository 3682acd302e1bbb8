"""Rows of the Meta Service's replies: what no adapter takes is left out, what no Meta Service stores is no answer."""

from typing import Any

import pytest

from adapter.errors import MetaUnavailableError
from adapter.meta.packed import Chunk, merge_outcomes
from adapter.meta.wire import outcomes_of, row_of
from adapter.model.codec import encode_key, encode_record
from adapter.model.records import EPOCH_MAX, OffsetRecord, Run, SaveEntry
from adapter.rpc import meta_pb
from tests.unit.helpers import key, record

Row = meta_pb.GetOffsetDataReplyOffset
LONGEST = "x" * 255


@pytest.mark.parametrize("name", ["s", LONGEST, "\u8bdd" * 85, "a b", "\u00a0"])
def test_a_name_that_an_adapter_takes_is_read(name: str) -> None:
    """Up to 255 bytes, without control characters."""
    assert row_of(key(name), Row(offset=5, epoch=2, topic=LONGEST)) == (key(name), record(5, 2, topic=LONGEST, committed_at_ms=0))


@pytest.mark.parametrize("name", ["", "x" * 256, "\u8bdd" * 86, "a\0b", "\x85"])
def test_a_name_that_no_adapter_takes_is_left_out(name: str) -> None:
    """Of a shard or of a group, as a list may have it; of a topic only the label is."""
    assert row_of(key(name), Row(offset=5)) is None
    assert row_of(key(group=name), Row(offset=5)) is None
    assert row_of(key(), Row(offset=5, epoch=1, topic=name)) == (key(), record(5, committed_at_ms=0))


IMPOSSIBLE = [
    (OffsetRecord(EPOCH_MAX + 1, 5), "the epoch 9223372036854775808"),
    (OffsetRecord(1, 5, metadata="\u8bdd" * 1_366), "4098 bytes of metadata"),
]


@pytest.mark.parametrize(("found", "problem"), [*IMPOSSIBLE, (OffsetRecord(1, 5, topic="t\n"), "a topic that is no name")])
async def test_a_stored_record_that_cannot_be_is_no_answer_to_a_save(found: OffsetRecord, problem: str) -> None:
    """Taken over, it could not be stored, or not be reset any more."""
    entry = SaveEntry(key(), record(4))
    fields: dict[str, Any] = {"epoch": found.epoch, "offset": found.offset, "metadata": found.metadata, "topic": found.topic}
    row = meta_pb.SaveOffsetResult(status=meta_pb.SaveOffsetResult.SUPERSEDED, **fields)
    with pytest.raises(MetaUnavailableError, match=problem):
        await outcomes_of([entry], meta_pb.SaveOffsetDataReply(results=[row]))
    chunk = Chunk([Run(key().group_key, ["s"], [(record(4), 1, encode_key(key()))])])
    standing = meta_pb.MergeOffsetDataReply.Standing(status=meta_pb.SaveOffsetResult.SUPERSEDED, record=encode_record(found))
    with pytest.raises(MetaUnavailableError, match=problem):
        await merge_outcomes(chunk, meta_pb.MergeOffsetDataReply(superseded=1, standing=[standing]))


@pytest.mark.parametrize(("found", "problem"), IMPOSSIBLE)
def test_a_record_that_cannot_be_is_no_answer_to_a_read(found: OffsetRecord, problem: str) -> None:
    """As with a save."""
    with pytest.raises(MetaUnavailableError, match=f"answered for default/g/s with {problem}"):
        row_of(key(), Row(epoch=found.epoch, offset=found.offset, metadata=found.metadata))


async def test_an_applied_entry_in_an_epoch_that_cannot_be_is_no_answer() -> None:
    """The row has only the epoch."""
    row = meta_pb.SaveOffsetResult(status=meta_pb.SaveOffsetResult.APPLIED, epoch=EPOCH_MAX + 1)
    with pytest.raises(MetaUnavailableError, match="the epoch 9223372036854775808"):
        await outcomes_of([SaveEntry(key(), record(4))], meta_pb.SaveOffsetDataReply(results=[row]))
