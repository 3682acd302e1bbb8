"""A gRPC server for small messages at a high rate: as much of HTTP/2 as gRPC needs.

Without I/O, bytes in, events and bytes out: `frames`, `headers`, `streams`, `sending`, `control`, `credit`, and over them
`connection`. Then `call` (a servicer's view of one call) and `server` (sockets), with `newcomers` for connections that have not
shown yet what they are for.
"""
