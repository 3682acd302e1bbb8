"""Backups of stores, and putting one back.

`command` (`backup`, `restore`, `meta backup`, `meta restore`), `receiving` (the call), `directory` (where backups are kept).
"""
