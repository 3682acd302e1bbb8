"""The rules, alerts, dashboards and runbooks of deploy/monitoring, against real metrics, promtool and a real Prometheus."""
