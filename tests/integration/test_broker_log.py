"""The way to a broker's log over real gRPC: what it answers, and every way in which it does not."""

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import anyio
import grpc
import grpc.aio
import pytest

from adapter.client.broker_log import BrokerLog, BrokerLogSection, GrpcBrokerLog, NoBrokerLog, opened
from adapter.errors import BrokerLogError, TransientError
from adapter.model.bounds import ShardKey
from adapter.model.records import U64_MAX
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.serving.statuses import status_of
from adapter.testing.broker_log import serving
from adapter.testing.processes import free_port
from tests.integration.brokers import ScriptedBroker, broker_without_methods, hanging_broker, memory_log
from tests.integration.helpers import PATIENCE_S

N = "default"
SHORT_MS = 100  # a deadline for a broker that never answers


class Question(NamedTuple):
    """One of the two methods: how it is asked, and what a broker answers about these shards."""

    ask: Callable[[BrokerLog, Sequence[str]], Awaitable[dict[str, Any]]]
    answer: Callable[[Sequence[str]], Any]


QUESTIONS = {
    "bounds": Question(
        lambda log, shards: log.bounds(N, shards),
        lambda shards: offsets_pb.GetBoundsReply(
            bounds=[offsets_pb.GetBoundsReply.Bounds(shard=shard, low=1, high=2) for shard in shards]
        ),
    ),
    "offsets_for_time": Question(
        lambda log, shards: log.offsets_for_time(N, shards, 5),
        lambda shards: offsets_pb.GetOffsetsForTimeReply(
            found=[offsets_pb.GetOffsetsForTimeReply.Found(shard=shard, offset=1) for shard in shards]
        ),
    ),
}


@pytest.fixture(params=QUESTIONS)
def question(request: pytest.FixtureRequest) -> Question:
    """Each of the two methods."""
    return QUESTIONS[request.param]


def client_of(address: str, **settings: Any) -> AbstractAsyncContextManager[GrpcBrokerLog]:
    """A client of the broker at an address."""
    return GrpcBrokerLog.open(BrokerLogSection(address=address, **settings))


@asynccontextmanager
async def asking(broker: offsets_grpc.BrokerLogServicer, **settings: Any) -> AsyncIterator[tuple[GrpcBrokerLog, str]]:
    """A client of a running broker, and the broker's address."""
    async with serving(broker) as address, client_of(address, **settings) as log:
        yield log, address


async def refusal(question: Question, log: BrokerLog, shards: Sequence[str] = ("s", "t")) -> str:
    """The text of the error that a question ends with."""
    with pytest.raises(BrokerLogError) as caught:
        await question.ask(log, shards)
    return str(caught.value)


