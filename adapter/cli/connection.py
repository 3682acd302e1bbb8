"""What the commands share: calling an adapter, sentences for a person, protobuf messages as JSON."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import grpc
import grpc.aio

from adapter.client.client import OffsetClient
from adapter.errors import AdapterError
from adapter.runtime.failures import FAILED, META_SERVICE
from adapter.runtime.secret_files import read_token

if TYPE_CHECKING:  # a command without TLS does without what checks settings
    from adapter.runtime.config import ClientTls

R = TypeVar("R")


class CallError(AdapterError):
    """A call of a tool failed."""


class Target(NamedTuple):
    """Which adapter a command calls, how it is verified, and the file with the token that it is shown."""

    address: str
    token_file: Path | None = None
    tls: "ClientTls | None" = None


def run(tool: Callable[..., Coroutine[Any, Any, R]], *arguments: object, **switches: object) -> R:
    """Run a tool to its end."""
    return asyncio.run(tool(*arguments, **switches))


def run_or_exit(tool: Callable[..., Coroutine[Any, Any, bool]], *arguments: object, **switches: object) -> None:
    """Run a tool to its end; the command exits with code 1 if it returns False: not everything is as requested."""
    if not run(tool, *arguments, **switches):
        sys.exit(1)


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[OffsetClient]:
    """A client of an adapter. What fails while it is used is raised as a CallError, a bad file as a ConfigError."""
    token = read_token(target.token_file, "--token-file") if target.token_file else ""
    try:
        async with OffsetClient.connect(target.address, token=token, tls=target.tls) as client:
            yield client
    except grpc.aio.AioRpcError as error:
        raise CallError(f"{target.address}: {error.code().name}: {error.details()}{_who_failed(error)}") from error


def _who_failed(error: grpc.aio.AioRpcError) -> str:
    """Who did not answer: the adapter itself, or somebody whom it asked, as it says in its answer."""
    failed = dict(error.trailing_metadata() or ()).get(FAILED)
    if failed == META_SERVICE:
        return "; the adapter answers, the Meta Service does not"
    if failed is not None:
        return ""
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return "; is the adapter running there, and ready? (--address)"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "; the adapter did not answer in time"
    return ""
