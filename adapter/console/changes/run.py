"""Dry runs and executions of a change over all adapters of a fleet.

Each shard is changed by the adapter that has its newest offset; what no adapter has, by the first one that answers. Before
anything is changed all is planned once more, and has to come to what was confirmed: the same shards, each to the same offset, or,
where the target moves by itself (the end of a log), to at least the one that was shown. A reset then names the offset of each
shard, so that nothing else can be done. After the first error nothing more is tried; what stands then is read
back from all adapters. Nothing is sent twice.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple, Protocol
from urllib.parse import quote

import anyio
import grpc
import grpc.aio
import structlog

from adapter.client.client import OffsetClient
from adapter.console.changes.plans import DryRun, End, EndRow, Place, Result, Row
from adapter.console.changes.wish import SHARDS_MAX, Request, Wish, requests_of
from adapter.errors import AdapterError, ConfigError
from adapter.fleet.discovery import server_name
from adapter.fleet.section import FleetSection
from adapter.fleet.views import AdapterView, Health
from adapter.model.records import U64_MAX
from adapter.rpc import offsets_pb
from adapter.runtime.clocks import wall_ms
from adapter.runtime.settings.reading import soon
from adapter.runtime.settings.secret_files import read_token

log = structlog.get_logger(__name__)

CALL_S = 30.0  # of one call: the adapter asks the Meta Service and the broker
AT_ONCE = 16  # adapters that are asked at the same time
ACTIVE_MS = 60_000
NOT_DONE = {  # with these, the adapter has changed nothing
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}

Described = offsets_pb.DescribeGroupReply
Changed = offsets_pb.ChangeReply


class Adapters(Protocol):
    """What a change needs to know of a fleet."""

    @property
    def adapters(self) -> Sequence[AdapterView]:
        """All adapters."""


class NotPlannedError(AdapterError):
    """A change that cannot be planned; the message says why, for a person."""


class _Found(NamedTuple):
    """What the adapters say of a group. `owners`: shard -> address; `live`: shards with an offset; `newest_ms`: last commit."""

    owners: Mapping[str, str]
    live: Sequence[str]
    places: Mapping[str, Place]
    missing: dict[str, str]
    newest_ms: int


class Changer:
    """Plans and executes changes. `token` is read for each, so that a new one is used at once."""

    def __init__(self, fleet: Adapters, section: FleetSection, read: Callable[[], str]) -> None:
        self._fleet = fleet
        self._section = section
        self._read_token = read

    async def plan(self, wish: Wish, person: str) -> DryRun:
        """What the change would do now. Raises NotPlannedError."""
        async with self._clients(person) as clients:
            return await self._plan(clients, wish)

    async def execute(self, wish: Wish, confirmed: DryRun, person: str) -> Result | DryRun:
        """Do what was confirmed, or return what would be done now instead, where that is something else. Raises NotPlannedError.

        With NotPlannedError, and with a DryRun, nothing was changed.
        """
        async with self._clients(person) as clients:
            fresh = await self._plan(clients, wish)
            if fresh.other_than(confirmed):
                return fresh
            ends, problems, warnings = await self._execute(clients, wish, fresh, confirmed)
            return await self._read_back(clients, wish, ends, problems, warnings)

    async def _plan(self, clients: "_Clients", wish: Wish) -> DryRun:
        found = await self._look(clients, wish)
        rows: list[Row] = []
        warnings: list[str] = []
        for address, shards in _by_adapter(wish, found).items():
            for request in requests_of(wish, shards):
                try:
                    reply = await clients.change(address, request, execute=False)
                except (grpc.aio.AioRpcError, AdapterError) as error:
                    raise NotPlannedError(f"{self.name(address)}: {_said(error)}. Nothing was changed") from error
                rows += [_row(wish, address, row) for row in reply.rows]
                warnings += reply.warnings
        if not rows:
            raise NotPlannedError("there is nothing to change: no such offset")
        said = [wish.warning] if wish.warning else []
        return DryRun(rows, [*said, *_activity(wish, found, warnings), *dict.fromkeys(warnings)], found.missing)

    async def _look(self, clients: "_Clients", wish: Wish) -> _Found:
        """Ask every adapter for the group. Raises NotPlannedError if none answers."""
        described, missing = await self._described(clients, wish.group.namespace, wish.group.group)
        if not described:
            reasons = "; ".join(f"{self.name(address)}: {reason}" for address, reason in missing.items())
            raise NotPlannedError(f"no adapter answered, and nothing was changed: {reasons or 'there is none'}")
        best: dict[str, tuple[tuple[int, int], str]] = {}
        places: dict[str, Place] = {}
        newest_ms = 0
        for address, reply in described.items():
            for shard in reply.shards:
                newest_ms = max(newest_ms, shard.committed_at_ms)
                _keep_newest(places, shard)
                if shard.HasField("local") and not shard.local.deleted:
                    at = (shard.local.epoch, shard.local.offset)
                    if shard.shard not in best or at > best[shard.shard][0]:
                        best[shard.shard] = (at, address)
        first = next(iter(described))
        owners = {shard: best[shard][1] if shard in best else first for shard in [*places, *wish.named]}
        live = sorted(shard for shard, place in places.items() if not place.deleted)
        if len(live) > SHARDS_MAX:
            raise NotPlannedError(f"the group has more than {SHARDS_MAX:,} shards: name some of them, or use the command")
        return _Found(owners, live, places, missing, newest_ms)

    async def _described(self, clients: "_Clients", namespace: str, group: str) -> tuple[dict[str, Described], dict[str, str]]:
        answers: dict[str, Described | str] = {}
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def ask(address: str) -> None:
            async with limiter:
                try:
                    answers[address] = await clients.describe(address, namespace, group)
                except (grpc.aio.AioRpcError, AdapterError) as error:
                    answers[address] = _said(error)

        async with anyio.create_task_group() as tasks:
            for view in self._fleet.adapters:
                if view.health is Health.AWAY:
                    answers[view.address] = f"is away: {view.error}" if view.error else "is away"
                else:
                    tasks.start_soon(ask, view.address)
        # In the order of the fleet's names, so that a plan is the same the next time.
        order = sorted(answers)
        described = {address: reply for address in order if isinstance(reply := answers[address], Described)}
        return described, {address: reply for address in order if isinstance(reply := answers[address], str)}

    async def _execute(
        self, clients: "_Clients", wish: Wish, plan: DryRun, confirmed: DryRun
    ) -> tuple[dict[Row, End], list[str], list[str]]:
        shown = {row.shard: row for row in confirmed.changed}
        # Each from where it stands to what was confirmed.
        by_shard = {row.shard: row._replace(after=shown[row.shard].after, most=shown[row.shard].most) for row in plan.changed}
        ends = dict.fromkeys(by_shard.values(), End.NOT_TRIED)
        warnings: list[str] = []
        for address, rows in _grouped(plan.changed).items():
            for request in _exact(wish, rows):
                named = _named(request)
                try:
                    reply = await clients.change(address, request, execute=True)
                except (grpc.aio.AioRpcError, AdapterError) as error:
                    refused = isinstance(error, AdapterError) or error.code() in NOT_DONE
                    ends.update(dict.fromkeys((by_shard[shard] for shard in named), End.FAILED if refused else End.UNKNOWN))
                    return ends, [f"{self.name(address)}: {_said(error)}"], warnings
                warnings += reply.warnings
                for found in reply.rows:
                    row = by_shard.get(found.shard)
                    if row is not None:
                        done = row.covers(_place(found.after) if found.HasField("after") else None)
                        ends[row] = End.DONE if done else End.DIFFERS
        if wish.kind == "delete" and not wish.shards:
            warnings += await self._forget_generation(clients, wish, plan)
        return ends, [], warnings

    async def _forget_generation(self, clients: "_Clients", wish: Wish, plan: DryRun) -> list[str]:
        """Delete the group itself, with its generation, unless it has other offsets by now, which nobody confirmed."""
        whole = offsets_pb.DeleteOffsetsRequest(namespace=wish.group.namespace, group=wish.group.group)
        for address in _grouped(plan.rows):
            try:
                left = await clients.change(address, whole, execute=False)
                if any(row.changed for row in left.rows):
                    return [f"{self.name(address)}: the group has other offsets by now; they were not deleted"]
                await clients.change(address, whole, execute=True)
            except (grpc.aio.AioRpcError, AdapterError) as error:
                return [f"{self.name(address)}: the offsets are deleted, the group's generation may not be: {_said(error)}"]
        return []

    async def _read_back(
        self, clients: "_Clients", wish: Wish, ends: Mapping[Row, End], problems: Sequence[str], warnings: Sequence[str]
    ) -> Result:
        group = wish.changed_group
        described, missing = await self._described(clients, group.namespace, group.group)
        places: dict[str, Place] = {}
        for reply in described.values():
            for shard in reply.shards:
                _keep_newest(places, shard)
        rows = [EndRow(row, end, places.get(row.shard)) for row, end in ends.items()]
        unread = [] if described else [f"nothing could be read back: {'; '.join(missing.values())}"]
        return Result(rows, [*problems, *unread], list(dict.fromkeys(warnings)), read_back=bool(described))

    def name(self, address: str) -> str:
        """What a person calls an adapter."""
        return next((view.name for view in self._fleet.adapters if view.address == address), address)

    @asynccontextmanager
    async def _clients(self, person: str) -> AsyncIterator["_Clients"]:
        try:
            token = self._read_token()
        except ConfigError as error:
            raise NotPlannedError(f"{error}. Nothing was changed") from error
        async with AsyncExitStack() as stack:
            names = {view.address: server_name(view.configured) for view in self._fleet.adapters}
            yield _Clients(stack, self._section, token, user_of(person), names)


class _Clients:
    """Clients of adapters, with a person's name for their audit log, for one change."""

    def __init__(self, stack: AsyncExitStack, section: FleetSection, token: str, user: str, names: Mapping[str, str]) -> None:
        self._stack = stack
        self._section = section
        self._token = token
        self._user = user
        self._names = names  # address -> the name in its certificate, where that is not the address
        self._clients: dict[str, OffsetClient] = {}

    async def describe(self, address: str, namespace: str, group: str) -> Described:
        """A group as this adapter has it."""
        client = await self._client(address)
        return await client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(namespace=namespace, group=group), timeout=CALL_S)

    async def change(self, address: str, request: Request, *, execute: bool) -> Changed:
        """A dry run, or the change itself; it is sent once."""
        client = await self._client(address)
        request.execute = execute
        admin = client.admin
        if isinstance(request, offsets_pb.ResetOffsetsRequest):
            return await admin.ResetOffsets(request, timeout=CALL_S)
        if isinstance(request, offsets_pb.DeleteOffsetsRequest):
            return await admin.DeleteOffsets(request, timeout=CALL_S)
        return await admin.CloneGroup(request, timeout=CALL_S)

    async def _client(self, address: str) -> OffsetClient:
        if address not in self._clients:
            # Over the Unix socket no token is needed, and none is sent to who may have taken its place.
            token = "" if address.startswith("unix:") else self._token
            name = self._names.get(address, "")
            connected = OffsetClient.connect(
                address, CALL_S, token=token, tls=self._section.tls, user=self._user, server_name=name
            )
            self._clients[address] = await self._stack.enter_async_context(connected)
        return self._clients[address]


