"""The minimum of a recovery: scans the local store, and reads the same keys from the Meta Service.

    python -m benchmarks.plain '{"path": "...", "endpoint": "127.0.0.1:9530", "batch_keys": 2000}'

It makes the calls of the recovery and discards their replies. Prints the number of keys after each batch, and at the end one line
of JSON.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

import grpc.aio

from adapter.meta.channel import CHANNEL_OPTIONS
from adapter.model.records import OffsetKey
from adapter.rpc import meta_grpc, meta_pb
from adapter.sidecar.ledger.store import LocalStore

TIMEOUT_S = 30.0


@dataclass
class Plain:
    """The seconds of the scan and of the reads."""

    keys: int = 0
    found: int = 0
    scan_s: float = 0.0
    reads_s: float = 0.0


async def measure(path: Path, endpoint: str, batch_keys: int) -> Plain:
    """Scan and read batch by batch."""
    plain = Plain()
    store = LocalStore.open(path, "never")
    scan = store.scan()
    async with grpc.aio.insecure_channel(endpoint, CHANNEL_OPTIONS) as channel:
        stub = meta_grpc.MetaServiceServiceStub(channel)
        await channel.channel_ready()
        while True:
            started = time.perf_counter()
            keys = [stored.key for stored in islice(scan, batch_keys)]
            scanned = time.perf_counter()
            plain.scan_s += scanned - started
            if not keys:
                break
            reply = await stub.BatchGetOffsetData(_request(keys), timeout=TIMEOUT_S)
            plain.reads_s += time.perf_counter() - scanned
            plain.keys += len(keys)
            plain.found += sum(len(group.offsets) for group in reply.groups)
            print(plain.keys, flush=True)
    store.close()
    return plain


def _request(keys: list[OffsetKey]) -> meta_pb.BatchGetOffsetDataRequest:
    request = meta_pb.BatchGetOffsetDataRequest(cluster_name="default")
    for group, members in groupby(keys, lambda key: key.group_key):
        request.groups.add(namespace=group.namespace, group=group.group, shard_names=[key.shard for key in members])
    return request


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    measured = asyncio.run(measure(Path(asked["path"]), asked["endpoint"], asked["batch_keys"]))
    print(json.dumps(vars(measured)))
