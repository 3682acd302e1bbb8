"""The command `offset-adapter`.

Start: `main` (the table of commands, errors, exit codes), `lazy` (commands are imported when they run), `options` (shared
options), `contexts` and `whom` (whom to call), `connection` (calls to an adapter), `output`, `table`, `columns`, `terminal` and
`lag_text` (all that is printed), `names` (patterns, order, guesses), `watch` (`--watch`), `completion` and `completing` (for
shells).

The commands, by what a person does: `process` (run an adapter, look after it, run the console), `doctor`, `groups`, `offsets`,
`files` (import, export, snapshot), `backup` (and restore, of both stores), `meta` (the Meta Service), `top`, `context`. A room's
docstring lists its modules.
"""
