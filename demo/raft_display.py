"""The display of `make demo-cluster`: leaders and lags; at the end the cost of each fault, and missing offsets."""

from collections.abc import Mapping

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from adapter.metaservice.etcd.leader_placement import ClusterState, RaftGroup, RaftMember, problems
from demo.raft_fleet import NODES
from demo.raft_state import Outcome, ProcessState, RaftState
from demo.show import Show

TITLE = "Offset adapter demo: the Meta Service on etcd, each part of it killed under load"
LAGS_S = 1.0  # a lag is shown in red from here on
_STYLES = {"LEADER": "bold green", "follower": "", "down": "bold red"}
READ_ON = "docs/etcd.md: how to run it, add Raft groups, back up, what to alert on.  docs/sizing.md: how much of it you need."


class Display:
    """Displays the state without changing it. `addresses`: Meta Service process -> the address that adapters call."""

    def __init__(self, state: RaftState, addresses: Mapping[str, str], console: Console) -> None:
        self._state = state
        self._metas = {address: name for name, address in addresses.items()}
        self._console = console
        self._show = Show(TITLE, state, console, self.line, self.body)

    async def run(self) -> None:
        """Update the display until cancelled."""
        await self._show.run()

    def line(self) -> str:
        """The state in one line."""
        state = self._state
        brokers = state.brokers.values()
        return (
            f"{state.elapsed:5.1f} s  {state.phase_name}: {_led(state.situation)}, "
            f"{_serving(state.metas)} Meta Service processes, {_serving(state.brokers)} adapters; "
            f"{sum(broker.commits_per_s for broker in brokers):,.0f} commits/s, "
            f"dirty {'/'.join(str(broker.dirty_keys) for broker in brokers)}, "
            f"lag {'/'.join(f'{broker.lag_s:.2f}' for broker in brokers)} s, metadata put {state.put_s:.2f} s"
        )

    def body(self) -> RenderableType:
        """Two tables: Raft groups; Meta Service processes and adapters."""
        return Group(self._groups(), "", self._processes())

    def report(self, outcome: Outcome) -> None:
        """Print the events, the cost of each fault, and the verdict."""
        self._show.recap()
        sentence = Text(verdict(outcome, self._state), style="bold green" if outcome.complete else "bold red")
        self._console.print(
            "", fault_table(self._state), "", outcome_table(outcome), "", sentence, f"Read on: {READ_ON}", sep="\n"
        )

    def _groups(self) -> RenderableType:
        table = _table("Raft group", *NODES)
        situation = self._state.situation
        for group in (situation.metadata, *situation.offsets) if situation else ():
            roles = [_role(group, member) for member in group.members]
            table.add_row(group.name, *(Text(role, style=_STYLES[role]) for role in roles))
        wrong = problems(situation) if situation else []
        told = Text("; ".join(wrong), style="yellow") if wrong else Text("the leaders are apart", style="green")
        return Group(table, told, f"metadata put: {self._state.put_s * 1000:,.0f} ms")

    def _processes(self) -> Table:
        table = _table("process", "state", "does", "commits/s", "dirty keys", "flush lag", right=3)
        for name, meta in self._state.metas.items():
            does = f"{meta.save_calls:,} saves{', balances' if meta.balances else ''}"
            table.add_row(name, _state(meta.state), does)
        for name, broker in self._state.brokers.items():
            lag = Text(f"{broker.lag_s:.2f} s", style="bold red" if broker.lag_s >= LAGS_S else "")
            meta_name = self._metas.get(broker.endpoint, "")
            table.add_row(
                name,
                _state(broker.state),
                meta_name and f"saves to {meta_name}",
                f"{broker.commits_per_s:,.0f}",
                f"{broker.dirty_keys:,}",
                lag,
            )
        return table


def fault_table(state: RaftState) -> Table:
    """A table of the faults and their costs."""
    table = _table("killed, and brought back", "away", "slowest commit", "flush lag", "metadata put", right=4)
    for fault in state.faults:
        seconds = (fault.away_s, fault.waited_s, fault.lag_s, fault.put_s)
        table.add_row(fault.what, *(f"{value:.2f} s" for value in seconds))
    return table


def outcome_table(outcome: Outcome) -> Table:
    """A table of the offsets that each Meta Service process reads."""
    table = _table("acknowledged = in the stores = read by", "keys", "missing", "above", right=3)
    for name, comparison in outcome.comparisons.items():
        counts = (comparison.keys, len(comparison.missing), len(comparison.ahead))
        table.add_row(name, *(f"{count:,}" for count in counts), style="" if comparison.complete else "red")
    return table


def verdict(outcome: Outcome, state: RaftState) -> str:
    """The verdict in a few sentences."""
    for name, comparison in outcome.comparisons.items():
        missing, above, keys = comparison.missing, comparison.ahead, comparison.keys
        if missing:
            return f"MISSING at {name}: {len(missing)} of {keys} keys, for example {missing[0]}."
        if above:
            return f"WRONG at {name}: {len(above)} keys are above what was acknowledged, for example {above[0]}."
    if not outcome.complete:
        return "WRONG: there was nothing to compare."
    ledger = state.ledger
    return (
        f"Nothing is missing: all {ledger.commits:,} acknowledged offsets on {len(ledger.offsets):,} keys, of which "
        f"{ledger.once:,} were committed only once, so that no later commit hides a loss. The Meta Service got about "
        f"{state.save_calls:,} save calls for them. Raft groups changed their leader {state.leader_changes} times; "
        f"{state.moves} of that were moves by the Meta Service, to keep the leaders apart."
    )


def _table(*columns: str, right: int = 0) -> Table:
    """A table whose last columns are numbers, aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for at, name in enumerate(columns):
        table.add_column(name, justify="right" if at >= len(columns) - right else "left")
    return table


def _role(group: RaftGroup, member: RaftMember) -> str:
    if not member.reachable:
        return "down"
    return "LEADER" if group.leader == member else "follower"


def _state(text: str) -> Text:
    return Text(text, style="green" if text == "serving" else "yellow")


def _led(situation: ClusterState | None) -> str:
    if situation is None:
        return "no Raft groups yet"
    groups = (situation.metadata, *situation.offsets)
    led = ", ".join(f"{group.name} led by {group.leader.node if group.leader else 'nobody'}" for group in groups)
    up = sum(member.reachable for group in groups for member in group.members)
    return f"{led}; up {up}/{sum(len(group.members) for group in groups)} members"


def _serving(processes: Mapping[str, ProcessState]) -> str:
    return f"{sum(process.serves for process in processes.values())}/{len(processes)}"
