"""`top --fleet`: the groups of several adapters as those of one. `adapter.fleet` follows and merges them.

Only a command with `--fleet` imports this: it loads the settings' module.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio

from adapter.cli.columns import CORE, Asked
from adapter.cli.connection import CallError, Target
from adapter.cli.output import TABLE, Form, fields_of, listing, note, warn
from adapter.cli.top.feed import Event, Lost, Shards, State
from adapter.cli.top.listing import COLUMNS, Wanted, cells_of, group_values, told_of_all
from adapter.cli.top.rows import ORDERS
from adapter.fleet.fleet import Fleet, FleetApi
from adapter.fleet.link import NOT_ASKED
from adapter.fleet.section import FleetSection
from adapter.fleet.views import AdapterView, GroupView, Health, Key
from adapter.rpc import lag_pb
from adapter.runtime.clocks import wall_ms
from adapter.runtime.settings.config import parse
from adapter.runtime.wording import counted

PAGE: Final = 2_000  # groups that are taken before anything else may happen
KNOWN_S: Final = 5.0  # how long the adapters have to tell their groups, before one listing is printed
_PAUSE_S: Final = 0.5
_BUSY_SHARE: Final = 10  # of the time, reading the groups takes at most one part in so many


@asynccontextmanager
async def opened(target: Target, addresses: Sequence[str]) -> AsyncIterator[Fleet]:
    """The fleet of these addresses. Raises ConfigError for an address or a file that cannot be used."""
    values = {"adapters": list(addresses), "history_groups": 0}
    section = parse(values, FleetSection, source="--fleet").model_copy(update={"tls": target.tls})
    async with Fleet.open(section) as fleet:
        yield fleet


async def known(fleet: FleetApi) -> None:
    """Wait until every adapter has told its groups or does not answer, up to KNOWN_S. Raises CallError if nobody answers."""
    with anyio.move_on_after(KNOWN_S):
        async for _ in fleet.changes(pause_s=0.02):
            if fleet.adapters and all(_decided(view) for view in fleet.adapters):
                break
    if not any(view.lag_known for view in fleet.adapters):
        raise CallError("\n".join(_problems(fleet)) or "--fleet: its names have no address")


async def print_fleet(fleet: FleetApi, wanted: Wanted, form: Form, asked: Asked = CORE) -> bool:
    """Print the groups of all adapters as they are now; True if every adapter told its own."""
    now_ms = wall_ms()
    columns = COLUMNS.chosen(asked)

    def cells(row: lag_pb.GroupLag) -> Sequence[str]:
        return cells_of(row, now_ms)

    with listing(form, columns, cells, fields_of(lag_pb.GroupLag), group_values) as rows:
        page = await fleet.groups(wanted.lag_filter, ORDERS[wanted.order], wanted.limit or fleet_size(fleet))
        for view in page.groups:
            rows.add(view.lag)
    problems = _problems(fleet)
    if form == TABLE:
        note(f"{counted(rows.count, 'group')} of {counted(len(fleet.adapters), 'adapter')}")
    for text in (*problems, *_notes(fleet)):
        warn(text)
    return not problems


def fleet_size(fleet: FleetApi) -> int:
    """At least as many groups as there are."""
    return sum(view.groups for view in fleet.adapters) + 1


class FleetFeed:
    """The feed of a fleet."""

    many = True

    def __init__(self, fleet: FleetApi, lag_filter: lag_pb.LagFilter) -> None:
        self.name = f"fleet of {counted(len(fleet.adapters), 'adapter')}"
        self._fleet = fleet
        self._filter = lag_filter

    async def events(self) -> AsyncGenerator[Event, None]:
        """Everything that changes, without an end."""
        sent: dict[Key, lag_pb.GroupLag] = {}
        async for _ in self._fleet.changes(_PAUSE_S):
            began = time.monotonic()
            found, whole = await self._groups()
            reply = lag_pb.WatchGroupLagReply(evaluated_at_ms=wall_ms())
            reply.groups.extend(view.lag for key, view in found.items() if sent.get(key) != view.lag)
            for key in [key for key in sent if key not in found] if whole else ():
                reply.removed.add(namespace=key[0], group=key[1])
                del sent[key]
            sent.update((key, view.lag) for key, view in found.items())
            yield reply
            adapters = self._fleet.adapters
            self.name = f"fleet of {counted(len(adapters), 'adapter')}"
            problems = _problems(self._fleet)
            if any(view.lag_known for view in adapters):
                yield State([*problems, *_notes(self._fleet)])
            else:
                yield Lost("; ".join(problems) or "no adapter is known yet")
            await asyncio.sleep((time.monotonic() - began) * _BUSY_SHARE)

    async def group(self, namespace: str, group: str) -> Shards | None:
        """The shards of a group, each by the adapter that has its newest offset; None: no lag of it is kept."""
        found = await self._fleet.group(namespace, group)
        if found is None:
            return None
        missing = "; ".join(f"{adapter}: {why}" for adapter, why in found.missing.items())
        adapters = {row.lag.shard: row.adapter for row in found.shards}
        return Shards(found.group.lag, [row.lag for row in found.shards], wall_ms(), missing, adapters)

    async def _groups(self) -> tuple[dict[Key, GroupView], bool]:
        """All groups, and whether these are all of them: while they were read, none moved to a page that was read already."""
        found: dict[Key, GroupView] = {}
        at, matching = 0, set()
        while True:
            page = await self._fleet.groups(self._filter, lag_pb.NAME, PAGE, at)
            found.update((view.key, view) for view in page.groups)
            matching.add(page.matching)
            at += len(page.groups)
            if not page.groups or at >= page.matching:
                return found, matching == {len(found)}


def _decided(view: AdapterView) -> bool:
    return view.lag_known or bool(view.lag_error) or (view.health is Health.AWAY and view.error != NOT_ASKED)


def _problems(fleet: FleetApi) -> list[str]:
    """Adapters that do not tell their groups, and why."""
    told = list(fleet.problems)
    for view in fleet.adapters:
        if not view.lag_known:
            why = view.error or view.lag_error or "it has not told its groups yet"
            told.append(f"{view.name} ({view.address}): {why}" if view.name != view.address else f"{view.address}: {why}")
    return told


def _notes(fleet: FleetApi) -> list[str]:
    return [
        f"{view.name}: {text}"
        for view in fleet.adapters
        if view.lag_known
        for text in told_of_all(view.bounds_error, view.forgotten_shards)
    ]
