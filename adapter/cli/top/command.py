"""The command `top`: how far groups are behind, live at a terminal, or once.

At a terminal it shows a live table (`app`); where nobody watches, or with --once, --json or --output json|csv, it prints one
listing (`listing`). Only the live table imports Textual.
"""

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from adapter.cli import completing, options
from adapter.cli.columns import Asked
from adapter.cli.connection import Target, connected, run
from adapter.cli.lag_text import STATUSES
from adapter.cli.output import TABLE, Form
from adapter.cli.top.listing import Wanted, print_groups
from adapter.cli.top.rows import ORDERS, Order
from adapter.rpc import lag_pb

if TYPE_CHECKING:
    from adapter.cli.top.feed import Feed


@click.command()
@click.argument("pattern", default="", shell_complete=completing.group)
@options.only_namespace
@click.option(
    "--sort",
    "order",
    type=click.Choice([*ORDERS]),
    default="worst",
    show_default=True,
    help="worst: by status, then lag time and lag. Oldest commit first, else the largest.",
)
@click.option("--at-least", type=click.Choice([*STATUSES]), help="Only groups of this status or a worse one.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), help="The first so many groups.")
@click.option("--once", is_flag=True, help="Print one table, also at a terminal.")
@click.option(
    "--fleet",
    multiple=True,
    metavar="ADDRESS",
    help="Instead of --address: an adapter among several, shown as one. HOST:PORT, unix:PATH, or dns:NAME:PORT. Repeatable.",
)
@options.target_without_token
@options.columns
@options.form
def top(
    pattern: str,
    namespace: str,
    order: Order,
    at_least: str | None,
    limit: int | None,
    fleet: tuple[str, ...],
    target: Target,
    form: Form,
    columns: Asked,
    *,
    once: bool,
) -> None:
    """Show how far groups are behind, those that got worse first: live at a terminal, else once.

    PATTERN is one of the group's name: 'orders-*'. Press ? for the keys of the live table, q to end it.
    """
    level = STATUSES[at_least] if at_least else lag_pb.LAG_STATUS_UNSPECIFIED
    wanted = Wanted(lag_pb.LagFilter(namespace=namespace, pattern=pattern, at_least=level), order, limit or 0)
    # Textual draws on standard error.
    live = not once and form == TABLE and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if fleet:
        sys.exit(run(_fleet, target, fleet, wanted, None if live else form, columns))
    elif live:
        sys.exit(run(_adapter, target, wanted, columns))
    else:
        run(print_groups, target, wanted, form, columns)


async def _adapter(target: Target, wanted: Wanted, columns: Asked) -> int:
    """Show the live table of one adapter; returns the exit code. Raises CallError if it does not answer at first."""
    from adapter.cli.top.feed import AdapterFeed  # noqa: PLC0415 - what one listing does not need

    async with connected(target) as client:
        feed = AdapterFeed(client, f"{target.address} ({target.how})" if target.how else target.address, _of_every_status(wanted))
        await feed.check()
        return await _watched(feed, wanted, columns)


async def _fleet(target: Target, addresses: Sequence[str], wanted: Wanted, form: Form | None, columns: Asked) -> int:
    """Show the live table of several adapters, or print one listing; returns the exit code. Raises CallError: nobody answers."""
    import structlog  # noqa: PLC0415 - what one adapter does not need

    from adapter.cli.top import fleet as top_fleet  # noqa: PLC0415 - loads pydantic, which takes 100 ms

    # What the fleet logs is told in the table's notes.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    async with top_fleet.opened(target, addresses) as fleet:
        await top_fleet.known(fleet)
        if form is not None:
            return 0 if await top_fleet.print_fleet(fleet, wanted, form, columns) else 1
        return await _watched(top_fleet.FleetFeed(fleet, _of_every_status(wanted)), wanted, columns)


def _of_every_status(wanted: Wanted) -> lag_pb.LagFilter:
    """The live table leaves out groups by status itself: `a` shows them, and one that gets worse was known before."""
    return lag_pb.LagFilter(namespace=wanted.lag_filter.namespace, pattern=wanted.lag_filter.pattern)


async def _watched(feed: "Feed", wanted: Wanted, columns: Asked) -> int:
    """Show a live table until somebody ends it; returns the exit code."""
    from adapter.cli.top.app import TopApp, View, columns_at  # noqa: PLC0415 - loads Textual, which takes 300 ms
    from adapter.cli.top.feed import monotonic_ms  # noqa: PLC0415
    from adapter.cli.top.terminal import ended_by_signals  # noqa: PLC0415

    columns_at(columns.names)
    app = TopApp(feed, View(wanted.order, wanted.lag_filter.at_least, wanted.limit, columns.names), monotonic_ms)
    with ended_by_signals(lambda code: app.exit(return_code=code)):
        await app.run_async()
    return app.return_code or 0
