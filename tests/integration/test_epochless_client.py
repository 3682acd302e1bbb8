"""The way to servers of both kinds: how the client finds out which one answers, and what it sends to one without epochs."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from adapter.errors import MetaUnavailableError, RefusedError
from adapter.meta.client import GrpcMetaClient
from adapter.meta.endpoints import OtherKindError
from adapter.meta.epochless import CONTENDED, ROUNDS, Saver
from adapter.meta.wire import save_request
from adapter.model.records import GroupKey, OffsetKey, SaveEntry, SaveOutcome, Status, taken_up
from adapter.rpc import meta_pb
from adapter.testing.processes import ServiceProcess, ended, free_port, meta_process
from tests.dialect import Failure, RobustMeta, failing, robust_meta
from tests.integration.helpers import PATIENCE_S, key, meta_rpc, meta_section, record, stored_in
from tests.unit.helpers import whole_groups

A, B = key("a"), key("b")
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
TOMBSTONE = record(0, 2**32, live=False)


@pytest.fixture
def robust() -> Iterator[RobustMeta]:
    """A running server without epochs."""
    with robust_meta() as service:
        yield service


def _every(_: OffsetKey) -> bool:
    return True


def _statuses(outcomes: Sequence[SaveOutcome]) -> list[Status]:
    return [outcome.status for outcome in outcomes]


def _moved(robust: RobustMeta, where: OffsetKey, *offsets: int) -> Callable[[str, Any], None]:
    """Another broker saves these, one before each save of ours that is applied."""
    waiting = list(offsets)

    def before(name: str, _: Any) -> None:
        if name == "SaveOffsetData" and waiting:
            robust.offsets[where] = waiting.pop(0)

    return before


async def _answered(call: Callable[[], Awaitable[object]]) -> None:
    """Call again as long as nobody answers; the first try may meet what is left of a connection."""
    while True:
        try:
            await call()
        except OtherKindError:
            raise
        except MetaUnavailableError:
            continue
        return


async def test_nothing_is_saved_before_the_kind_of_the_server_is_known(robust: RobustMeta) -> None:
    """The first save would overwrite what was never compared: it is not sent, and says so."""
    async with GrpcMetaClient.open(meta_section(robust.address)) as client:
        assert client.kind.knows_epochs
        with pytest.raises(OtherKindError, match=r"knows no epochs.*nothing was sent"):
            await client.save([SaveEntry(A, record(7))])
        assert (robust.saves, client.kind.knows_epochs, client.available) == ([], False, True)
        assert _statuses(await client.save([SaveEntry(A, record(7, 3)), SaveEntry(B, record(8, 0))])) == [Status.APPLIED] * 2
        assert robust.offsets == {A: 7, B: 8}


async def test_a_question_for_nothing_finds_out_who_is_there(robust: RobustMeta) -> None:
    """A recovery of an empty store asks it: it is only done when somebody answered (9)."""
    async with GrpcMetaClient.open(meta_section(robust.address, timeout_ms=1000)) as client:
        assert await client.get([]) == {}
        assert not client.kind.knows_epochs
        robust.stop()
        with pytest.raises(MetaUnavailableError):
            await client.get([])
        assert not client.available


async def test_groups_are_read_one_by_one_and_their_offsets_have_no_epoch(robust: RobustMeta) -> None:
    """UNIMPLEMENTED is no outage."""
    robust.offsets = {A: 7, key("u", "h"): 2}
    async with GrpcMetaClient.open(meta_section(robust.address)) as client:
        groups = await whole_groups(client, *(GroupKey("default", name) for name in ("g", "h", "none")))
        assert groups == [{A: record(7, 0)}, {key("u", "h"): record(2, 0)}, {}]
        assert await client.get([A, key("absent")]) == {A: record(7, 0)}
        assert robust.reads == [("default", "g"), ("default", "h"), ("default", "none"), ("default", "g")]
        assert client.available


async def test_a_mismatch_of_one_entry_is_told_of_all_that_had_an_expectation(robust: RobustMeta) -> None:
    """`committed` says not which; the matching ones are written nevertheless, and the plain ones."""
    robust.offsets = {A: 5}
    async with GrpcMetaClient.open(meta_section(robust.address)) as client:
        await client.get([])
        entries = [SaveEntry(A, record(9), 4), SaveEntry(B, record(8), 0), SaveEntry(key("c"), record(1))]
        outcomes = await client.save(entries)
        assert _statuses(outcomes) == [Status.CONFLICT, Status.CONFLICT, Status.APPLIED]
        assert robust.offsets == {A: 5, B: 8, key("c"): 1}
        assert _statuses(await client.save([SaveEntry(A, record(9), 5)])) == [Status.APPLIED]


async def test_a_tombstone_is_never_sent(robust: RobustMeta) -> None:
    """Such a server would keep it as the offset 0."""
    async with GrpcMetaClient.open(meta_section(robust.address)) as client:
        await client.get([])
        with pytest.raises(RefusedError, match="stores only offsets and would store a tombstone as offset 0"):
            await client.save([SaveEntry(A, TOMBSTONE), SaveEntry(B, record(1))])
        assert robust.saves == []


async def test_a_tombstone_that_gets_there_by_mistake_is_refused_there(robust: RobustMeta) -> None:
    """It has no topic, which RobustMQ requires. The next save that is answered tells who is there."""
    async with GrpcMetaClient.open(meta_section(robust.address)) as client:
        await client.get([])
        client._endpoints.set_kind(epochs=True)
        with pytest.raises(RefusedError, match="topic: is empty"):
            await client.save([SaveEntry(A, TOMBSTONE)])
        assert robust.offsets == {}
        await client.save([SaveEntry(B, record(1))])
        assert not client.kind.knows_epochs


async def test_a_server_that_is_replaced_by_one_without_epochs_is_noticed_by_its_answer(directory: Path) -> None:
    """At the same address: one save was meant for the other kind, and written plainly. Documented. Its tombstones are refused."""
    meta = meta_process(directory)
    with ended(meta), robust_meta() as robust:
        robust.stop()
        meta.start()
        async with GrpcMetaClient.open(meta_section(meta.address, timeout_ms=2000)) as client:
            await client.save([SaveEntry(A, record(7, 2))])
            meta.kill()
            robust.port = meta.port
            robust.start()
            await _answered(lambda: client.save([SaveEntry(A, record(5, 3))]))
            assert (robust.offsets, client.kind.knows_epochs) == ({A: 5}, False)


async def test_a_server_that_learns_epochs_is_noticed_by_its_answer(directory: Path) -> None:
    """A rolling upgrade at the same address: results show it to a save, epochs to a read, which is done anew then."""
    with robust_meta() as robust, ended(meta := meta_process(directory, port=robust.port)):
        async with GrpcMetaClient.open(meta_section(robust.address, timeout_ms=2000)) as client:
            await client.get([])
            before = client.kind.knows_epochs
            robust.stop()
            meta.start()
            await _answered(lambda: client.save([SaveEntry(A, record(5, 3)), SaveEntry(B, record(4))]))
            assert (before, client.kind.knows_epochs) == (False, True)
            await client.save([SaveEntry(B, TOMBSTONE)])
            client._endpoints.set_kind(epochs=False)
            [found] = await whole_groups(client, A.group_key)
            assert {name: held.position for name, held in found.items()} == {A: (3, 5), B: TOMBSTONE.position}
            assert client.kind.knows_epochs


async def test_results_in_an_answer_show_that_epochs_are_known(meta: ServiceProcess) -> None:
    """Behind one address (a load balancer) both kinds may answer: each answer is taken for what it is."""
    async with GrpcMetaClient.open(meta_section(meta.address)) as client:
        await client.get([])
        client._endpoints.set_kind(epochs=False)
        assert (await client.save([SaveEntry(A, record(5, 3))]))[0] == SaveOutcome(Status.APPLIED, record(5, 3))
        assert client.kind.knows_epochs


@pytest.mark.parametrize("epochs_first", [True, False])
async def test_a_failover_to_the_other_kind_sends_nothing_that_was_meant_for_the_first(
    robust: RobustMeta, meta: ServiceProcess, epochs_first: bool
) -> None:
    """The caller decides again: by then it knows which one it speaks to."""
    dead = f"127.0.0.1:{free_port()}"
    order = [dead, robust.address] if epochs_first else [dead, meta.address]
    async with GrpcMetaClient.open(meta_section(*order)) as client:
        client._endpoints._epochs[dead] = epochs_first
        with pytest.raises(OtherKindError):
            await client.save([SaveEntry(A, record(7))])
        assert (client.endpoint, client.kind.knows_epochs) == (order[1], not epochs_first)
        assert (robust.saves, stored_in(meta)) == ([], {})


async def test_a_read_that_moves_to_a_server_with_epochs_sees_its_tombstones(robust: RobustMeta, meta: ServiceProcess) -> None:
    """RobustMQ's call does not show them, and without them a deleted key would count as never there (7)."""
    with meta_rpc(meta.address) as stub:
        stub.SaveOffsetData(await save_request("", [SaveEntry(A, record(7))]), timeout=PATIENCE_S)
        stub.DeleteOffsetData(meta_pb.DeleteOffsetDataRequest(tenant="default", group="g"), timeout=PATIENCE_S)
    async with GrpcMetaClient.open(meta_section(robust.address, meta.address)) as client:
        await client.get([])
        assert not client.kind.knows_epochs
        robust.stop()
        [found] = await whole_groups(client, GroupKey("default", "g"))
        assert (found[A].epoch, found[A].live) == (taken_up(2**32), False)


