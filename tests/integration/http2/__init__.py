"""The built-in HTTP/2 server over sockets: what it promises, and against clients that are hostile or slow."""
