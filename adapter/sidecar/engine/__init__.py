"""What the sidecar does with offsets.

The path of a commit:

- Routed: `policies.Router` says what has to happen before a commit is acknowledged, and `policies.WriteThrough` saves those that
  must be in the Meta Service first. `group_loader` loads the groups of which a commit needs the epochs.
- Decided, written, published, marked dirty: by `ledger`, as is every other change.
- Flushed: `flusher` sends what is dirty to the Meta Service. What it learns there goes into the ledger.

The rest:

- Compared: `recovery` compares all local keys with the Meta Service after a start, `comparison` reads both sides for it, and
  `meta_watch` detects that the store or the Meta Service has lost something and starts the comparison again.
- Moved on purpose: `resets` (reset, delete, clone, import), by `reset_plans`. A reset holds because it begins a new era of epochs
  (`reset_plans`), and is written while no flush of this adapter is under way (`resets`): no commit and no flush that began before
  it can pass it. It is held against commits without an epoch (`ledger.rules.Holds`) until a reader has taken it up (`reads`).
  `change_memory` keeps the plan of a reset that has an ID, so that a repeat makes no other one.
- Handed over: `handover` persists and removes the shards that a broker loses. `renewal` makes sure that a Meta Service that
  deletes idle groups still has them, then and in time.
- Read: `reads`, `groups` (lists of groups), `broadcast` (broadcasting groups).
- Expired: `expiry`.
- Composed: `core`.
"""
