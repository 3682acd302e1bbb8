"""Commands of offsets.

`command` (reset, delete), `change` (the work of reset, delete and clone), `shift` (of a reset that a repeat would make once more;
`unanswered` keeps its ID), `reading` (what these read), `get_list`, `commit_flush`.
"""
