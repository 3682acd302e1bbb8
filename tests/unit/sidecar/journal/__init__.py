"""Unit tests of adapter/sidecar/journal."""
