"""The job `reconcile`: snapshots of adapters against the Meta Service, and the repair."""
