"""Unit tests of adapter/runtime/telemetry."""
