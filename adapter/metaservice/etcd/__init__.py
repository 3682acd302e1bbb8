"""The store of the Meta Service in etcd: offsets in any number of Raft groups, metadata in one more. Processes are stateless.

Each Raft group is an etcd cluster of its own. Offsets:

- `engine`: the engine; chooses the Raft group of each consumer group, and retries when the layout changes.
- `sharding`: the layout, and which Raft group holds a consumer group (rendezvous hashing).
- `fences`: reads and changes the layout; the fence in each Raft group refuses transactions made for another layout.
- `txn_batcher`: combines concurrent saves into transactions in which etcd itself merges.
- `reads`: reads and listings over several Raft groups.
- `expiry`: expires groups and removes old tombstones.
- `broker_stores`: the reported local stores of brokers.
- `format_key`: the version of these keys and values, which is checked before anything is written.
- `keys`: the keys in etcd, and the binary form of values.

Changing the set of Raft groups:

- `rebalancing`: moves offsets to other Raft groups while they are in use.
- `migration`: copies a consumer group to its new Raft group before it is used.

Everything else:

- `client`: the client of one etcd cluster; failover, deadlines, authentication. `elections`: detects a new Raft leader during a
  call. `errors`: etcd's errors in our terms.
- `metadata`: metadata entries in the metadata Raft group.
- `leader_placement`: where Raft leaders should run. `leader_balancer`: moves them there. `leader_metrics`: reports it.
- `lease`: a lock by an etcd lease, so that one balancer works at a time.
"""
