"""The Meta Service: the cluster's store of consumer offsets and of small metadata entries, served over gRPC.

It stores either in an embedded RocksDB (one process) or in etcd (any number of stateless processes). A request goes through these
modules:

- `process`: opens the stores, serves, removes old tombstones, stops.
- `offset_service`, `metadata_service`: the two gRPC services; validation and conversion, no rule about what is stored.
- `backup_service`: the gRPC service of backups.
- `group_reads`: the paged and the unpaged read of groups.
- `scan_replies`: pages of bulk readers that do not read columns.
- `bulk_checks`: validation of packed entries. `clock_skew`: corrects commit times of adapters whose clock is wrong.
- `limits`: refuses requests when too many are in progress.
- `engine`, `metadata`: the Protocols of both kinds of store, and the rules that every store applies.
- `bulk`: the rules of `engine` on packed bytes.
- `scaler`: KEDA's external scaler, over the adapters of `[fleet]`.
- `stores`: opens the stores that the configuration chooses, from `rocksdb` or `etcd`.
- `config`, `metrics`: settings and Prometheus metrics.
"""
