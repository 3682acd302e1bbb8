"""A flush is cut into commits: nothing is left out or put in another order, whatever its size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import InvalidInputError
from adapter.model.records import GroupKey
from adapter.rpc import meta_pb
from adapter.sidecar.front.save_parts import PART_BYTES, PIECE, check, is_kept_here, parts, pieces

groups = st.lists(
    st.tuples(
        st.sampled_from(["g", "h", "large" * 40]),
        st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 9)), max_size=4),
    ),
    max_size=400,
)


def _request(rows: list[tuple[str, list[tuple[str, int]]]]) -> meta_pb.SaveOffsetDataRequest:
    request = meta_pb.SaveOffsetDataRequest(cluster_name="unused")
    for group, shards in rows:
        made = request.offsets.add(group=group, tenant="t")
        for shard, offset in shards:
            made.offsets.add(shard_name=shard, offset=offset, topic="x")
    return request


@given(groups)
def test_the_pieces_applied_in_order_are_the_request(rows: list[tuple[str, list[tuple[str, int]]]]) -> None:
    """As one after the other would be; no piece is larger than a commit that is decided at once."""
    expected = {(group, shard): offset for group, shards in rows for shard, offset in shards}
    found: dict[tuple[str, str], int] = {}
    for part in parts(_request(rows).SerializeToString()):
        for piece in pieces(part):
            assert len(piece) + sum(map(len, piece.values())) <= PIECE + 1
            found.update({(group.group, shard): row.offset for group, rows_ in piece.items() for shard, row in rows_.items()})
    assert found == expected


def test_a_large_request_is_parsed_in_parts() -> None:
    """Each of a bounded size, but for one group, which is one part."""
    data = _request([(f"group-{at}", [("s", 1)]) for at in range(5_000)]).SerializeToString()
    found = [part.ByteSize() for part in parts(data)]
    assert sum(found) == len(data)
    assert max(found) < PART_BYTES + 100


@given(st.binary(max_size=200))
def test_bytes_that_are_no_request_are_refused(data: bytes) -> None:
    """Never with another error."""
    try:
        list(parts(data))
    except InvalidInputError:
        return
    meta_pb.SaveOffsetDataRequest.FromString(data)


def test_a_request_that_is_cut_off_is_refused() -> None:
    """Not taken as a shorter one."""
    data = _request([("g", [("a", 1)])]).SerializeToString()
    for broken in (data[:-1], bytes(6)):  # the other one has no field of this number
        with pytest.raises(InvalidInputError, match="SaveOffsetDataRequest: cannot be parsed"):
            list(parts(broken))


def test_an_empty_request_is_refused() -> None:
    """As RobustMQ refuses it."""
    (empty,) = parts(b"")
    with pytest.raises(InvalidInputError, match="offsets: is empty"):
        check(empty)


@pytest.mark.parametrize(
    ("group", "shard", "kept"), [("g", "a/b", True), ("a/b", "s", False), ("g", "\x00", False), ("g" * 256, "s", False)]
)
def test_names_that_the_adapter_does_not_take(group: str, shard: str, kept: bool) -> None:
    """They are RobustMQ's to keep."""
    row = meta_pb.SaveOffsetDataRequestOffset(shard_name=shard, topic="t")
    assert is_kept_here(GroupKey("t", group), {shard: row}) is kept
