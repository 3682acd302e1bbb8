"""What the sidecar does with offsets.

The path of a commit:

- Decided: `fast_path` takes plain commits of keys in memory, `committer` all others and every other change (`changes`).
  `commit_rules` has the rules: in which epoch a commit stands, and whether its member may still commit. Both
  begin with `plainly`, the rule of the plain case.
- Routed: `policies.Router` says what has to happen before a commit is acknowledged, and `policies.WriteThrough` saves those that
  must be in the Meta Service first. `group_loader` loads the groups of which a commit needs the epochs.
- Written: both write through `storage.store`, which makes every write of RocksDB. What is written
  comes into memory behind it. `group_commit` joins the plain commits of one iteration of the event loop.
- Marked dirty: in `ledger.dirty`, behind the write and before anything is awaited, by both.
- Flushed: `flusher` sends what is dirty to the Meta Service. What it learns there goes into the store through `committer`.

The rest:

- Compared: `recovery` compares all local keys with the Meta Service after a start, `comparison` reads both sides for it, and
  `meta_watch` detects that the store or the Meta Service has lost something and starts the comparison again.
- Moved on purpose: `resets` (reset, delete, clone, import), by `reset_plans`. A reset holds because it begins a new era of epochs
  (`reset_plans`), and is written while no flush of this adapter is under way (`resets`): no commit and no flush that began before
  it can pass it. It is held against commits without an epoch (`commit_rules.Holds`) until a reader has taken it up (`reads`).
  `change_memory` keeps the plan of a reset that has an ID, so that a repeat makes no other one.
- Handed over: `handover` persists and removes the shards that a broker loses. `renewal` makes sure that a Meta Service that
  deletes idle groups still has them, then and in time.
- Told: `watching` tells watchers of changes that are no ordinary commits.
- Read: `reads`, `groups` (lists of groups), `broadcast` (broadcasting groups).
- Expired: `expiry`.
- Composed: `core`.
"""
