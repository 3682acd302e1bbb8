"""The process beside the broker. The path of a commit: `api`, `ledger`, and for the flush `engine`; `meta` is at its end."""
