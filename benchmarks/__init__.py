"""Benchmarks of the adapter with real processes: tables, and bars (limits) that are met or missed.

See README.md in this directory.

`__main__` runs them; `report`, `plot` and `machine` store the results; `scale` has their sizes; `load`, `processes`, `keyspace`,
`noop`, `h2load` and `fast_path` are shared; every other module is one benchmark, or part of the one with the same prefix.
"""
