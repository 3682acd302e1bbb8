"""The built-in HTTP/2 server over sockets: beside grpcio's, and against clients that are hostile or slow."""
