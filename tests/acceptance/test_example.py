"""`make example` in a short form, what it concludes, and the part of it that users copy."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from nats.js.errors import NotFoundError, ServiceUnavailableError

from adapter.client.ack_window import AckWindow
from adapter.client.client import OffsetClient
from adapter.rpc import offsets_pb
from examples.__main__ import exit_code
from examples.broker import Broker
from examples.consumer import BeyondEndError, MissedError, MovedError, Position, messages
from examples.flights import FLIGHTS, QUEUES, Flight, flight_of, read_messages, totals
from examples.ledger import Ledger, Tally
from examples.outcome import Outcome, verdict

ROOT = Path(__file__).parents[2]
LIMIT_S = 280  # far above what it takes
SHORT = ("--messages", "1500", "--kills", "2", "--ack-wait", "1")
SHARD = "flights/0"
ON_TIME, LATE, CANCELLED = Flight("UA", "EWR", 719, -3), Flight("UA", "EWR", 719, 60), Flight("B6", "JFK", 1_576, None)
TRUTH = (ON_TIME, LATE, CANCELLED)


@pytest.mark.release  # a killed client and a killed adapter are also in tests/durability; the parts of the example below
def test_consumers_that_are_killed_process_every_message(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Positions in the adapter, which is killed too, then in NATS: nothing is missing, the totals are right, nothing is left."""
    directory = tmp_path_factory.mktemp("d")  # short enough for the adapter's socket
    process = subprocess.Popen(
        [sys.executable, "-m", "examples", *SHORT],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(directory), "COLUMNS": "80"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output + errors
    assert errors == ""
    rows = _rows(output)
    assert rows["messages"] == rows["processed"] == ["1,500", "1,500"]
    assert rows["missing"] == ["0", "0"]
    assert rows["kills of consumers"] == ["2", "2"]
    assert rows["kills of the adapter"] == ["1", "0"]
    assert "Nothing is missing" in output
    assert list(directory.iterdir()) == []
    assert not [command for command in map(_command, psutil.process_iter()) if str(directory) in command]


def _rows(output: str) -> Mapping[str, list[str]]:
    """The numbers of the table at the end, by the names of its rows."""
    return {" ".join(words[:-2]): words[-2:] for words in map(str.split, output.splitlines()) if len(words) > 2}


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_the_file_has_the_flights_of_a_month() -> None:
    """As data/README.md says; the sums are those of the package that it comes from."""
    flights = [flight_of(data) for _, data in read_messages(FLIGHTS)]
    assert len(flights) == 27_004
    assert [sum(flight.origin == airport for flight in flights) for airport in ("EWR", "JFK", "LGA")] == [9_893, 9_161, 7_950]
    assert sum(flight.delay_min is None for flight in flights) == 521


def test_totals_leave_cancelled_flights_out() -> None:
    """Early ones make up for late ones."""
    assert totals(TRUTH) == {("UA", "EWR"): (2, 57)}


def outcome(directory: Path, flights: Mapping[int, Flight], *, finished: bool = True) -> Outcome:
    """A run whose consumers processed these."""
    ledger = Ledger.open(directory)
    for sequence, flight in flights.items():
        ledger.write(sequence, flight)
    tally = Tally(directory)
    tally.read()
    return Outcome("the adapter", TRUTH, [0, 0, 0], tally, finished=finished)


ALL = dict(enumerate(TRUTH, 1))


@pytest.mark.parametrize(
    ("flights", "finished", "text"),
    [
        ({1: ON_TIME, 3: CANCELLED}, True, "MISSING: 1 "),
        ({1: ON_TIME, 2: LATE}, True, "MISSING: 1 "),
        ({}, False, "MISSING: 3 "),
        ({**ALL, 2: ON_TIME}, True, "WRONG: the totals"),
        ({**ALL, 4: LATE}, True, "WRONG: the totals"),
        (ALL, False, "WRONG: everything was processed, but"),
    ],
)
def test_what_is_not_complete_is_named(tmp_path: Path, flights: Mapping[int, Flight], finished: bool, text: str) -> None:
    """Also a cancelled flight, which adds nothing to the totals; a position that stays behind; a message that never was."""
    found = outcome(tmp_path, flights, finished=finished)
    assert verdict([found]).startswith(text)
    assert exit_code([found]) == 1


def test_only_complete_runs_are_a_success(tmp_path: Path) -> None:
    """Not one that was interrupted, nor none at all."""
    assert exit_code([outcome(tmp_path, ALL)]) == 0
    assert exit_code([]) == exit_code(None) == 1
    assert exit_code(None, interrupted=True) == 130


def test_a_message_that_comes_again_is_a_repeat_and_counts_once(tmp_path: Path) -> None:
    """It changes no total. What is half written is read when it is whole."""
    found = outcome(tmp_path, ALL)
    with (tmp_path / "ledger").open("ab") as file:
        file.write(b"2 UA EWR 719 60\n3 B6 JF")
    found.tally.read()
    assert (found.tally.handled, found.tally.repeats) == (3, 1)
    with (tmp_path / "ledger").open("ab") as file:
        file.write(b"K 1576 -\n")
    found.tally.read()
    assert (found.tally.handled, found.tally.repeats) == (3, 2)
    assert found.complete


async def test_a_message_that_is_lost_on_the_way_ends_the_consumer(tmp_path: Path) -> None:
    """The server counts it as delivered and does not send it again: to the window it would be a gap, and skipped."""
    queue = QUEUES[0]
    async with Broker(tmp_path) as broker:
        await broker.publish([(queue, b"")] * 20)
        stream = broker.stream
        found = messages(stream, queue, 5)
        first = await anext(found)
        assert (first.metadata.sequence.stream, first.metadata.sequence.consumer) == (5, 1)
        elsewhere = await stream.pull_subscribe_bind(first.metadata.consumer, first.metadata.stream)
        assert len(await elsewhere.fetch(3)) == 3
        with pytest.raises(MissedError, match=r"flights\.0: 12 messages were sent, 9 arrived"):
            async with asyncio.timeout(LIMIT_S / 5):
                _ = [message async for message in found]


@pytest.mark.parametrize("start", [22, 1_000])
async def test_a_position_beyond_the_end_of_the_stream_ends_the_consumer(tmp_path: Path, start: int) -> None:
    """The server takes such a start, and sends nothing until its stream has grown so far: the messages before are skipped."""
    queue = QUEUES[0]
    async with Broker(tmp_path) as broker:
        await broker.publish([(queue, b"")] * 20)
        with pytest.raises(BeyondEndError, match=rf"flights\.0: the position is {start:,}, but the last message .* is 20: reset"):
            async with asyncio.timeout(LIMIT_S / 5):
                await anext(messages(broker.stream, queue, start))
        at_the_end = messages(broker.stream, queue, 21)
        reading = asyncio.ensure_future(anext(at_the_end))
        await broker.stream.publish("flights.1", b"")
        await broker.stream.publish("flights.0", b"")
        async with asyncio.timeout(LIMIT_S / 5):
            assert (await reading).metadata.sequence.stream == 22


async def test_a_reader_that_the_server_forgot_ends_the_consumer(tmp_path: Path) -> None:
    """A fetch only finds nothing new then, for ever; nats-server 2.15 answers it with 503."""
    queue = QUEUES[0]
    async with Broker(tmp_path) as broker:
        await broker.publish([(queue, b"")] * 2)
        found = messages(broker.stream, queue, 1)
        first = await anext(found)
        await broker.stream.delete_consumer(first.metadata.stream, first.metadata.consumer)
        with pytest.raises((NotFoundError, ServiceUnavailableError)):
            async with asyncio.timeout(LIMIT_S / 5):
                _ = [message async for message in found]


class Commits:
    """An adapter's client that remembers what it was asked, and answers as told."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answer: list[offsets_pb.Superseded] = []
        self.meanwhile: Callable[[], object] = lambda: None

    async def commit(
        self, group: str, offsets: Mapping[str, int], *, epochs: Mapping[str, int], check: bool
    ) -> list[offsets_pb.Superseded]:
        assert (group, epochs, check) == ("delays", {SHARD: 2}, False)
        self.asked.append(offsets[SHARD])
        self.meanwhile()
        return self.answer


def positioned(commits: Any, take: Callable[[AckWindow], Any]) -> Position:
    """A shard at 10, of epoch 2, from which these messages were taken."""
    window = AckWindow(10, epoch=2)
    take(window)
    return Position(cast("OffsetClient", commits), "delays", SHARD, window)


async def test_a_position_is_committed_when_it_moves() -> None:
    """Not when the message that holds it back is still in work; then past all that finished meanwhile, and past gaps."""
    commits = Commits()
    position = positioned(commits, lambda window: [window.try_take(sequence) for sequence in (11, 15, 19)])
    await position.finish(15)
    assert commits.asked == []
    await position.finish(11)
    await position.finish(19)
    assert commits.asked == [19, 20]


async def test_a_colleague_who_committed_more_is_no_reason_to_stop() -> None:
    """Of the same window: what stands is above this commit, but not above what the window may commit by now."""
    commits = Commits()
    position = positioned(commits, lambda window: [window.try_take(sequence) for sequence in (10, 11)])
    commits.meanwhile = lambda: position.window.ack(11)
    commits.answer = [offsets_pb.Superseded(shard=SHARD, epoch=2, offset=12)]
    await position.finish(10)
    assert (commits.asked, position.window.committable) == ([11], 12)


@pytest.mark.parametrize(("epoch", "offset"), [(3, 1), (2, 500)])
async def test_a_position_that_somebody_moved_ends_the_consumer(epoch: int, offset: int) -> None:
    """A reset has a new epoch; another consumer of the shard is further than this one can be."""
    commits = Commits()
    commits.answer = [offsets_pb.Superseded(shard=SHARD, epoch=epoch, offset=offset)]
    position = positioned(commits, lambda window: window.try_take(10))
    with pytest.raises(MovedError, match=f"{SHARD} stands at {offset}, epoch {epoch}"):
        await position.finish(10)
