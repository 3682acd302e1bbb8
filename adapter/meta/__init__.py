"""Clients of the Meta Service: the protocol's wire forms, async and blocking calls, failover between endpoints.

- `client`: the Protocol `MetaClient` and its gRPC implementation; what the sidecar uses.
- `endpoints`: failover between endpoints, and whether a server supports epochs.
- `kinds`: in what servers with and without epochs differ.
- `errors`: gRPC errors of a Meta Service as errors of ours, by one table.
- `packed`: many records without a Python object for each: a flush and its outcomes, pages, the comparison at a start.
- `save_window`: how much the next save carries, by what the server needed for the last ones.
- `epochless`: saves to a server that stores only offsets (RobustMQ), over what was acknowledged last.
- `group_saves`: the same, on the wire: group by group, at the leader of each. `labels`, `slash_names`: what it requires.
- `store_marks`: detects from replies that the Meta Service lost data, and how far the clocks differ.
- `wire`: protobuf messages to and from model values; used by the Meta Service too.
- `metadata`: small values that the Meta Service keeps beside the offsets.
- `requests`: checks that the sidecar's and the Meta Service's servers share.
- `blocking`: synchronous bulk calls with retries, for Spark's workers.
- `config`: the settings of a caller.
"""
