"""The command `top`.

`command` (options), `listing` (once), and live `app` with `rows`, `shards`, `live_table`. What they show comes from `feed` (one
adapter) or `fleet` (several). Only `app` and what it imports load Textual.
"""
