"""What an adapter knows in memory of its keys. Reads no disk, and calls nobody.

- `recovered`: whether all keys were compared with the Meta Service.
"""
