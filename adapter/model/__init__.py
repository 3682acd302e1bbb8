"""Offsets as values: records, the merge rules, names, packed and Arrow forms. No I/O, no clock, no task.

- `records`: keys, records, epochs and eras; `merge`, `resolve` and `decide`, which every store applies.
- `names`: which namespace, group, shard, topic and metadata strings are allowed.
- `codec`: the binary form of keys and records, used by both stores and by the bulk calls.
- `arrow`: the same binary form to and from Arrow columns; needs numpy and pyarrow.
- `schemas`: Arrow schemas of the journal and of snapshots; needs pyarrow.
- `queues`: how RocketMQ's queues and Kafka's partitions map to shards.
- `paging`: page sizes and page tokens of list requests.
- `bounds`: first and end offset of a shard's log.
- `lag_rows`, `lag`: what lag is judged by, and its rules; need numpy. `lag_status`: states; `lag_order`: orders of groups.
"""
