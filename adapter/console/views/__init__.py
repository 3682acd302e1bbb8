"""What a page shows.

`view` (as data, JSON and fragments of HTML); `fleet`, `groups`, `group`; `charts`; `problems` says what is wrong; `live` sends
what changed.
"""
