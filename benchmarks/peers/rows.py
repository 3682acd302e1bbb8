"""The results of the comparison as tables, bars and notes. Only results of the same durability and load are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.catalog import Shape
from benchmarks.peers.peer import PAGE_CACHE, SYNCED, UNANSWERED, Facts
from benchmarks.peers.usage import Used
from benchmarks.report import Bar, Cell, Result, Table

MEANING = "What an answer means, and how the client commits"
TITLE = "the adapter beside real servers that could keep offsets too"
COLUMNS = (
    "peer",
    "durable by",
    "commits/s",
    "p50 ms",
    "p99 ms",
    "per CPU s",
    "server s/M",
    "client s/M",
    "machine s/M",
    "peak MiB",
)
ABOUT = (
    "s/M: CPU seconds per million commits; per CPU s: commits per CPU second of the whole machine, on which server, client and "
    "this script run, and whatever else did. Durable by fsync: synced before the answer. The adapter's rows count its Meta "
    "Service too. Peak memory is resident; what processes share counts once."
)
ORDER = (PAGE_CACHE, SYNCED, UNANSWERED)
DRAWN = "together"  # the load that the plot shows: 1,000 consumers, by the best client that one can write
NOT_INSTALLED = "not installed: run benchmarks/install-peers.sh"


@dataclass(frozen=True)
class Row:
    """One peer under one load. `cpu` is in seconds per million commits, and zeros when nothing was committed."""

    peer: Facts
    shape: str
    commits_per_s: float
    p50_ms: float
    p99_ms: float
    cpu: Used
    peak_mib: float

    @property
    def per_cpu_s(self) -> float:
        """Commits per CPU second of the whole machine: what the bars compare."""
        return 1e6 / self.cpu.machine_s if self.cpu.machine_s else 0.0


def result_of(rows: Sequence[Row], shapes: Sequence[Shape], absent: Mapping[str, str]) -> Result:
    """All that was measured. `absent`: the peers that were not, by name, and why."""
    result = Result("peers", TITLE, notes=[ABOUT])
    for shape in shapes:
        measured = [row for row in rows if row.shape == shape.name]
        result.tables.append(Table(shape.title, COLUMNS, _cells(measured)))
        result.bars += _bars(shape, measured)
        result.notes += _winners(shape, measured)
    facts = dict.fromkeys(row.peer for row in rows)
    result.tables.append(
        Table("What an answer means, and how the client commits", ("peer", "answered when", "client"), _promises(facts))
    )
    if absent:
        result.tables.append(Table("Not measured", ("peer", "why"), list(absent.items())))
    drawn = [row for row in rows if row.shape == DRAWN and row.peer.durability != UNANSWERED]
    result.rates = {f"{row.peer.name} ({row.peer.durability})": row.commits_per_s for row in drawn}
    return result


def _cells(rows: Sequence[Row]) -> list[list[Cell]]:
    return [
        [
            row.peer.name,
            row.peer.durability,
            row.commits_per_s,
            row.p50_ms,
            row.p99_ms,
            row.per_cpu_s,
            row.cpu.server_s,
            row.cpu.client_s,
            row.cpu.machine_s,
            row.peak_mib,
        ]
        for row in sorted(rows, key=lambda row: (ORDER.index(row.peer.durability), -row.per_cpu_s))
    ]


def lacks(programs: Sequence[str]) -> str:
    """Why a peer that lacks these was not measured, and what to do."""
    return f"{NOT_INSTALLED} (lacks {', '.join(programs)})"


def _promises(peers: Mapping[Facts, None]) -> list[list[Cell]]:
    return [[facts.name, facts.promise, facts.how] for facts in peers]


def duels(rows: Sequence[Row]) -> list[tuple[Row, list[Row]]]:
    """For each durability: our first row (the default), and theirs, the best by commits per CPU second first."""
    pairs = []
    for durability in ORDER:
        same = [row for row in rows if row.peer.durability == durability and row.per_cpu_s]
        mine = next((row for row in same if row.peer.ours), None)
        others = sorted((row for row in same if not row.peer.ours), key=lambda row: -row.per_cpu_s)
        if mine and others:
            pairs.append((mine, others))
    return pairs


def _bars(shape: Shape, rows: Sequence[Row]) -> list[Bar]:
    return [
        Bar(
            f"{shape.title}; {mine.peer.durability}: commits per CPU s, {mine.peer.name} / {others[0].peer.name}",
            mine.per_cpu_s / others[0].per_cpu_s,
            1.0,
            least=True,
        )
        for mine, others in duels(rows)
    ]


def _winners(shape: Shape, rows: Sequence[Row]) -> list[str]:
    return [
        f"{shape.title}; {mine.peer.durability}: {other.peer.name} wins with "
        f"{other.per_cpu_s / mine.per_cpu_s:.2f} x the commits per CPU second of {mine.peer.name}"
        for mine, others in duels(rows)
        for other in others
        if other.per_cpu_s > mine.per_cpu_s
    ]
