"""The built-in gRPC server, for small messages at a high rate: the part of HTTP/2 (RFC 9113) that gRPC needs.

Without I/O, bytes in, events and bytes out: `connection`, composed of `sending`, `receiving` (with `credit`), `control` and
`flood`, over `frames`, `headers` and `streams`. With I/O: `server` (sockets), `call` (a servicer's view of one call) and
`admission` (limits the work for connections that have sent little so far).
"""
