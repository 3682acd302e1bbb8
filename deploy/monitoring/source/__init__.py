"""The one source of rules, alerts and dashboards. `make monitoring` writes what is in `deploy/monitoring/` from it.

`model`: what an alert is, and how times are scaled. `recordings`, `alerts`: the rules. `panels`, `dashboards`, `grafana`: what
Grafana shows, and its form. `promql`: which metrics and labels an expression uses. `files`, `runbooks`: what is written.
"""
