"""Many adapters as one: which there are, their state, and the lag of groups over all of them; and KEDA's external scaler.

- `section`: the settings. `views`: what a fleet shows, as values.
- `fleet`: follows the adapters; pages, groups, changes. `link`: one adapter of it. `discovery`: the addresses of a name in DNS.
- `table`: the groups in columns. `merging`: shards that several adapters have. `shards`: those that were asked for. `history`:
  the lag of the last minutes.
- `scaler`: the gRPC service that KEDA calls, over any source of lag. `scaling`: its rules. `fleet_source`: a fleet as a
  source; an adapter's own lag is one in `sidecar.lag`.
"""
