"""`python -m tests.fuzz.mutations`: inputs of all targets, made by changing known ones; a seed always makes the same ones.

It needs no atheris, so it runs everywhere; it knows nothing of coverage, so it finds less in an hour. Exit code 1: a promise is
broken.
"""

import json
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import click
import structlog

from tests.fuzz import running
from tests.fuzz.__main__ import WORDS, drop
from tests.fuzz.replies import REPLIES, changed_reply
from tests.fuzz.rpcs import RPCS, changed_call
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

INPUT_MAX = 8_192
CHANGES_MAX = 6
PIECE_MAX = 16
FIELDS = 0.7  # of the messages are changed in their fields, the others in their bytes
BY_FIELD: Mapping[str, Callable[[str, bytes, random.Random], bytes]] = {
    **dict.fromkeys(RPCS, changed_call),
    **dict.fromkeys(REPLIES, changed_reply),
}
NUMBERS = (b"\x00", b"\xff", b"\x7f", b"\x80", b"-1", b"9223372036854775807", b"9223372036854775808", b"18446744073709551616")


def inputs(target: str, count: int, seed: int) -> Iterator[bytes]:
    """So many inputs."""
    rng = random.Random(f"{target} {seed}")
    known = list(seeds(target))
    for _ in range(count):
        data = rng.choice(known)
        by_field = BY_FIELD.get(target)
        if by_field and rng.random() < FIELDS:
            yield by_field(target, data, rng)
        else:
            yield changed(data, known, rng)


def changed(data: bytes, known: Sequence[bytes], rng: random.Random) -> bytes:
    """The same with a few changes: bits flipped, pieces lost, doubled, or put in."""
    for _ in range(rng.randint(1, CHANGES_MAX)):
        start = rng.randint(0, len(data))
        end = min(len(data), start + rng.choice((0, 1, 1, 2, rng.randint(0, PIECE_MAX))))
        data = data[:start] + _piece(data[start:end], known, rng) + data[end:]
    return data[:INPUT_MAX] if rng.random() < 0.9 else data[: rng.randint(0, len(data))]


def _piece(old: bytes, known: Sequence[bytes], rng: random.Random) -> bytes:
    """What stands there instead."""
    other = rng.choice(known)
    start = rng.randint(0, len(other))
    pieces = (
        b"",
        old + old,
        bytes(each ^ (1 << rng.randrange(8)) for each in old),
        rng.randbytes(rng.randint(1, 4)),
        rng.choice(NUMBERS),
        rng.choice(WORDS).encode(),
        other[start : start + rng.randint(0, 2 * PIECE_MAX)],
    )
    return rng.choice(pieces)


@click.command(help=__doc__)
@click.option("--inputs", "count", default=10_000, show_default=True, help="For each target.")
@click.option("--seed", type=int, required=True, help="From which inputs are drawn.")
@click.option("--only", multiple=True, type=click.Choice(sorted(TARGETS)), help="These targets.")
@click.option("--counts", type=click.Path(path_type=Path), help="A file for what was done, as JSON.")
def main(count: int, seed: int, only: tuple[str, ...], counts: Path | None) -> None:
    """All targets, one after the other."""
    structlog.configure(processors=[drop])
    try:
        sys.exit(_play(only or tuple(TARGETS), count, seed, counts))
    finally:
        running.close()


def _play(targets: Sequence[str], count: int, seed: int, counts: Path | None) -> int:
    """The exit code."""
    done = 0
    for target in targets:
        for data in inputs(target, count, seed):
            try:
                TARGETS[target](data)
            except Exception:  # noqa: BLE001 - whatever it is, it breaks the promise
                sys.stderr.write(f"{traceback.format_exc()}\nTARGETS[{target!r}]({data!r})\n")
                return 1
            done += 1
        if counts:
            counts.write_text(json.dumps({"inputs": done}))
    return 0


if __name__ == "__main__":
    main()