async def test_bounds_and_offsets_make_the_round_trip() -> None:
    """An unknown shard is left out, None says that no message is that young, and a trimmed shard begins where it begins."""
    broker = memory_log(s=[10, 20, 30], t=[5], old=[1, 2])
    broker.trim(ShardKey(N, "old"), 1)
    before_ms = time.time_ns() // 1_000_000
    async with asking(broker) as (log, _):
        bounds = await log.bounds(N, ["s", "t", "old", "unknown"])
        assert {shard: row[:2] for shard, row in bounds.items()} == {"s": (0, 3), "t": (0, 1), "old": (1, 2)}
        assert all(before_ms <= row.seen_at_ms <= time.time_ns() // 1_000_000 for row in bounds.values())
        assert await log.offsets_for_time(N, ["s", "t", "old", "unknown"], 20) == {"s": 1, "t": None, "old": None}
        assert await log.bounds("other", ["s"]) == {}


async def test_a_shard_made_anew_begins_at_0() -> None:
    """A broker is asked each time; nothing is remembered of the shard that was there before."""
    broker = memory_log(s=[1, 2, 3])
    async with asking(broker) as (log, _):
        assert (await log.bounds(N, ["s"]))["s"][:2] == (0, 3)
        broker.create(ShardKey(N, "s"))
        assert (await log.bounds(N, ["s"]))["s"][:2] == (0, 0)
        assert await log.offsets_for_time(N, ["s"], 0) == {"s": None}


async def test_the_largest_numbers_pass() -> None:
    """Offsets and times are whole 64 bits."""
    row = offsets_pb.GetBoundsReply.Bounds(shard="s", low=U64_MAX, high=U64_MAX)
    async with asking(ScriptedBroker(lambda *_: offsets_pb.GetBoundsReply(bounds=[row]))) as (log, _):
        assert (await log.bounds(N, ["s"]))["s"][:2] == (U64_MAX, U64_MAX)
    async with asking(memory_log(s=[U64_MAX])) as (log, _):
        assert await log.offsets_for_time(N, ["s"], U64_MAX) == {"s": 0}


async def test_many_shards_are_asked_for_in_chunks(question: Question) -> None:
    """At most 1,000 in a call; each shard once, however often it is named; the answers come together."""
    broker = ScriptedBroker(lambda request, _: question.answer(request.shards))
    shards = [f"s{number}" for number in range(2_500)]
    async with asking(broker) as (log, _):
        found = await question.ask(log, [*shards, *shards])
    assert [len(request.shards) for request in broker.requests] == [1_000, 1_000, 500]
    assert list(found) == shards


async def test_nothing_is_asked_about_no_shards(question: Question) -> None:
    """There is no broker at this address."""
    async with client_of(f"127.0.0.1:{free_port()}") as log:
        assert await question.ask(log, []) == {}


async def test_when_one_chunk_fails_there_is_no_answer(question: Question) -> None:
    """Half of the bounds would look like shards that the broker does not have."""

    def second_fails(request: Any, context: Any) -> Any:
        if "s1999" in request.shards:
            return context.abort(grpc.StatusCode.INTERNAL, "a disk is gone")
        return question.answer(request.shards)

    async with asking(ScriptedBroker(second_fails)) as (log, _):
        assert "a disk is gone" in await refusal(question, log, [f"s{number}" for number in range(2_500)])


async def test_a_broker_that_is_away_is_named_with_the_cause(question: Question) -> None:
    """The error is transient, and a caller of the adapter gets UNAVAILABLE."""
    address = f"127.0.0.1:{free_port()}"
    async with client_of(address) as log:
        text = await refusal(question, log)
    assert text.startswith(f"the broker at {address} cannot be reached: ")
    assert "Connection refused" in text
    assert text.endswith("; is it running, and is broker_log.address right?")
    assert issubclass(BrokerLogError, TransientError)
    assert status_of(BrokerLogError("")) is grpc.StatusCode.UNAVAILABLE


async def test_a_broker_that_comes_later_is_found(question: Question) -> None:
    """The channel connects when it is used, and again after the broker went away and came back."""
    port = free_port()
    async with client_of(f"127.0.0.1:{port}") as log:
        await refusal(question, log)
        for _ in range(2):
            async with serving(memory_log(s=[5]), port):
                assert "s" in await _answered(question, log)
            await refusal(question, log)


async def _answered(question: Question, log: BrokerLog) -> dict[str, Any]:
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                return await question.ask(log, ["s"])
            except BrokerLogError:
                await anyio.sleep(0.02)  # a connection that was lost a moment ago is tried again after a pause


async def test_a_broker_without_the_service_is_told_apart(question: Question) -> None:
    """It speaks gRPC, but not this; which is not a fault that goes away."""
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with client_of(address) as log:
            text = await refusal(question, log)
    finally:
        await server.stop(None)
    assert text.startswith(f"the broker at {address} does not serve offsets.v1.BrokerLog: ")


async def test_a_method_that_the_broker_left_out_is_told_the_same(question: Question) -> None:
    """The generated servicer answers UNIMPLEMENTED for it."""
    async with asking(broker_without_methods()) as (log, address):
        assert (await refusal(question, log)).startswith(f"the broker at {address} does not serve offsets.v1.BrokerLog: ")


async def test_a_broker_that_does_not_answer_in_time_is_given_up(question: Question) -> None:
    """Each call has `timeout_ms`; the text says how to give it more."""
    broker = hanging_broker()
    async with asking(broker, timeout_ms=SHORT_MS) as (log, address):
        text = await refusal(question, log)
    assert text == f"the broker at {address} did not answer within 0.1 s: try again, or raise broker_log.timeout_ms"
    assert len(broker.requests) == 1


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (grpc.StatusCode.CANCELLED, "cannot be reached: by the test; is it running"),
        (grpc.StatusCode.UNAVAILABLE, "cannot be reached: by the test; is it running"),
        (grpc.StatusCode.INVALID_ARGUMENT, "answered INVALID_ARGUMENT: by the test; its own log should say more"),
        (grpc.StatusCode.PERMISSION_DENIED, "answered PERMISSION_DENIED: by the test; its own log should say more"),
        (grpc.StatusCode.NOT_FOUND, "answered NOT_FOUND: by the test; its own log should say more"),
    ],
)
async def test_what_the_broker_says_is_passed_on(question: Question, code: grpc.StatusCode, told: str) -> None:
    """With its address and its status; a status is never a wrong kind of exception here."""
    async with asking(ScriptedBroker(lambda _, context: context.abort(code, "by the test"))) as (log, address):
        assert (await refusal(question, log)).startswith(f"the broker at {address} {told}")


