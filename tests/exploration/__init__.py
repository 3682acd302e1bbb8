"""Every interleaving of a small scope: Meta Service processes, rebalances and clients over Raft groups, with faults anywhere.

`python -m tests.exploration` explores; docs/design/exploration.md says what that covers.
"""
