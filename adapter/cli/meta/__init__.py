"""Commands of the Meta Service.

`status`, `repair`, `listing` (`list --meta`), `copy`, `snapshot` with `snapshot_directory`, `kv`, `placement`, `rebalance`. What
runs a Meta Service is `adapter.cli.process.serve`.
"""
