"""Clients of the Meta Service: the protocol's wire forms, async and blocking calls, failover between endpoints.

- `client`: the Protocol `MetaClient` and its gRPC implementation; what the sidecar uses.
- `endpoints`: failover between endpoints, and whether a server supports epochs.
- `errors`: gRPC errors of a Meta Service as errors of ours, by one table.
- `packed`: a flush of many records without a Python object for each, and the outcomes of one.
- `epochless`: saves to a server that stores only offsets (RobustMQ), by compare-and-set.
- `store_marks`: detects from replies that the Meta Service lost data, and how far the clocks differ.
- `wire`: protobuf messages to and from model values; used by the Meta Service too.
- `requests`: checks that the sidecar's and the Meta Service's servers share.
- `blocking`: synchronous bulk calls with retries, for Spark's workers.
- `config`: the settings of a caller.
"""
