"""The commands `meta placement`: show the leaders of the etcd Raft groups (`show`), and move them where they belong (`balance`).

`show` prints a table or JSON. `balance` prints every move when it happens; at a terminal, with `--watch`, below a live table.
"""

import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from adapter.cli import options, watch
from adapter.cli.output import CSV, JSON, Form, tell, warn
from adapter.cli.table import LEFT, RIGHT, CsvRows, Side, print_json, print_table
from adapter.errors import AdapterError, TransientError
from adapter.metaservice.config import EtcdSection, MetaConfig
from adapter.metaservice.etcd.leader_balancer import Balancer, opened
from adapter.metaservice.etcd.leader_placement import ClusterState, Move, RaftGroup, RaftMember, apart, plan, problems
from adapter.metaservice.etcd.lease import LeaseTakenError
from adapter.runtime.process import on_signals
from adapter.runtime.settings.config import LogSection, load
from adapter.runtime.telemetry import logs

EVENTS_SHOWN = 10  # lines under the live table
GOOD = "good"
WELL = ("leader", "follower")
COLUMNS: dict[str, Side] = {
    "raft group": LEFT,
    "leader": LEFT,
    "endpoint": LEFT,
    "members": LEFT,
    "db size": RIGHT,
    "etcd": LEFT,
    "placement": LEFT,
}
CSV_FIELDS = tuple(name.replace(" ", "_") for name in COLUMNS)

_config = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The TOML file of a Meta Service on etcd.",
)


@click.group()
def placement() -> None:
    """Show or balance the leaders of the etcd Raft groups."""


@placement.command(cls=watch.WatchCommand)
@_config
@watch.option
@options.form
def show(config: Path, form: Form, every_s: float | None) -> None:
    """Show every Raft group's leader and members. Exit code 1 when the leader of an offsets group is misplaced or unknown."""
    section = _section(config)
    watch.look(lambda: _shown(anyio.run(_look, section), form), every_s)


def _shown(situation: ClusterState, form: Form) -> bool:
    """Print the state of the cluster; True if every leader is where it should be."""
    if form == JSON:
        print_json(as_dict(situation))
    elif form == CSV:
        with CsvRows[list[str]](CSV_FIELDS, lambda row: dict(zip(CSV_FIELDS, row, strict=True))) as rows:
            for row in _rows(situation):
                rows.add(row)
    else:
        print_table(COLUMNS, _rows(situation))
        _tell_problems(situation)
    return not problems(situation)


@placement.command()
@_config
@click.option(
    "--watch", is_flag=True, help="Balance until a signal comes; of several balancing processes, one is active at a time."
)
def balance(config: Path, *, watch: bool) -> None:
    """Spread the offsets leaders over the nodes without the metadata leader. Exit code 1 when that is not reached."""
    section = _section(config)
    sys.exit(0 if anyio.run(_watch if watch else _once, section) else 1)


def _section(config: Path) -> EtcdSection:
    # Moves are printed here; log lines would repeat them and break the live table.
    logs.setup(LogSection(level="error"))
    return load(config, MetaConfig).etcd


async def _look(section: EtcdSection) -> ClusterState:
    async with opened(section) as leaders:
        return await leaders.look()


async def _once(section: EtcdSection) -> bool:
    """Balance once and print the result; True if no leader is misplaced afterwards."""
    lines = _Lines()
    async with opened(section) as leaders:
        try:
            situation = await Balancer(leaders, section, [lines]).once()
        except TransientError as error:
            warn(f"{error} balances now; nothing was done here" if isinstance(error, LeaseTakenError) else str(error))
            situation = await leaders.look()
    _tell_problems(situation)
    for line in _held(lines.held):
        tell(line)
    return not problems(situation)


async def _watch(section: EtcdSection) -> bool:
    """Balance until a signal comes; True if no leader is misplaced at the end."""
    console = Console()
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        async with opened(section) as leaders:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(on_signals, tasks.cancel_scope.cancel, name="signals")
                await Balancer(leaders, section, [_LiveTable(live) if live else _Lines()]).run()
            return not problems(await leaders.look())


class _Lines:
    """A watcher of the balancer that prints a line for each move and for each change of its own state."""

    def __init__(self) -> None:
        self.held: Mapping[str, int] = {}
        self._lease = ""

    def looked(self, situation: ClusterState, held: Mapping[str, int]) -> None:  # noqa: ARG002 - as of Watcher
        """Keep the groups that may not be moved again yet, with the milliseconds left."""
        self.held = held

    def moved(self, move: Move, problem: str) -> None:
        """Print a move, and the problem if it failed."""
        self.tell(_text_of(move, problem))

    def lease_changed(self, error: AdapterError | None) -> None:
        """Print whether this process balances, when that has changed."""
        text = _lease_text(error)
        if text != self._lease:
            self._lease = text
            self.tell(text)

    def tell(self, text: str) -> None:
        """Print a line."""
        tell(text)


