"""Tests of adapter.sidecar.front."""
