"""The command `offset-adapter`.

Start: `main` (the table of commands, errors, exit codes), `lazy` (commands are imported when they run), `options` (shared
options), `connection` (calls to an adapter), `output`, `table` and `terminal` (all that is printed), `watch` (`--watch`),
`completion` (for shells).

Commands of the adapter's process: `serve`, `repair`, `check_config`, `health`, `status`; `doctor` (a package of its own).
Offsets one by one: `get_list`, `commit_flush`.
Groups: `groups` (list, describe, clone), `groups_show` (the work of list and describe), `groups_broadcast`, `offsets` (reset,
delete), `offsets_change` (the work of reset, delete and clone), `offsets_shift` (of a reset that a repeat would make once more;
`unanswered` keeps its ID), `offsets_reading` (what these commands read).
Files: `import_export` (options), `import_run`, `import_report`, `export_run`, `sorting` (an external sort of offsets),
`snapshot`, `snapshot_file`.
The Meta Service: `meta_status`, `meta_repair`, `meta_list`, `meta_copy`, `meta_snapshot`, `meta_kv`, `meta_placement`,
`meta_rebalance`.
"""
