"""Commands of a process.

`serve`, `meta` (runs the Meta Service; the table of the commands in `adapter.cli.meta`), `console`, `config`, `check_config`,
`repair` of a local store that does not open; of one that runs `status`, `health`, `reload`.
"""