async def test_what_another_broker_saves_between_the_read_and_the_push_stays(robust: RobustMeta) -> None:
    """The push expects what was read. On the mismatch it is read and compared again."""
    robust.offsets = {A: 5}
    robust.before = _moved(robust, A, 200)
    async with GrpcMetaClient.open(meta_section(robust.address)) as client:
        await client.get([])
        assert await Saver(client).save([SaveEntry(A, record(150))], uncompared=_every) == [
            SaveOutcome(Status.SUPERSEDED, record(200))
        ]
        assert robust.offsets == {A: 200}
        assert robust.conditional() == [{"a": (5, 150)}]


async def test_one_that_moved_and_is_still_smaller_is_pushed_with_the_next_try(robust: RobustMeta) -> None:
    """The larger offset wins, whoever is first."""
    robust.before = _moved(robust, A, 7)
    async with GrpcMetaClient.open(meta_section(robust.address)) as client:
        await client.get([])
        assert _statuses(await Saver(client).save([SaveEntry(A, record(150))], uncompared=_every)) == [Status.APPLIED]
        assert robust.conditional() == [{"a": (0, 150)}, {"a": (7, 150)}]
        assert robust.offsets == {A: 150}


async def test_a_contended_key_does_not_hold_up_the_others(robust: RobustMeta) -> None:
    """It is given up after a few rounds, with CONFLICT, and alone."""
    robust.before = _moved(robust, A, *range(1, 100))
    async with GrpcMetaClient.open(meta_section(robust.address)) as client:
        await client.get([])
        outcomes = await Saver(client).save([SaveEntry(A, record(150)), SaveEntry(B, record(9))], uncompared=_every)
        assert _statuses(outcomes) == [Status.CONFLICT, Status.APPLIED]
        assert outcomes[0].message == CONTENDED
        assert robust.offsets == {A: ROUNDS, B: 9}
        assert [set(push) for push in robust.conditional()] == [{"a", "b"}, *[{"a"}] * (ROUNDS - 1)]


