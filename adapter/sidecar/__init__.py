"""The process beside the broker. The path of a commit: `api`, `engine`, `storage` and `journal`; `meta` is at its end."""
