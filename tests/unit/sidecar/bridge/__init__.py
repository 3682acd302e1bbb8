"""Unit tests of adapter/sidecar/bridge."""
