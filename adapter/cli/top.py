"""The command `top`: how far groups are behind, live at a terminal, or once.

At a terminal it shows a live table (`top_app`); where nobody watches, or with --once, --json or --output json|csv, it prints one
listing (`top_list`). Only the live table imports Textual.
"""

import sys

import click

from adapter.cli import options
from adapter.cli.connection import Target, connected, run
from adapter.cli.lag_text import STATUSES
from adapter.cli.output import TABLE, Form
from adapter.cli.top_list import Wanted, print_groups
from adapter.cli.top_rows import ORDERS, Order
from adapter.rpc import lag_pb


@click.command()
@click.argument("pattern", default="")
@click.option("--namespace", "-n", default="", help="Only this namespace.")
@click.option(
    "--sort",
    "order",
    type=click.Choice(ORDERS),
    default="worst",
    show_default=True,
    help="worst: by status, then lag time and lag. Oldest commit first, else the largest.",
)
@click.option("--at-least", type=click.Choice([*STATUSES]), help="Only groups of this status or a worse one.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), help="The first so many groups.")
@click.option("--once", is_flag=True, help="Print one table, also at a terminal.")
@options.target_without_token
@options.form
def top(
    pattern: str,
    namespace: str,
    order: Order,
    at_least: str | None,
    limit: int | None,
    target: Target,
    form: Form,
    *,
    once: bool,
) -> None:
    """Show how far groups are behind, those that got worse first: live at a terminal, else once.

    PATTERN is a shell pattern of the group's name: 'orders-*'. Press ? for the keys of the live table, q to end it.
    """
    level = STATUSES[at_least] if at_least else lag_pb.LAG_STATUS_UNSPECIFIED
    wanted = Wanted(lag_pb.LagFilter(namespace=namespace, pattern=pattern, at_least=level), order, limit or 0)
    watched = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))  # Textual draws on standard error
    if once or form != TABLE or not watched:
        run(print_groups, target, wanted, form)
    else:
        sys.exit(run(_live, target, wanted))


async def _live(target: Target, wanted: Wanted) -> int:
    """Show the live table until somebody ends it; returns the exit code. Raises CallError if nobody answers at first."""
    from adapter.cli.top_app import TopApp, View  # noqa: PLC0415 - loads Textual, which takes 300 ms
    from adapter.cli.top_feed import AdapterFeed, monotonic_ms  # noqa: PLC0415

    async with connected(target) as client:
        # It is told of groups of every status, and leaves some out itself: `a` shows them, and one that gets worse was known.
        every = lag_pb.LagFilter(namespace=wanted.lag_filter.namespace, pattern=wanted.lag_filter.pattern)
        feed = AdapterFeed(client, target.address, every)
        await feed.check()
        app = TopApp(feed, View(wanted.order, wanted.lag_filter.at_least, wanted.limit), monotonic_ms)
        await app.run_async()
    return app.return_code or 0
