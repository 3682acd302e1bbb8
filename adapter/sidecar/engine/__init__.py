"""What the sidecar does with offsets: decide, flush, recover, read, reset, hand over, expire.

The order of a commit: `fast_path` and `group_commit` for the plain ones, `committer` for all others; both decide by
`commit_rules`, write to `storage`, and note in `dirty` what `flusher` has to send.
"""
