"""The offsets of an adapter: one owner of what is known of them, and one writer. Talks to no Meta Service.

A change, in this order:

- Decided: `operations` has the kinds of changes, as values, `rules` where a commit goes, `decision` what a change does.
- Written, published, marked dirty: `ledger`, the only one that does. `write_batch` is what one write has, `store` writes it to
  RocksDB (`disk`) and brings memory to it (`group_state`); `dirty` is what the Meta Service has not acknowledged.
- Told: `watching` tells watchers of changes that are no ordinary commits.

Beside it: `resting` has the groups that are loaded and of which nothing is in memory, `recovered` says whether all keys were
compared with the Meta Service, `boot_marker` whether the machine went down, `snapshot` reads all records as of one instant,
`repair` what can be read of damaged files, and `restore` puts a backup back.
"""
