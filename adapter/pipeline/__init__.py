"""Spark jobs over the offsets of a whole fleet. Needs the extra `spark`; the adapter itself never imports this package.

- `cli` (the command `offset-adapter-spark`), `config` (job.toml), `jobs` (running a job, its exit code), `session`, `java`.
- `journal`, `offsets`: the data sources `offset-journal` and `offsets`.
- `listener` (OffsetCommitListener, for anybody's streaming queries) and `outbox` (their offsets on the way to an adapter).
- `lag`, `reconcile`, `transfer` (import and export), `report`: the jobs.
"""
