"""What stays on disk: `files`, `rocks` (RocksDB), `watermark`, `format_mark` (which version a form has), `disk_space`.

`checkpoint` (a copy of RocksDB's files while it is written) and `backups` (such a copy elsewhere, and its way back).
"""
