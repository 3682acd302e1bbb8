"""Spark jobs over the offsets of a whole fleet. Needs the extra `spark`; the adapter itself never imports this package.

Start: `cli` (the command `offset-adapter-spark`), `config` (job.toml), `jobs` (running a job, its exit code), `session`, `java`.
Data source `offsets` (the Meta Service): `source`, `source_options`, `source_rows`, `source_writer`.
Data source `offset-journal`: `journal_source`, `journal_listing`, `journal_offset`, `journal_segment`.
Job `lag`: `lag_job`, `lag_batch`, `lag_files`, `lag_display`; its tables: `lag`, `lag_rows`, `lag_status`, `journal_rows`.
Job `reconcile`: `reconcile_job`, `reconcile`, `snapshot_files`.
Jobs `import` and `export`: `imports_job`, `imports`, `import_files`; `exports_job`, `exports`; `patterns`, `summary`.
Job `report`: `report_job`, `report`, `report_page`, `plots`.
"""
