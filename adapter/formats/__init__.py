"""Offsets in the files of other systems: RocketMQ's and Kafka's, and our own JSON. All are read and written as streams.

- `files`: chooses the format; the entry point for reading and writing.
- `rows`: the values that all formats share: a row, a rejected entry, and the defaults for what a file does not contain.
- `reset_plan_file`: the plan of a reset, in one of these formats.
- `problems`: collects the rows that a format cannot hold.
- `offsets_json`: our JSON. `kafka_csv`: the CSV of kafka-consumer-groups.
- `rocketmq_json`: reads consumerOffset.json and offsets.json. `rocketmq_rows`: converts to rows, and writes these files.
- `json_stream`: a streaming JSON parser that also accepts fastjson's unquoted keys.
- `rocketmq_rocksdb`: reads and writes RocketMQ's RocksDB stores. `rocksdb_layouts`: their keys and values. `rocksdb_copy`: opens
  a copy of a store that may be in use.
- `broker_places`: which of a broker's files and stores of offsets is in use, and which broker reads what is written.
"""
