"""The dashboards are what Grafana's own types take: read by its SDK and written again, nothing changes.

No Grafana runs here: Debian has none, and no registry that is used here has its server.
"""

import itertools
import json
import re
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from deploy.monitoring.source.dashboards import DASHBOARDS
from deploy.monitoring.source.panels import Dashboard
from tests.monitoring.programs import MONITORING

plugins.register_default_plugins()

KNOWN_PANELS = {"row", "timeseries", "stat", "table", "state-timeline"}


def content(described: Dashboard) -> dict[str, Any]:
    """The committed file."""
    found: dict[str, Any] = json.loads((MONITORING / "grafana" / "dashboards" / f"{described.uid}.json").read_text())
    return found


each = pytest.mark.parametrize("described", DASHBOARDS, ids=lambda described: described.uid)


@each
def test_grafanas_types_read_a_dashboard_and_write_the_same(described: Dashboard) -> None:
    """A field that they do not know, or of another type, would be lost or refused."""
    found = content(described)
    again = json.loads(json.dumps(dashboard.Dashboard.from_json(found), cls=JSONEncoder))
    assert again == found


@each
def test_a_field_that_is_misspelt_would_be_seen(described: Dashboard) -> None:
    """So that the test above means something."""
    found = content(described)
    found["panels"][1]["titel"] = "x"
    again = json.loads(json.dumps(dashboard.Dashboard.from_json(found), cls=JSONEncoder))
    assert again != found


@each
def test_each_panel_says_what_it_shows_and_is_of_a_kind_that_grafana_brings(described: Dashboard) -> None:
    """With a title of its own, a description, a data source, and named queries."""
    everything = content(described)["panels"]
    assert [panel["id"] for panel in everything] == list(range(1, len(everything) + 1))
    panels = [panel for panel in everything if panel["type"] != "row"]
    assert {panel["type"] for panel in panels} <= KNOWN_PANELS
    assert len({panel["title"] for panel in panels}) == len(panels) == len(described.panels)
    for panel in panels:
        assert panel["description"].endswith((".", "docs/runbooks."))
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters))
        assert all(target["expr"] and target["legendFormat"] for target in panel["targets"])


@each
def test_panels_neither_overlap_nor_leave_the_page(described: Dashboard) -> None:
    """The page has 24 columns."""
    places = [panel["gridPos"] for panel in content(described)["panels"]]
    cells = [
        (x, y)
        for place in places
        for x, y in itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"]))
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@each
def test_each_variable_that_a_query_uses_is_there_and_each_that_is_there_is_used(described: Dashboard) -> None:
    """But for Grafana's own."""
    found = content(described)
    declared = {variable["name"] for variable in found["templating"]["list"]}
    exprs = " ".join(target["expr"] for panel in found["panels"] for target in panel.get("targets", []))
    used = set(re.findall(r"\$(\w+)", exprs)) - {"__rate_interval"}
    assert used | {"datasource"} == declared


def test_the_dashboards_have_names_and_addresses_of_their_own() -> None:
    """They link to each other by their tag."""
    found = [content(described) for described in DASHBOARDS]
    assert len({one["uid"] for one in found}) == len({one["title"] for one in found}) == len(DASHBOARDS)
    assert all(one["tags"] == ["offset-adapter"] == one["links"][0]["tags"] for one in found)
    files = {path.stem for path in (MONITORING / "grafana" / "dashboards").glob("*.json")}
    assert files == {described.uid for described in DASHBOARDS}
