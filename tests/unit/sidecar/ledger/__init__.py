"""Unit tests of adapter/sidecar/ledger."""
