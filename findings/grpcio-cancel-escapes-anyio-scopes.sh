#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
GRPCIO=1.85.1
ANYIO=4.16.0
pypi "grpcio==$GRPCIO" "anyio==$ANYIO"

statement <<TEXT
grpcio $GRPCIO (grpc.aio) within anyio $ANYIO: the time limit of a scope around a call ends in CancelledError.

Most expect: anyio.move_on_after() around a call goes on behind the block when the time is over, and anyio.fail_after() raises
  TimeoutError, as around any other await. asyncio.timeout() does.
What happens: CancelledError leaves the block. A scope knows its own cancellation by a text that comes with it; the call catches the
  error and raises another one, without the text. After one more await within the block (anyio.lowlevel.checkpoint_if_cancelled) it
  is known again.
Why it matters: a loop that flushes offsets with a time limit for each call ends at the first one that takes too long, silently, as if
  somebody had cancelled it; nothing is sent any more.
TEXT

cat >"$WORK/try.py" <<'PY'
import asyncio
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import anyio
import anyio.lowlevel
import grpc
import grpc.aio


class Slow(grpc.GenericRpcHandler):
    def service(self, _: Any) -> Any:
        async def commit(request: bytes, _: Any) -> bytes:
            await asyncio.sleep(30)
            return request

        return grpc.unary_unary_rpc_method_handler(commit)


async def outcome(waited: Any) -> str:
    try:
        await waited
    except (TimeoutError, asyncio.CancelledError) as error:
        return type(error).__name__
    return "goes on"


async def within(scope: Any, call: Any, *, again: bool = False) -> None:
    async def body() -> None:
        try:
            await call()
        except asyncio.CancelledError:
            if again:
                await anyio.lowlevel.checkpoint_if_cancelled()
            raise

    if isinstance(scope, AbstractContextManager):
        with scope:
            await body()
    elif isinstance(scope, AbstractAsyncContextManager):
        async with scope:
            await body()


async def main() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Slow(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

        async def call() -> None:
            await channel.unary_unary("/offsets/Commit")(b"42")

        async def sleep() -> None:
            await asyncio.sleep(30)

        print("move_on_after, a sleep:", await outcome(within(anyio.move_on_after(0.2), sleep)))
        print("move_on_after, a call:", await outcome(within(anyio.move_on_after(0.2), call)))
        print("move_on_after, a call, one more await:", await outcome(within(anyio.move_on_after(0.2), call, again=True)))
        print("fail_after, a sleep:", await outcome(within(anyio.fail_after(0.2), sleep)))
        print("fail_after, a call:", await outcome(within(anyio.fail_after(0.2), call)))
        print("asyncio.timeout, a call:", await outcome(within(asyncio.timeout(0.2), call)))
    await server.stop(0)


asyncio.run(main())
PY
"$WORK/venv/bin/python" "$WORK/try.py" >"$SEEN"

verdict <<'STATED'
move_on_after, a sleep: goes on
move_on_after, a call: CancelledError
move_on_after, a call, one more await: goes on
fail_after, a sleep: TimeoutError
fail_after, a call: CancelledError
asyncio.timeout, a call: TimeoutError
STATED
