"""A real consumer that keeps its position in the adapter, and a test bed that shows that it loses no message. See README.md.

`consumer` is the part to copy. `acks` is the same consumer with JetStream's acknowledgements, for comparison. The test bed:
`worker` (a consumer process), `run` (kills the workers), `keepers` and `broker` (who keeps positions), `flights` (the messages),
`ledger` and `outcome` (the results).
"""
