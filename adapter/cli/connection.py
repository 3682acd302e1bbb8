"""How a command calls an adapter: the address with its credentials, the client, and errors as messages for a person."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import grpc
import grpc.aio

from adapter.errors import AdapterError
from adapter.runtime.serving.failures import FAILED, META_SERVICE
from adapter.runtime.settings.secret_files import read_token

if TYPE_CHECKING:  # a command that calls a Meta Service needs no client of adapters, and one without TLS no pydantic
    from adapter.client.client import OffsetClient
    from adapter.runtime.settings.config import ClientTls

R = TypeVar("R")


class CallError(AdapterError):
    """A call to an adapter or a Meta Service failed; the message names the address."""


class Target(NamedTuple):
    """The server that a command calls, the file with the access token, and how TLS verifies the server.

    `how` says where the address is from, unless it was typed; `file_option` what names the file, for errors.
    """

    address: str
    token_file: Path | None = None
    tls: "ClientTls | None" = None
    how: str = ""
    file_option: str = "--token-file"


def run(tool: Callable[..., Coroutine[Any, Any, R]], *arguments: object, **switches: object) -> R:
    """Run a tool to its end in an event loop; returns its result."""
    return asyncio.run(tool(*arguments, **switches))


def run_or_exit(tool: Callable[..., Coroutine[Any, Any, bool]], *arguments: object, **switches: object) -> None:
    """Run a tool to its end. If it returns False (not everything was done as requested), exit with code 1."""
    if not run(tool, *arguments, **switches):
        sys.exit(1)


@asynccontextmanager
async def connected(target: Target) -> "AsyncIterator[OffsetClient]":
    """A client of an adapter. Raises CallError for a failed call within the block, ConfigError for a bad token or TLS file."""
    from adapter.client.client import OffsetClient  # noqa: PLC0415 - takes 50 ms to import

    token = read_token(target.token_file, target.file_option) if target.token_file else ""
    try:
        async with OffsetClient.connect(target.address, token=token, tls=target.tls) as client:
            yield client
    except grpc.aio.AioRpcError as error:
        raise CallError(f"{target.address}: {error.code().name}: {error.details()}{_hint(error, target)}") from error


def not_by_meta(error: grpc.aio.AioRpcError) -> bool:
    """True if the adapter answered that its Meta Service does not."""
    return _failed(error) == META_SERVICE


def _failed(error: grpc.aio.AioRpcError) -> object:
    return dict(error.trailing_metadata() or ()).get(FAILED)


def _hint(error: grpc.aio.AioRpcError, target: Target) -> str:
    """Which process did not answer: the adapter, or (by the trailing metadata of its reply) the Meta Service behind it."""
    failed = _failed(error)
    if failed == META_SERVICE:
        return "; the adapter answers, the Meta Service does not"
    if failed is not None:
        return ""
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "; this is no adapter, or one of an earlier version than the command"
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return f"; is the adapter running there, and ready? ({target.how or '--address'})"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "; the adapter did not answer in time; `status` says if it waits for the Meta Service"
    return ""