async def test_a_push_whose_answer_was_lost_is_found_done(robust: RobustMeta) -> None:
    """The next comparison sees the own value: nothing is sent a second time (4)."""

    def applied_then_lost(name: str, request: Any) -> None:
        if name == "SaveOffsetData":
            robust._save(request)
            raise Failure(UNAVAILABLE)

    async with GrpcMetaClient.open(meta_section(robust.address)) as client:
        await client.get([])
        robust.before = applied_then_lost
        with pytest.raises(MetaUnavailableError):
            await Saver(client).save([SaveEntry(A, record(150, metadata="m"))], uncompared=_every)
        assert await Saver(client).save([SaveEntry(A, record(150, metadata="m"))], uncompared=_every) == [
            SaveOutcome(Status.APPLIED, record(150, metadata="m"))
        ]
        assert len(robust.saves) == 1


async def test_a_server_without_compare_and_set_overwrites_and_is_believed_by_a_second_look() -> None:
    """An older RobustMQ ignores the expectation and answers with nothing."""
    with robust_meta(committed=False) as old:
        old.offsets = {A: 5, B: 9}
        async with GrpcMetaClient.open(meta_section(old.address)) as client:
            await client.get([])
            outcomes = await Saver(client).save([SaveEntry(A, record(7)), SaveEntry(B, record(8))], uncompared=_every)
            assert outcomes == [SaveOutcome(Status.APPLIED, record(7)), SaveOutcome(Status.SUPERSEDED, record(9))]
            assert old.offsets == {A: 7, B: 9}


