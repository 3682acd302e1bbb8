"""Commands of groups.

`command` (list, describe, clone, broadcast), `show` (the work of list and describe), `lag` (what these two tell of the live lag),
`broadcast`, `handover`, `drain` (a handover of everything, until nothing is left). What changes a group is in
`adapter.cli.offsets`.
"""
