"""The honest client beside an attack: how long it waited, and what the process did meanwhile."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from adapter.rpc import meta_grpc, meta_pb, offsets_grpc, offsets_pb
from adapter.testing.processes import ServiceProcess

RETRY_S = 0.01
HONEST_S = 120.0  # seconds for one request

Send = Callable[[int], Any]


class Honest(threading.Thread):
    """Sends one small request after the other."""

    def __init__(self, process: ServiceProcess, method: str) -> None:
        super().__init__(daemon=True)
        self._address = process.tcp_address
        self._loop = Path(f"/proc/{process.pid}/task/{process.pid}/schedstat")  # of the thread of the event loop
        self._method = method
        self._going = True
        self._slowest_s = self._slowest_cpu_s = 0.0
        self._sent_at = 0.0

    def run(self) -> None:
        """Start sending."""
        with grpc.insecure_channel(self._address) as channel:
            send = (_saving if self._method == "save" else _committing)(channel)
            number = 0
            began, began_cpu = time.perf_counter(), self._cpu_s()
            while self._going:
                number += 1
                self._sent_at = began
                try:
                    send(number)
                except grpc.RpcError:  # not acknowledged: the time counts for the next one
                    time.sleep(RETRY_S)
                    continue
                acknowledged, cpu = time.perf_counter(), self._cpu_s()
                self._slowest_s = max(self._slowest_s, acknowledged - began)
                self._slowest_cpu_s = max(self._slowest_cpu_s, cpu - began_cpu)
                began, began_cpu = acknowledged, cpu

    def slowest(self) -> tuple[float, float]:
        """Since the last call: the slowest request in seconds; and the most CPU seconds that the event loop used during one.

        The latter is the same on a busy machine.
        """
        now = max(self._slowest_s, time.perf_counter() - self._sent_at)
        cpu_s, self._slowest_s, self._slowest_cpu_s = self._slowest_cpu_s, 0.0, 0.0
        return now, cpu_s

    def _cpu_s(self) -> float:
        with suppress(OSError):  # it has ended
            return int(self._loop.read_text(encoding="ascii").split()[0]) / 1e9
        return 0.0

    def stop(self) -> None:
        """Stop sending."""
        self._going = False
        self.join()


def _committing(channel: grpc.Channel) -> Send:
    stub = offsets_grpc.OffsetStoreStub(channel)

    def send(number: int) -> object:
        shards = [offsets_pb.ShardCommit(shard="s", offset=number)]
        request = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="honest", shards=shards)])
        return stub.CommitOffsets(request, timeout=HONEST_S)

    return send


def _saving(channel: grpc.Channel) -> Send:
    stub = meta_grpc.MetaServiceServiceStub(channel)

    def send(number: int) -> object:
        rows = [meta_pb.SaveOffsetDataRequestOffset(shard_name="s", offset=number)]
        request = meta_pb.SaveOffsetDataRequest(offsets=[meta_pb.SaveOffsetData(group="honest", offsets=rows)])
        return stub.SaveOffsetData(request, timeout=HONEST_S)

    return send
