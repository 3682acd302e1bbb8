"""A picture of numbers that grow over commits towards a goal: one row for each, as SVG."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, ROW, TOP = 760, 74, 30  # pixels
LEFT, RIGHT = 230, 150
CHART = 44
STYLE = (
    "text{font:13px sans-serif;fill:#555}.name{fill:#222;font-weight:600}"
    ".line{fill:none;stroke:#2a6fbb;stroke-width:2}.area{fill:#2a6fbb;fill-opacity:.15}.goal{stroke:#999;stroke-dasharray:4 3}"
    "@media(prefers-color-scheme:dark){text{fill:#aaa}.name{fill:#eee}}"
)


class Series(NamedTuple):
    """`reached`: in total, after each commit."""

    name: str
    unit: str
    goal: float
    reached: Sequence[float]


def drawn(rows: Sequence[Series]) -> str:
    """The whole SVG. A dashed line is the goal, where it is within the picture; each row has its own scale."""
    height = TOP + ROW * len(rows)
    body = "\n".join(_row(row, TOP + ROW * at) for at, row in enumerate(rows))
    commits = max((len(row.reached) for row in rows), default=0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f"<title>What was reached, over commits</title>\n<style>{STYLE}</style>\n"
        f'<text x="{LEFT}" y="18">{commits:,} commits, oldest first</text>\n{body}\n</svg>\n'
    )


def _row(row: Series, top: int) -> str:
    last = row.reached[-1] if row.reached else 0
    scale = max(last, row.goal / 1_000) * 1.1  # a goal that is far away would make everything flat
    bottom = top + CHART
    points = [(_x(at, len(row.reached)), _y(value, scale, bottom)) for at, value in enumerate([0, *row.reached])]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    end = WIDTH - RIGHT
    parts = [
        f'<text class="name" x="8" y="{top + 22}">{escape(row.name)}</text>',
        f'<text x="8" y="{top + 40}">of {row.goal:,.0f} {escape(row.unit)}</text>',
        f'<polygon class="area" points="{line} {points[-1][0]:.1f},{bottom} {LEFT},{bottom}"/>',
        f'<polyline class="line" points="{line}"/>',
        f'<text x="{end + 8}" y="{top + 26}">{last:,.{0 if last == round(last) else 2}f} ({last / row.goal:.1%})</text>',
    ]
    if row.goal <= scale:
        parts.append(_goal(row, scale, bottom))
    return "\n".join(parts)


def _goal(row: Series, scale: float, bottom: int) -> str:
    y = _y(row.goal, scale, bottom)
    return f'<line class="goal" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'


def _x(at: int, count: int) -> float:
    return LEFT + at * (WIDTH - LEFT - RIGHT) / max(count, 1)


def _y(value: float, scale: float, bottom: int) -> float:
    return bottom - CHART * value / scale
