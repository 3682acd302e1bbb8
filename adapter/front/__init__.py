"""A gRPC server for small messages at a high rate: as much of HTTP/2 as gRPC needs, without I/O, and a thin layer of sockets.

frames -> headers -> connection (pure: bytes in, events and bytes out) -> calls -> lean (sockets).
"""
