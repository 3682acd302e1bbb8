"""Other servers that can store consumer offsets, on loopback, under the same load as the adapter. See README.md here."""
