"""Unit tests of adapter/sidecar."""
