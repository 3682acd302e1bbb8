"""Unit tests of adapter/sidecar/storage."""
