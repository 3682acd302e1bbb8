"""Unit tests of adapter/runtime/settings."""
