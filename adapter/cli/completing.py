"""What a shell completes besides commands and options: groups, shards, namespaces and contexts.

Groups and what is in them are asked of the adapter that the command would call. One that does not answer within LIMIT_S, or does
not want to, completes nothing: a press of the tabulator key prints no errors.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:  # completing commands and options imports neither gRPC nor the client
    from adapter.client.client import OffsetClient
    from adapter.rpc import offsets_pb

LIMIT_S = 1.0
MOST = 1_000  # shards that are read

_Ask = Callable[["OffsetClient"], Coroutine[Any, Any, Iterable[str]]]


def context(_context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Names of contexts."""
    from adapter.cli import contexts  # noqa: PLC0415 - completing a command imports none of these
    from adapter.errors import AdapterError  # noqa: PLC0415

    try:
        return _beginning(sorted(contexts.load().by_name), incomplete)
    except AdapterError:
        return []


def namespace(context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Namespaces that have groups."""

    async def ask(client: "OffsetClient") -> Iterable[str]:
        return {row.namespace for row in await _groups(client, "")}

    return _beginning(sorted(_asked(context, ask)), incomplete)


def group(context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Groups of the namespace that stands on the line."""

    async def ask(client: "OffsetClient") -> Iterable[str]:
        return [row.group for row in await _groups(client, context.params.get("namespace") or "")]

    return _beginning(_asked(context, ask), incomplete)


def group_then_shards(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """For arguments of which the first is a group, and the others are its shards."""
    typed = context.params.get(option.name or "") or ()
    if context.params.get("all_groups") or not typed:
        return group(context, option, incomplete)
    return _shards(context, typed[0], incomplete)


def shard(context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Shards of the group that stands on the line."""
    name = context.params.get("group") or context.params.get("from_group") or ""
    return _shards(context, name, incomplete) if name else []


def _shards(context: click.Context, name: str, incomplete: str) -> list[str]:
    async def ask(client: "OffsetClient") -> Iterable[str]:
        shards = []
        async for row in client.list(context.params.get("namespace") or "default", name):
            shards.append(row.shard)
            if len(shards) == MOST:
                break
        return shards

    return _beginning(_asked(context, ask), incomplete)


async def _groups(client: "OffsetClient", within: str) -> Iterable["offsets_pb.ListGroupsReply.Group"]:
    """The first page of them."""
    from adapter.rpc import offsets_pb  # noqa: PLC0415

    return (await client.admin.ListGroups(offsets_pb.ListGroupsRequest(namespace=within), timeout=LIMIT_S)).groups


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _asked(context: click.Context, ask: _Ask) -> list[str]:
    """What the adapter answers; nothing if it does not."""
    from adapter.cli import whom  # noqa: PLC0415 - as above
    from adapter.cli.connection import connected  # noqa: PLC0415
    from adapter.errors import AdapterError  # noqa: PLC0415

    async def asked() -> list[str]:
        async with asyncio.timeout(LIMIT_S), connected(target) as client:
            return list(await ask(client))

    params = context.params
    files = {name: Path(params[name]) if params.get(name) else None for name in ("tls_ca", "tls_cert", "tls_key", "token_file")}
    address = params.get("address")
    try:
        target = whom.target_of(context, params.get("context_name"), address, files, typed=bool(address))
        return asyncio.run(asked())
    except (AdapterError, TimeoutError):
        return []
