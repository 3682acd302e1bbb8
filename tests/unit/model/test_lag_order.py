"""Groups stand in one order, whoever shows them: an adapter (ListGroupLag), a fleet (the console), and `top`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adapter.cli.top.rows import Order, Rows
from adapter.fleet.table import GroupTable
from adapter.model.codec import pack_names
from adapter.model.lag_rows import US_OF_MS
from adapter.model.records import GroupKey
from adapter.rpc import lag_pb
from adapter.sidecar.lag import table
from adapter.sidecar.lag.view import View

ORDERS: Sequence[tuple[lag_pb.LagOrder.ValueType, Order]] = (
    (lag_pb.WORST, "worst"),
    (lag_pb.LAG, "lag"),
    (lag_pb.LAG_SECONDS, "seconds"),
    (lag_pb.TREND, "trend"),
    (lag_pb.COMMIT_RATE, "rate"),
    (lag_pb.LAST_COMMIT, "last-commit"),
    (lag_pb.NAME, "name"),
)
NAMES = [GroupKey(namespace, group) for namespace in ("default", "x") for group in ("a", "b", "aa", "ä", "zz", "b-1")]

few = st.one_of(st.none(), st.integers(0, 2))
groups = st.lists(
    st.builds(
        lambda key, **values: lag_pb.GroupLag(namespace=key.namespace, group=key.group, shards=1, **values),
        st.sampled_from(NAMES),
        lag=few,
        lag_seconds=few,
        trend=few,
        commit_rate=few,
        status=st.sampled_from(lag_pb.LagStatus.values()),
        last_commit_at_ms=st.integers(0, 2),
    ),
    unique_by=lambda group: (group.namespace, group.group),
    max_size=8,
)


def view_of(said: Sequence[lag_pb.GroupLag]) -> View:
    """An evaluation of an adapter that found this."""

    def column(name: str, none: float, kind: type) -> Any:
        return np.array([getattr(group, name) if group.HasField(name) else none for group in said], kind)  # type: ignore[arg-type]

    keys = [GroupKey(group.namespace, group.group) for group in said]
    ranks = (
        np.argsort(np.argsort(np.array([table._sorting(pack_names(*key)) for key in keys]))) if keys else np.zeros(0, np.int64)
    )
    nothing = View.nothing()
    sums = {name: np.zeros(len(said)) for name in nothing.sums.__dataclass_fields__}
    sums |= {"shards": np.ones(len(said), np.int64), "lag": column("lag", -1, np.int64)}
    sums |= {name: column(name, np.nan, np.float64) for name in ("lag_seconds", "trend", "commit_rate")}
    sums["status"] = np.array([group.status for group in said], np.int64)
    sums["last_commit"] = np.array([group.last_commit_at_ms * US_OF_MS or -1 for group in said], np.int64)
    parts = {name: getattr(nothing, name) for name in nothing.__dataclass_fields__ if name != "_orders"}
    return View(**{**parts, "groups": keys, "sums": type(nothing.sums)(**sums), "ranks": ranks})  # type: ignore[arg-type]


@given(said=groups)
def test_groups_stand_in_the_same_order_everywhere(said: list[lag_pb.GroupLag]) -> None:
    """What is unknown comes last, and what is equal by name, as its bytes compare."""
    view, fleet, top = view_of(said), GroupTable(100), Rows()
    fleet.open(0)
    for group in said:
        fleet.put(0, group)
    top.told(said)
    for order, word in ORDERS:
        of_adapter = [tuple(view.groups[number]) for number in view.order(order).tolist()]
        assert of_adapter == list(fleet.sorting().page(lag_pb.LagFilter(), "", order, 100, 0).keys), word
        assert of_adapter == [row.key for row in top.shown(word, 10**9)], word