async def test_a_rewind_goes_over_what_stands_if_nothing_is_known_of_what_was_saved_last(robust: RobustMeta) -> None:
    """A larger offset may be the own one from before it: what stands is read, and expected."""
    robust.offsets = {A: 160}
    async with GrpcMetaClient.open(meta_section(robust.address)) as client:
        await client.get([])
        assert _statuses(await Saver(client).save([SaveEntry(A, record(30, 2))])) == [Status.APPLIED]
        assert (robust.offsets, robust.conditional()) == ({A: 30}, [{"a": (160, 30)}])


async def test_a_larger_offset_of_another_writer_stands_over_a_rewind(robust: RobustMeta) -> None:
    """It is known what was saved last, so the larger one is somebody else's (2)."""
    robust.offsets = {A: 160}
    async with GrpcMetaClient.open(meta_section(robust.address)) as client:
        await client.get([])
        saver = Saver(client)
        assert _statuses(await saver.save([SaveEntry(A, record(161))])) == [Status.APPLIED]
        robust.offsets[A] = 300
        assert await saver.save([SaveEntry(A, record(30, 2))]) == [SaveOutcome(Status.SUPERSEDED, record(300, 2))]
        assert robust.offsets == {A: 300}


async def test_a_record_of_unknown_epoch_was_compared_with_nothing(robust: RobustMeta) -> None:
    """Its group could not be loaded: what stands may be larger, and then it stays. Either way its epoch is known afterwards."""
    robust.offsets = {A: 100, B: 5}
    async with GrpcMetaClient.open(meta_section(robust.address)) as client:
        await client.get([])
        entries = [SaveEntry(A, record(5, 0)), SaveEntry(B, record(5, 0)), SaveEntry(key("c"), record(5, 0))]
        assert await Saver(client).save(entries) == [
            SaveOutcome(Status.SUPERSEDED, record(100)),
            SaveOutcome(Status.APPLIED, record(5)),
            SaveOutcome(Status.APPLIED, record(5)),
        ]
        assert robust.offsets == {A: 100, B: 5, key("c"): 5}


async def test_a_tombstone_is_done_where_nothing_stands_and_loses_where_something_does(robust: RobustMeta) -> None:
    """Absent is all that such a server knows of a delete; what is there was committed since, as far as anybody can tell."""
    robust.offsets = {A: 100}
    async with GrpcMetaClient.open(meta_section(robust.address)) as client:
        await client.get([])
        outcomes = await Saver(client).save([SaveEntry(A, TOMBSTONE), SaveEntry(B, TOMBSTONE)])
        assert outcomes == [SaveOutcome(Status.SUPERSEDED, record(100, taken_up(2**32))), SaveOutcome(Status.APPLIED, TOMBSTONE)]
        assert robust.saves == []


async def test_a_save_that_fails_half_way_is_an_outage(robust: RobustMeta) -> None:
    """RobustMQ answers INTERNAL for everything, also for a write that its leader would have taken: another endpoint is tried."""
    with robust_meta() as leader:
        robust.before = failing(grpc.StatusCode.INTERNAL)
        async with GrpcMetaClient.open(meta_section(robust.address, leader.address)) as client:
            await client.get([])
            assert _statuses(await client.save([SaveEntry(A, record(1))])) == [Status.APPLIED]
            assert (client.endpoint, leader.offsets, robust.offsets) == (leader.address, {A: 1}, {})


async def test_what_is_sent_suits_old_and_new_robustmq() -> None:
    """`cluster_name` and `namespace` for the older, `tenant` and a topic for the newer; one message for each group."""
    entries = [SaveEntry(key("s", "g", "n"), record(1)), SaveEntry(key("t", "g", "n"), record(2, topic="x"))]
    request = await save_request("c1", entries)
    assert (request.cluster_name, len(request.offsets)) == ("c1", 1)
    assert (request.offsets[0].tenant, request.offsets[0].group) == ("n", "g")
    rows = [(row.namespace, row.shard_name, row.topic, row.offset) for row in request.offsets[0].offsets]
    assert rows == [("n", "s", "s", 1), ("n", "t", "x", 2)]
