"""What is durable on this machine, and what was lost: the local RocksDB, its watermark, its snapshots. Knows no Meta Service."""