class _LiveTable(_Lines):
    """A live table of the Raft groups; below it the problems and the last events."""

    def __init__(self, live: Live) -> None:
        super().__init__()
        self._live = live
        self._situation: ClusterState | None = None
        self._happened: deque[str] = deque(maxlen=EVENTS_SHOWN)

    def looked(self, situation: ClusterState, held: Mapping[str, int]) -> None:
        """Show a new state of the cluster."""
        super().looked(situation, held)
        self._situation = situation
        self._show()

    def tell(self, text: str) -> None:
        """Show a line below the table, with the time."""
        self._happened.append(f"{time.strftime('%H:%M:%S')} {text}")
        self._show()

    def _show(self) -> None:
        if self._situation:
            lines = [*problems(self._situation), *_held(self.held), *self._happened]
            self._live.update(Group(table(self._situation), *map(Text, lines)), refresh=True)


def table(situation: ClusterState) -> Table:
    """The state of the cluster as a rich table, one row for each Raft group."""
    found = Table(box=SIMPLE_HEAD, show_edge=False)
    for name, side in COLUMNS.items():
        found.add_column(name, overflow="fold", justify=side)
    for *cells, verdict in _rows(situation):
        found.add_row(*map(Text, cells), Text(verdict, style="green" if verdict == GOOD else "red"))
    return found


def _rows(situation: ClusterState) -> Iterator[list[str]]:
    moves = {move.group for move in plan(situation)}
    for group in (situation.metadata, *situation.offsets):
        leader = group.leader
        yield [
            group.name,
            leader.node if leader else "unknown",
            leader.endpoint if leader else "",
            _members(group),
            f"{max(member.db_bytes for member in group.members) / 2**20:,.1f} MiB",
            ", ".join(sorted({member.version for member in group.members if member.reachable})),
            _verdict(situation, group, moves),
        ]


def as_dict(situation: ClusterState) -> dict[str, Any]:
    """The state of the cluster for JSON, with every member of every Raft group."""
    wrong = problems(situation)
    groups = (situation.metadata, *situation.offsets)
    return {
        "good": not wrong,
        "apart": apart(situation),
        "problems": wrong,
        "raft_groups": [_group_dict(group) for group in groups],
    }


def _group_dict(group: RaftGroup) -> dict[str, Any]:
    leader = group.leader
    return {
        "name": group.name,
        "leader": {"node": leader.node, "endpoint": leader.endpoint} if leader else None,
        "members": [
            {
                "endpoint": member.endpoint,
                "node": member.node,
                "state": _state(group, member),
                "behind": group.behind(member) if member.reachable else None,
                "db_bytes": member.db_bytes,
                "version": member.version,
                "problem": member.problem,
            }
            for member in group.members
        ],
    }


def _state(group: RaftGroup, member: RaftMember) -> str:
    if not member.reachable:
        return "unreachable"
    if member.learner:
        return "learner"
    if group.leader == member:
        return "leader"
    return "follower" if group.caught_up(member) else "behind" if group.leader else "without a leader"


def _members(group: RaftGroup) -> str:
    states = [(member, _state(group, member)) for member in group.members]
    well = sum(state in WELL for _, state in states)
    others = [f"{member.node} {_behind(group, member, state)}" for member, state in states if state not in WELL]
    alarms = sorted({member.problem for member in group.members if member.reachable and member.problem})
    return ", ".join([f"{well}/{len(states)}", *others, *alarms])


def _behind(group: RaftGroup, member: RaftMember, state: str) -> str:
    return f"behind by {group.behind(member):,}" if state == "behind" else state


def _verdict(situation: ClusterState, group: RaftGroup, moves: Collection[str]) -> str:
    metadata, leader = situation.metadata.leader, group.leader
    if leader is None:
        return "no leader"
    if group is situation.metadata:
        return GOOD
    if metadata and leader.node == metadata.node:
        return "beside metadata"
    return "uneven" if group.name in moves else GOOD


def _text_of(move: Move, problem: str) -> str:
    text = f"{move.group}: leader {move.source.node} -> {move.target.node} ({move.target.endpoint})"
    return f"{text} failed: {problem}" if problem else text


def _lease_text(error: AdapterError | None) -> str:
    if isinstance(error, LeaseTakenError):
        return f"{error} balances now; this one stands by"
    return f"not balancing: {error}" if error else "balancing"


def _held(held: Mapping[str, int]) -> list[str]:
    return [
        f"{name}: stays {left_ms / 1000:,.0f} s longer, because it was moved lately (etcd.placement.cooldown_ms)"
        for name, left_ms in held.items()
    ]


def _tell_problems(situation: ClusterState) -> None:
    for problem in problems(situation) or ["the leaders are where they should be"]:
        tell(problem)
