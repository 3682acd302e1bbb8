"""RocketMQ's OffsetStore for Python consumers and brokers, over the adapter or a local file.

Modules: `store` (the Protocol OffsetStore and its errors), `table` (the part in memory), `remote` (over the adapter of each
broker), `local_file` (a file for broadcasting consumers), `start` (where a consumer begins to read), `rebalance` (from one
assignment of queues to the next).
"""
