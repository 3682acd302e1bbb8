"""Calls and replies: none is left out, and the promises hold on each example and on some changed ones."""

from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from adapter import rpc
from adapter.meta import client
from adapter.model.records import OffsetRecord
from adapter.rpc import meta_pb, offsets_pb
from adapter.sidecar.api.offset_service import OffsetService
from tests.fuzz import mutations, running
from tests.fuzz.replies import META_REPLIES, OTHER_REPLIES, REPLIES
from tests.fuzz.rpc_seeds import EXAMPLES, META, METADATA, OFFSET_STORE
from tests.fuzz.rpcs import RPCS, SERVICES, UNCALLED, methods_of, rpc_seeds
from tests.fuzz.targets import TARGETS

MESSAGES = [name for name in rpc.__all__ if name.endswith("_pb")]


def test_each_service_has_a_target_or_a_reason_why_not() -> None:
    """Also one that is new."""
    files = [getattr(rpc, name).DESCRIPTOR for name in MESSAGES]
    services = {service.full_name for file in files for service in file.services_by_name.values()}
    assert services == {*SERVICES.values(), *UNCALLED}
    assert not UNCALLED.keys() & SERVICES.values()


@pytest.mark.parametrize("service", SERVICES.values())
def test_each_method_has_examples(service: str) -> None:
    """Of its own request, and none is empty unless its request has no fields."""
    assert [method.name for method in methods_of(service)] == list(EXAMPLES[service])
    for method in methods_of(service):
        requests = EXAMPLES[service][method.name]
        assert {request.DESCRIPTOR.full_name for request in requests} == {method.input_type.full_name}
        assert any(request.ListFields() for request in requests) is bool(method.input_type.fields)


def test_each_reply_of_the_meta_service_is_read_or_has_a_reason_why_not() -> None:
    """By an adapter, which has another way with RobustMQ's."""
    assert {*(name for name, _ in META_REPLIES), *OTHER_REPLIES} == {
        method.name for service in (META, METADATA) for method in methods_of(service)
    }
    assert not OTHER_REPLIES.keys() & {name for name, _ in META_REPLIES}


@pytest.mark.parametrize("target", RPCS)
def test_the_promises_hold_on_each_example(target: str) -> None:
    """Alone."""
    for data in rpc_seeds(target):
        TARGETS[target](data)


@pytest.mark.parametrize("target", [*RPCS, *REPLIES])
def test_the_promises_hold_on_some_changed_inputs(target: str) -> None:
    """`python -m tests.fuzz.mutations` goes on."""
    for data in mutations.inputs(target, 20, 5):
        TARGETS[target](data)


async def _fails(_self: Any, _request: Any, _context: Any) -> Any:
    raise KeyError("names")


async def _is_away(_self: Any, _request: Any, context: Any) -> Any:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "try again")


async def _stores_all_the_same(self: Any, request: Any, context: Any) -> Any:
    await self.commits.commit(request)
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "groups: are too many")


async def _never_ends(_self: Any, request: Any, _context: Any) -> Any:
    return offsets_pb.ListOffsetsReply(next_page_token=request.page_token or b"first")


NEW = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="new", shard_names=["s"], offsets=[1])])
READ = offsets_pb.ReadOffsetsRequest()
BROKEN = [
    ("ReadOffsets", READ, _fails, "names"),
    ("ReadOffsets", READ, _is_away, "try again"),
    ("CommitOffsets", NEW, _stores_all_the_same, "groups: are too many"),
    ("ListOffsets", offsets_pb.ListOffsetsRequest(), _never_ends, "the same page again"),
]


@pytest.mark.parametrize(("method", "request_", "handler", "problem"), BROKEN)
def test_a_call_that_breaks_a_promise_is_found(
    monkeypatch: pytest.MonkeyPatch, method: str, request_: Message, handler: Any, problem: str
) -> None:
    """Another error, another status, a refusal of what was stored, pages without an end."""
    monkeypatch.setattr(OffsetService, method, handler)
    place = [each.name for each in methods_of(OFFSET_STORE)].index(method)
    with pytest.raises((AssertionError, KeyError), match=problem):
        TARGETS["offset_store"](bytes([place]) + request_.SerializeToString())


def test_a_reply_that_ends_the_adapter_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a name that cannot be stored, taken as it is."""
    monkeypatch.setattr(client, "row_of", lambda key, item: (key, OffsetRecord(1, item.offset)))
    group = meta_pb.BatchGetOffsetDataReply.Group()
    group.offsets.add(shard_name="x" * 256, offset=5)
    place = META_REPLIES.index(("BatchGetOffsetData", True))
    with pytest.raises(BaseExceptionGroup):
        TARGETS["meta_replies"](bytes([place, 0, 0]) + meta_pb.BatchGetOffsetDataReply(groups=[group]).SerializeToString())


def test_after_the_end_an_input_begins_anew() -> None:
    """Others of the same process may fuzz on."""
    data = next(iter(rpc_seeds("offset_store")))
    for _ in range(2):
        RPCS["offset_store"](data)
        running.close()
