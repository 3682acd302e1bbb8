"""Unit tests of adapter/sidecar/engine."""
