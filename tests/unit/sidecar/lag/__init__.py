"""Tests of adapter.sidecar.lag."""
