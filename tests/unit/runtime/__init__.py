"""Unit tests of adapter/runtime."""
