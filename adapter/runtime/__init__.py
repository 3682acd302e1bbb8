"""What every process needs. It knows no offsets.

- `settings`: read, checked, exchanged while a process runs; with the files that they name.
- `serving`: sockets, gRPC servers, and what they refuse. `durable`: files and RocksDB. `telemetry`: logs, metrics, spans.
- `process` runs a coroutine as a process, with `notify` and `descriptors`; `version` says which build it is.
- Calls: `channels`; `retry` with `backoff`. Work: `coalescing`, `slices`. Values: `clocks`, `times`, `wording`.
"""
