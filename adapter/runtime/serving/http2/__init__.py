"""The built-in gRPC server, for small messages at a high rate: the part of HTTP/2 (RFC 9113) that gRPC needs.

Without I/O, bytes in, events and bytes out: `connection` (the server's side) and `calling` (a client's), both `framing`, made of
`sending`, `receiving`, `control` and `flood`, over `frames`, `headers` and `streams`. With I/O: `server` (sockets), `call` (a
servicer's view of one call), `client` and `relay` (calls whose bytes are passed on to other servers as they are), and `admission`
(limits the work for connections that have sent little so far).
"""
