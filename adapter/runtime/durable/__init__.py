"""What stays on disk: `files`, `rocks` (RocksDB), `watermark`, `format_mark` (which version a form has), `disk_space`."""
