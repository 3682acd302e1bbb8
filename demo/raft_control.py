"""The load of a cluster's control plane: puts metadata several times a second, through any Meta Service process that answers."""

from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import grpc.aio

from adapter.client.batching import TRANSIENT
from adapter.meta.channel import CHANNEL_OPTIONS
from adapter.rpc import metadata_grpc, metadata_pb
from demo.raft_fleet import MetaProcess
from demo.raft_state import RaftState

if TYPE_CHECKING:  # exists only in the stubs
    from adapter.rpc.metadata_pb2_grpc import MetadataStoreAsyncStub as Stub

EVERY_S = 0.1
PUT_TIMEOUT_S = 1.0
PAUSE_S = 0.02  # before the next process is tried


async def put_metadata(metas: Sequence[MetaProcess], state: RaftState) -> None:
    """Put one key after the other until cancelled, each until it is answered, and record the time it took."""
    async with AsyncExitStack() as stack:
        stubs: deque[Stub] = deque()
        for meta in metas:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(meta.process.address, CHANNEL_OPTIONS))
            stubs.append(metadata_grpc.MetadataStoreStub(channel))
        number = 0
        while True:
            number += 1
            began = state.elapsed
            while not await _put(stubs[0], number):
                stubs.rotate()
                await anyio.sleep(PAUSE_S)
            state.put_answered(state.elapsed - began)
            await anyio.sleep(EVERY_S)


async def _put(stub: "Stub", number: int) -> bool:
    """Put a key; False if it was not answered, and may have been applied or not. Raises permanent errors."""
    try:
        await stub.Put(metadata_pb.PutRequest(key=f"demo/{number}", value=b"of the control plane"), timeout=PUT_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        if error.code() not in TRANSIENT:
            raise
        return False
    return True
