"""Spark jobs over the offsets of a whole fleet. Needs the extra `spark`; the adapter itself never imports this package.

- `cli` (the command `offset-adapter-spark`), `config` (job.toml), `jobs` (running a job, its exit code), `session`, `java`.
- `journal`, `offsets`: the data sources `offset-journal` and `offsets`.
- `lag`, `reconcile`, `transfer` (import and export), `report`: the jobs.
"""
