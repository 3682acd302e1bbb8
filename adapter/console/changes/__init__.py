"""Changes of offsets: `pages`, `wish` (what is asked for), `run` (dry run, execution), `plans` (what waits)."""
