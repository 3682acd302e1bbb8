"""Real servers that could keep consumer offsets too, on loopback, under the same load as the adapter. See README.md beside."""
