"""The embedded store of the Meta Service: one RocksDB in one process.

- `engine`: offsets; the writes, and the bookkeeping of each batch.
- `reads`: its scans, by pages.
- `syncs`: the shared syncs, the watermark behind them, and what fails for good.
- `metadata`: metadata entries in the same database.
- `store`: the directory; creating, checking and opening it, by one process at a time.
- `repair`: builds a new store from the readable parts of a damaged one. `restore`: puts a backup in its place.
"""
