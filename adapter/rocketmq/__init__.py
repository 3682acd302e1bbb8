"""RocketMQ's remoting protocol, as much of it as an adapter beside a stock broker needs. Knows no sidecar.

From the wire upwards: `frames` (requests to bytes, bytes to replies), `signing` (ACL), `connection` (calls with timeouts over one
TCP or TLS connection), `broker` (a broker's calls as methods), `offset_table` (what changed between two polls of all offsets),
`config` (the section `[rocketmq]`), `errors`.

A package of its own, below `sidecar`: tests and the demo speak to real brokers with it, and the sidecar's layers need not know
about bytes.
"""
