"""The worst requests of each method against real processes, several at once, beside an honest client that commits all the time.

How long each holds it up is measured by `python -m benchmarks worst_requests`. Here the bound is in CPU seconds of the process.
These are the same on a busy machine. Before the requests were bounded, one of them took from 13 s to minutes.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from adapter.rpc import offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from benchmarks.worst_load import ADAPTER, BIG, META_SERVICE, STORE, Worst, attack, shard_of
from benchmarks.worst_requests import fill
from tests.integration.helpers import PATIENCE_S, rpc, stored_in, wait_until
from tests.integration.honest import MIB, Held, HonestAdapter, undisturbed

pytestmark = pytest.mark.timeout(900)

KEYS = 30_000  # with more than 20,000 in one group, which no answer to a change or description may have
AT_ONCE = (1, pytest.param(2, marks=pytest.mark.release))  # of each request; below, 120 reads come at once
BIG_KEYS = KEYS * 8 // 10
HELD_CPU_S = 5.0  # that a process may use while an honest commit or save waits
GROWS = 400 * MIB

STREAM = "/offsets.v1.OffsetStore/StreamCommits"
STREAMS = 4
ENOUGH = 200  # requests of a stream: far more than are read of one

# What is refused, and how; all others are answered.
REFUSED = {
    "commit, columns of 4 MiB": "INVALID_ARGUMENT",
    "commit, groups of 4 MiB": "INVALID_ARGUMENT",
    "broadcast, 500,000 shards": "INVALID_ARGUMENT",
    "read, names of 4 MiB": "INVALID_ARGUMENT",
    "describe a group": "RESOURCE_EXHAUSTED",
    "reset a group": "RESOURCE_EXHAUSTED",
    "delete a group": "RESOURCE_EXHAUSTED",
    "clone a group": "RESOURCE_EXHAUSTED",
    "delete 20,000 shards": "RESOURCE_EXHAUSTED",
    "health, a name of 4 MiB": "RESOURCE_EXHAUSTED",
    "reflection, a name of 4 MiB": "RESOURCE_EXHAUSTED",
    "scaler, topics of 4 MiB": "RESOURCE_EXHAUSTED",
    "scaler, names of topics": "RESOURCE_EXHAUSTED",
    "scaler, 300,000 keys": "RESOURCE_EXHAUSTED",
    "scaler, a number of 4 MiB": "RESOURCE_EXHAUSTED",
    "lag, a pattern of 4 MiB": "RESOURCE_EXHAUSTED",
    "commit, 2,000,000 empty groups": "INVALID_ARGUMENT",
    "read, 2,000,000 empty groups": "INVALID_ARGUMENT",
    "stream, 2,000,000 empty groups": "INVALID_ARGUMENT",
}
# These the machine of a test would take some seconds for.
LONG = {"stream of rewinds", "commit, rewinds with metadata", "commit, 2,500 generations", "import 5,000", "reset 20,000 shards"}


class Pair(NamedTuple):
    """An adapter and its Meta Service."""

    adapter: ServiceProcess
    meta: ServiceProcess


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """An adapter and its Meta Service, over the same many offsets."""
    directory = tmp_path_factory.mktemp("d")
    asyncio.run(fill(directory, KEYS))
    meta = meta_process(directory)
    adapter = adapter_process(directory, meta.address)
    with ended(adapter, meta):
        meta.start()
        adapter.start()
        yield Pair(adapter, meta)


@pytest.mark.parametrize("at_once", AT_ONCE)
def test_no_request_holds_up_others(pair: Pair, at_once: int) -> None:
    """Each method's, one after the other; each is answered or refused, as it should be."""
    answers: dict[str, Counter[str]] = {}
    with undisturbed(pair.adapter, grows=GROWS) as honest:
        for name, worst in ADAPTER.items():
            if name not in LONG:
                answers[name] = attack(pair.adapter.address, worst, at_once, PATIENCE_S)
        honest.goes_on()
    assert answers == {name: Counter({REFUSED.get(name, "OK"): at_once}) for name in answers}
    assert honest.worst_cpu_s < HELD_CPU_S


def test_large_reads_at_once_are_answered_or_told_when_to_come_back(pair: Pair) -> None:
    """Two at a time, and so many in line; nobody starves by them."""
    groups = [offsets_pb.GroupShards(group=BIG, shards=[shard_of(at) for at in range(2_000)])]
    request = offsets_pb.ReadOffsetsRequest(groups=groups, mode=offsets_pb.MEMORY)
    with undisturbed(pair.adapter, grows=GROWS) as honest:
        answers = attack(pair.adapter.address, Worst(STORE, "ReadOffsets", lambda: request), 120, PATIENCE_S)
        honest.goes_on()
    assert answers.keys() <= {"OK", "RESOURCE_EXHAUSTED"}
    assert answers["OK"] >= 2
    assert honest.worst_cpu_s < HELD_CPU_S


