"""The embedded store of a Meta Service: one RocksDB, opened, checked, repaired."""
