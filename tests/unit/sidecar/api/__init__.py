"""Unit tests of adapter/sidecar/api."""
