"""Live lag of the groups that commit here: what is kept of each shard, its evaluation, and the gRPC service."""
