"""What an adapter knows in memory of its keys. Reads no disk, and calls nobody.

- `dirty`: what the Meta Service has not acknowledged, and up to which write it has everything.
- `group_state`: of each group its newest records, and what the Meta Service holds of it, as far as that is known.
- `recovered`: whether all keys were compared with the Meta Service.
"""