def token_reader(section: FleetSection, own: "Callable[[], str] | None" = None) -> Callable[[], str]:
    """What reads the adapters' token: `own`, else that of the fleet, else none. Raises ConfigError when it is called."""
    if own:
        return own
    path = section.token_file
    return (lambda: soon(lambda: read_token(path, "fleet.token_file"))) if path else (lambda: "")


def user_of(person: str) -> str:
    """A person's name for an adapter's audit log, which has room for printable ASCII: other letters are percent-encoded."""
    return quote(person, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")


def _by_adapter(wish: Wish, found: _Found) -> dict[str, list[str]]:
    shards = list(wish.named or found.live)
    if not shards:
        raise NotPlannedError("the group has no offsets")
    by_adapter: dict[str, list[str]] = {}
    for shard in sorted(shards):
        by_adapter.setdefault(found.owners[shard], []).append(shard)
    return dict(sorted(by_adapter.items()))


def _grouped(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.adapter, []).append(row)
    return found


def _exact(wish: Wish, rows: Sequence[Row]) -> list[Request]:
    """The requests that do what these rows say, and nothing else."""
    targets = {row.shard: row.after.offset for row in rows if row.after}
    if wish.kind == "reset":
        explicit = wish._replace(to="file", targets=targets)
        return list(requests_of(explicit, list(targets)))
    return list(requests_of(wish, [row.shard for row in rows]))


def _named(request: Request) -> list[str]:
    if isinstance(request, offsets_pb.ResetOffsetsRequest):
        return [target.shard for target in request.to_targets.targets]
    return list(request.shards)


def _row(wish: Wish, address: str, row: Changed.Row) -> Row:
    before = _place(row.before) if row.HasField("before") else None
    after = _place(row.after) if row.HasField("after") else None
    return Row(address, row.shard, before, after, row.changed, row.warning, _most(wish, row.shard, before, after))


def _most(wish: Wish, shard: str, before: Place | None, after: Place | None) -> int | None:
    """The highest offset that is still the target of a shard, if that moves by itself: the ends of a log only grow."""
    if after is None or after.deleted:
        return None
    if wish.kind == "clone" or wish.to in {"earliest", "latest", "time"}:
        return U64_MAX
    stood = before.offset if before else 0
    wanted = {"offset": wish.value, "shift": stood + wish.value, "current": stood}.get(wish.to)
    if wanted is None:
        wanted = wish.targets[shard]
    if after.offset == wanted:
        return None
    return wanted if after.offset < wanted else U64_MAX


def _place(position: offsets_pb.Position) -> Place:
    return Place(position.epoch, position.offset, position.deleted)


def _keep_newest(places: dict[str, Place], shard: Described.Shard) -> None:
    for name in ("local", "remote"):
        if shard.HasField(name):
            place = _place(shard.local if name == "local" else shard.remote)
            known = places.get(shard.shard)
            if known is None or place[:2] > known[:2]:
                places[shard.shard] = place


def _activity(wish: Wish, found: _Found, warnings: Sequence[str]) -> list[str]:
    """What to say of a group that commits right now, unless an adapter has said it."""
    ago_ms = wall_ms() - found.newest_ms
    if wish.kind == "clone" or any("stop its consumers first" in warning for warning in warnings):
        return []
    if not found.newest_ms or not 0 <= ago_ms < ACTIVE_MS:
        return []
    return [f"the group committed {ago_ms / 1000:.0f} s ago: stop its consumers first, or they commit over the change"]


def _said(error: grpc.aio.AioRpcError | AdapterError) -> str:
    return str(error) if isinstance(error, AdapterError) else f"{error.code().name}: {error.details()}"
