"""Live lag of the groups that commit here: what is kept of each shard, its evaluation, and the gRPC service.

`live` is the loop: `feed` finds what was written, `bounds` asks the broker where logs end, `table` keeps and evaluates it in a
thread, by the rules of `adapter.model.lag`, and `view` is the result; `names`, `ids` and `packed` are what it is kept in, and
`windows` is what of it survives a restart. `entry` and `service` are the gRPC service, with `filters` and `watching`; `metrics`
shows a bounded number of groups, and `scaler_source` is what KEDA's scaler asks.
"""