def test_an_adapter_obeys_sigterm_while_such_requests_run(directory: Path, meta: ServiceProcess) -> None:
    """It ignored it for a minute."""
    adapter = adapter_process(directory, meta.address)
    with ended(adapter):
        adapter.start()
        with grpc.insecure_channel(adapter.address) as channel:
            requests = [ADAPTER[name] for name in ("persist, a group 50,000 times", "remove, a group 50,000 times")]
            methods: list[tuple[Any, bytes]] = [
                (channel.unary_unary(worst.path), worst.make().SerializeToString()) for worst in requests
            ]
            calls = [call.future(request, timeout=PATIENCE_S) for call, request in methods * 20]
            assert adapter.stop(PATIENCE_S) == 0
            for call in calls:
                call.cancel()


def test_a_stopped_meta_service_does_not_fill_the_memory_by_streams(directory: Path, meta: ServiceProcess) -> None:
    """Streams that send as fast as they can are not read further; what is acknowledged is there when it goes on."""
    adapter = adapter_process(directory, meta.address, top='mode = "write_through"', extra="timeout_ms = 60000")
    rows = [offsets_pb.ShardCommit(shard=f"{'s' * 200}{at}", offset=1, metadata="m" * 100) for at in range(1_000)]
    with ended(adapter), grpc.insecure_channel(adapter.tcp_address) as channel:
        adapter.start()
        held = Held(adapter)
        before = held.memory()
        held.begin()
        meta.freeze()
        senders = [Sender(f"g{number}", rows) for number in range(STREAMS)]
        try:
            call: Any = channel.stream_stream(STREAM)
            streams = [call(sender, timeout=3 * PATIENCE_S) for sender in senders]
            wait_until(lambda: all(sender.stands for sender in senders), "no stream is read further")
            grown = held.memory("VmHWM") - before
        finally:
            for sender in senders:
                sender.ends = True
            meta.thaw()
        assert grown < 200 * MIB
        answers = [[offsets_pb.StreamCommitsReply.FromString(reply) for reply in stream] for stream in streams]
    assert {reply.code for replies in answers for reply in replies} == {0}
    assert [sum(reply.covers for reply in replies) for replies in answers] == [sender.sent for sender in senders]
    assert Counter(key.group for key in stored_in(meta)) == {f"g{number}": len(rows) for number in range(STREAMS)}


class Sender(Iterator[bytes]):
    """The requests of a stream, until it is to end; notes when it was last asked for one."""

    def __init__(self, group: str, rows: list[offsets_pb.ShardCommit]) -> None:
        commit = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=group, shards=rows)])
        self._message = offsets_pb.StreamCommitsRequest(commit=commit).SerializeToString()
        self._asked = time.monotonic()
        self.sent = 0
        self.ends = False

    @property
    def stands(self) -> bool:
        """True when nothing more was taken for a second, though something was, or when far too much was."""
        return self.sent > ENOUGH or (self.sent > 0 and time.monotonic() > self._asked + 1.0)

    def __next__(self) -> bytes:
        """Another one."""
        if self.ends:
            raise StopIteration
        self._asked = time.monotonic()
        self.sent += 1
        return self._message


@pytest.mark.parametrize("at_once", AT_ONCE)
def test_no_request_holds_up_the_meta_service(pair: Pair, at_once: int) -> None:
    """Saves of an honest client go on."""
    names = (
        "save, 500,000",
        "save, 2,000,000 empty groups",
        "list offsets",
        "scan",
        "split",
        "expire a group",
        "delete 500,000 names",
        "expire a group that is old",
        "delete a group",
    )
    honest = HonestAdapter(pair.meta)
    honest.start()
    answers = {name: attack(pair.meta.address, META_SERVICE[name], at_once, PATIENCE_S) for name in names}
    honest.goes_on()
    honest.stop()
    refused = dict.fromkeys(("save, 500,000", "save, 2,000,000 empty groups", "delete 500,000 names"), "INVALID_ARGUMENT")
    assert answers == {name: Counter({refused.get(name, "OK"): at_once}) for name in answers}
    assert honest.worst_cpu_s < HELD_CPU_S


def test_a_large_group_is_listed_by_its_pages_and_counted_once(pair: Pair) -> None:
    """Whatever the page size; the pages of offsets have all of them."""
    with rpc(pair.adapter.address) as stubs:
        request = offsets_pb.ListGroupsRequest(page_size=500)
        counts: list[tuple[str, int]] = []
        while True:
            groups = stubs.admin.ListGroups(request, timeout=PATIENCE_S)
            counts += [(row.group, row.shards) for row in groups.groups]
            if not groups.next_page_token:
                break
            request.page_token = groups.next_page_token
        assert dict(counts)[BIG] == BIG_KEYS
        assert len(dict(counts)) == len(counts)
        offsets = offsets_pb.ListOffsetsRequest(namespace="default", group=BIG, page_size=10_000)
        found: list[str] = []
        while True:
            page = stubs.store.ListOffsets(offsets, timeout=PATIENCE_S)
            found += [row.shard for row in page.offsets]
            if not page.next_page_token:
                break
            offsets.page_token = page.next_page_token
        assert len(found) == len(set(found)) == BIG_KEYS
