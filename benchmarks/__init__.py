"""Measurements of the adapter as it runs: real processes, tables, and bars that are met or missed. See README.md here."""