async def test_a_broker_that_talks_at_length_is_cut_short(question: Question) -> None:
    """The text goes on in a header of limited size."""
    broker = ScriptedBroker(lambda _, context: context.abort(grpc.StatusCode.INTERNAL, "x" * 5_000))
    async with asking(broker) as (log, _):
        text = await refusal(question, log)
    assert f"{'x' * 200}..." in text
    assert len(text) < 500


async def test_a_broker_that_fails_inside_is_an_error_of_the_broker(question: Question) -> None:
    """An exception in its code reaches us as UNKNOWN."""

    def crash(*_: Any) -> None:
        raise ZeroDivisionError

    async with asking(ScriptedBroker(crash)) as (log, address):
        assert (await refusal(question, log)).startswith(f"the broker at {address} answered UNKNOWN: ")


@pytest.mark.parametrize(
    ("shards", "problem"),
    [
        (["s", "x"], "shard 'x' was not asked for"),
        (["s", ""], "a row names no shard"),
        (["s", "t", "s"], "shard 's' is in the answer twice"),
        (["\n\x1b[31m"], r"shard '\n\x1b[31m' was not asked for"),
        (["y" * 1_000], f"shard '{'y' * 199}... was not asked for"),
    ],
    ids=["foreign", "nameless", "twice", "control", "long"],
)
async def test_an_answer_about_other_shards_is_refused(question: Question, shards: list[str], problem: str) -> None:
    """By name, and safe to print; nothing of the answer is used."""
    async with asking(ScriptedBroker(lambda *_: question.answer(shards))) as (log, address):
        text = await refusal(question, log)
    assert text == f"the broker at {address} gave an answer that cannot be right: {problem}; nothing of it is used"


async def test_a_shard_of_another_chunk_is_refused_too(question: Question) -> None:
    """Each call is answered for itself."""
    async with asking(ScriptedBroker(lambda *_: question.answer(["s0"]))) as (log, _):
        text = await refusal(question, log, [f"s{number}" for number in range(1_001)])
    assert "shard 's0' was not asked for" in text


async def test_bounds_that_end_before_they_begin_are_refused() -> None:
    """A reset to such an end would lose or repeat everything."""
    row = offsets_pb.GetBoundsReply.Bounds(shard="t", low=7, high=6)
    async with asking(ScriptedBroker(lambda *_: offsets_pb.GetBoundsReply(bounds=[row]))) as (log, _):
        text = await refusal(QUESTIONS["bounds"], log)
    assert "the bounds of shard 't' begin at 7 and end before, at 6" in text


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"\xff\xff\xff\xff", "gave an answer that cannot be right: it is not a message of offsets.v1.BrokerLog; "),
        (bytes(5 * 2**20), "answered RESOURCE_EXHAUSTED: .*larger than max"),
    ],
    ids=["garbage", "huge"],
)
async def test_an_answer_that_is_no_message_is_refused(question: Question, answer: bytes, told: str) -> None:
    """Bytes that are not the reply, or more than gRPC's 4 MiB of them."""

    async def reply(*_: Any) -> bytes:
        return answer

    server = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(reply)
    handlers = {"GetBounds": handler, "GetOffsetsForTime": handler}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("offsets.v1.BrokerLog", handlers),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with client_of(address) as log:
            text = await refusal(question, log)
    finally:
        await server.stop(None)
    assert re.match(f"the broker at {address} {told}", text), text


async def test_a_question_that_is_given_up_is_no_error_of_the_broker(question: Question) -> None:
    """Its caller's scope catches the cancellation as its own, and the log can be asked again."""
    asked = anyio.Event()

    async def never(*_: Any) -> None:
        asked.set()
        await anyio.sleep_forever()

    broker = ScriptedBroker(never)
    async with asking(broker) as (log, _):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancelled_when, asked, tasks.cancel_scope)
            await question.ask(log, ["s"])
        assert tasks.cancel_scope.cancelled_caught
        broker.script = lambda request, _: question.answer(request.shards)
        assert list(await question.ask(log, ["s"])) == ["s"]


async def _cancelled_when(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def test_without_an_address_it_is_said_plainly_what_is_missing(question: Question) -> None:
    """The setting is named; nothing is asked anywhere."""
    async with opened(BrokerLogSection()) as log:
        assert (type(log), log.configured) == (NoBrokerLog, False)
        text = await refusal(question, log, [])
    assert text.startswith("no broker log is configured: set broker_log.address")


async def test_with_an_address_there_is_one() -> None:
    """Opened without a connection."""
    async with opened(BrokerLogSection(address=f"127.0.0.1:{free_port()}")) as log:
        assert (type(log), log.configured) == (GrpcBrokerLog, True)
