"""Settings.

`config` (from TOML), `addresses`, `live` (what may change) and `reloading`. Files that settings name: `reading` them,
`certificates`, `renewed_files`, `secret_files`.
"""
