"""Commands of files.

`import_export` (options), `import_run`, `import_report`, `export_run`, `sorting` (an external sort of offsets), `snapshot` (of an
adapter) and `snapshot_file`.
"""
