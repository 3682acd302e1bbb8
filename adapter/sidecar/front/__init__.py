"""The front (`[robustmq] listen`): an unmodified RobustMQ broker calls it in place of RobustMQ's Meta Service.

`front` (its listener, and when it takes calls), `own_calls` (the three calls of offsets, answered here), `save_parts` (a flush
cut into commits), `notices` (tells the broker of changes that are not its own), `counts` (metrics and status). All other calls
are relayed by `adapter.runtime.serving.http2.relay`. Facts of RobustMQ are of 8bd49dc5; docs/robustmq.md has them.
"""
