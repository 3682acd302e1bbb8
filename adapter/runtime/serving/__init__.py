"""Servers.

`activation` (sockets of a service manager), `listener` (a gRPC server on the built-in `http2`), `statuses` (errors as gRPC tells
them, with `failures` and `pushback`), `request_sizes` and `large_calls` (what a call may cost), `store_backup` (a call that
both kinds of servers answer).
"""
