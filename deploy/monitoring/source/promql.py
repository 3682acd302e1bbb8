"""Which metrics and labels an expression of PromQL uses. Finds names; whether an expression is valid is for Prometheus to say."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
    (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    | (?P<range>\[[^\]]*\])
    | (?P<number>\d[\w.+]*)
    | (?P<variable>\$\{?\w+\}?)
    | (?P<name>[A-Za-z_:][\w:]*)
    | (?P<mark>=~|!~|!=|==|<=|>=|[-+*/%^(){},=<>@])
    | (?P<space>\s+)
    """,
    re.VERBOSE,
)
_GROUPINGS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_OPERATORS = {"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan"}


@dataclass
class Uses:
    """The names in an expression: labels by the metric that they select, and labels that results are grouped or matched by."""

    metrics: dict[str, set[str]] = field(default_factory=dict)
    grouped: set[str] = field(default_factory=set)


def uses(expr: str) -> Uses:
    """The names in an expression. Raises ValueError at what is no part of PromQL, and for a selector without a metric's name."""
    tokens = list(_tokens(expr))
    found = Uses()
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if text == "{":
            raise ValueError(f"{expr!r}: a selector without the name of a metric")
        if kind != "name" or text.lower() in _OPERATORS:
            at += 1
        elif text in _GROUPINGS:
            names, at = _enclosed(tokens, at + 1, ")") if following == "(" else ([], at + 1)
            found.grouped.update(name for kind, name in names if kind == "name")
        elif following in {"(", "by", "without"}:
            at += 1  # a function, or an aggregation
        else:
            inside, at = _enclosed(tokens, at + 1, "}") if following == "{" else ([], at + 1)
            found.metrics.setdefault(text, set()).update(name for kind, name in inside if kind == "name")
    return found


def problems(expr: str, known: Mapping[str, frozenset[str]], target: frozenset[str]) -> list[str]:
    """What an expression uses that does not exist: `known` are the metrics with their labels, `target` what every series has."""
    found = uses(expr)
    wrong = [f"there is no metric {name}" for name in found.metrics if name not in known]
    labels = {name: known[name] | target for name in found.metrics if name in known}
    wrong += [
        f"{name} has no label {label}"
        for name, selected in found.metrics.items()
        if name in known
        for label in sorted(selected - labels[name])
    ]
    everywhere = target.union(*labels.values())
    return wrong + [f"no metric of it has the label {label}" for label in sorted(found.grouped - everywhere)]


def _tokens(expr: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expr):
        match = _TOKEN.match(expr, at)
        if match is None:
            raise ValueError(f"{expr!r}: {expr[at:]!r} is no PromQL")
        at = match.end()
        if match.lastgroup and match.lastgroup != "space":
            yield match.lastgroup, match[0]


def _enclosed(tokens: Sequence[tuple[str, str]], opened: int, closing: str) -> tuple[list[tuple[str, str]], int]:
    """The tokens inside of the brackets that open here, and the place behind them."""
    for at in range(opened, len(tokens)):
        if tokens[at][1] == closing:
            return list(tokens[opened + 1 : at]), at + 1
    raise ValueError(f"{closing} is missing")
