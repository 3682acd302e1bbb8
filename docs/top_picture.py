"""Draws docs/top.svg: the live table of `offset-adapter top` as it is on a screen, with groups that were made up.

    python docs/top_picture.py

The picture is the same whenever it is drawn, so a test can tell when the table looks different.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

from adapter.cli.top.app import GroupsScreen, TopApp, View
from adapter.cli.top.feed import Event, Shards
from adapter.rpc import lag_pb

PICTURE = Path(__file__).parent / "top.svg"
NOW_MS = 1_795_442_400_000
SIZE = (132, 15)

# name, status, lag, seconds, trend, commits/s, last commit (seconds ago), since (seconds ago), shards, of which warn, stall, stop
_GROUPS = (
    ("payments/ledger", lag_pb.OK, 12, 0.2, 0.0, 412.0, 0, 86_400 * 3, 12, 0, 0, 0),
    ("payments/fraud-check", lag_pb.STALL, 18_204, 312.0, 58.4, 21.0, 1, 4_200, 6, 0, 1, 0),
    ("orders/search-index", lag_pb.WARN, 8_310, 21.0, 96.2, 310.0, 0, 9_000, 16, 3, 0, 0),
    ("orders/mail", lag_pb.OK, 0, 0.0, 0.0, 37.5, 2, 86_400 * 9, 16, 0, 0, 0),
    ("orders/report-nightly", lag_pb.STOP, 1_482_003, 30_420.0, 48.7, 0.0, 30_420, 30_100, 16, 0, 0, 16),
    ("orders/shipping", lag_pb.OK, 204, 0.7, -12.8, 290.0, 0, 3_700, 16, 0, 0, 0),
    ("iot/telemetry", lag_pb.OK, 61_240, 1.4, -310.0, 44_100.0, 0, 7_300, 64, 0, 0, 0),
    ("iot/alarms", lag_pb.REWIND, 5_120, 640.0, -35.0, 95.0, 0, 260, 8, 0, 0, 0),
)


class _Feed:
    """Tells the groups, then that one of them got worse."""

    name = "unix:data/adapter.sock"
    many = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """What is told."""
        groups = [_group(*row) for row in _GROUPS]
        yield lag_pb.WatchGroupLagReply(resync=True, groups=groups, evaluated_at_ms=NOW_MS - 1_000)
        worse = [_group("orders/search-index", lag_pb.OK, 0, 0, 0, 0, 0, 999, 16, 0, 0, 0), groups[2]]
        groups[2].status_since_ms = NOW_MS - 14_000
        for group in worse:
            yield lag_pb.WatchGroupLagReply(groups=[group], evaluated_at_ms=NOW_MS)
        await asyncio.Event().wait()

    async def group(self, namespace: str, group: str) -> Shards:
        """Nothing is asked here."""
        raise NotImplementedError(f"{namespace}/{group}")


def _group(
    name: str,
    status: "lag_pb.LagStatus.ValueType",
    lag: int,
    seconds: float,
    trend: float,
    rate: float,
    committed_s: int,
    since_s: int,
    shards: int,
    warn: int,
    stall: int,
    stop: int,
) -> lag_pb.GroupLag:
    namespace, _, group = name.partition("/")
    return lag_pb.GroupLag(
        namespace=namespace,
        group=group,
        status=status,
        shards=shards,
        lag=lag,
        lag_seconds=seconds,
        trend=trend,
        commit_rate=rate,
        last_commit_at_ms=NOW_MS - committed_s * 1_000,
        status_since_ms=NOW_MS - since_s * 1_000,
        warn=warn,
        stall=stall,
        stop=stop,
        rewind=int(status == lag_pb.REWIND),
        worst_shard=f"{namespace}/{len(group) % shards}",
    )


async def drawn() -> str:
    """The picture as SVG, which loads nothing from anywhere."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    app = TopApp(_Feed(), View(), lambda: 0)
    async with app.run_test(size=SIZE) as pilot:
        groups = cast("GroupsScreen", app.screen)
        row = None
        while row is None or row.status != lag_pb.WARN or row.change != "worse":
            await pilot.pause()
            row = app.groups.get(("orders", "search-index"))
        groups.draw(now=True)
        await pilot.pause()
        picture = app.export_screenshot(title="offset-adapter top")
    return re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", picture, flags=re.DOTALL)


if __name__ == "__main__":
    PICTURE.write_text(asyncio.run(drawn()))
