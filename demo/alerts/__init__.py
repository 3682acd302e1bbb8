"""The demo of the alerts: faults on a fleet with load, and how long the console and Prometheus take to tell them."""
