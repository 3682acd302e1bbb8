"""Commands of a process.

`serve` (also `meta` without a subcommand), `console`, `check_config`, `repair` of a local store that does not open; of one that
runs `status`, `health`, `reload`.
"""
